"""`millrace dead-letter`: what an agent has set aside, seen and brought back."""

import json
from collections.abc import Iterable
from itertools import islice
from typing import Annotated

import typer

from millrace_client import Client
from millrace_client.cli.dead_letter_view import letter_document, letters_table, replay_document, replay_sentence
from millrace_client.cli.exit_codes import ExitCode
from millrace_client.cli.failures import CommandError
from millrace_client.cli.notes import counted, note, note_to_terminal
from millrace_client.cli.put_command import PATIENCE_SECONDS, PatienceOption
from millrace_client.cli.put_progress import shown_progress
from millrace_client.cli.screen import show
from millrace_client.cli.session import ChannelArgument, JsonOption, check_sendable, with_client
from millrace_client.dead_letters.letters import DeadLetter, LetterSelection, selected_letters
from millrace_client.dead_letters.replay import Replay, ReplayError, ReplayPlan, ReplayReport
from millrace_client.dead_letters.targets import RetryPolicy

LIST_LETTERS = 100
"""Dead letters that a list shows where `--limit` is not said."""

dead_letter_app = typer.Typer(
    no_args_is_help=True,
    help="Look at the events that an agent has set aside, and bring them back.",
)

OriginOption = Annotated[
    str | None,
    typer.Option(
        "--channel-of",
        metavar="ORIGIN",
        callback=check_sendable,
        show_default=False,
        help="Only events that came from this channel, or were meant for it.",
    ),
]
ReasonOption = Annotated[
    str | None,
    typer.Option("--reason", metavar="TEXT", show_default=False, help="Only events whose reason holds this text."),
]


@dead_letter_app.command("list")
@with_client
def list_dead_letters(
    client: Client,
    channel: ChannelArgument,
    *,
    origin: OriginOption = None,
    reason: ReasonOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=0, help="Most events to show; 0: all there are.")
    ] = LIST_LETTERS,
    as_json: JsonOption = False,
) -> None:
    """List the events in a channel that an agent has set aside, oldest first, without taking them.

    CHANNEL is where an event came from or was meant for, with its sequence there, TRIES is how often a sink had it, and
    REASON is why it went no further. --json tells all of each event, one a line. Ends with 4 where there is none.
    """
    letters = selected_letters(client.channel(channel), LetterSelection(origin, reason))
    shown = islice(letters, limit or None)
    shown_count = _write_lines(shown) if as_json else _show_table(shown)
    if not shown_count:
        raise CommandError(ExitCode.EMPTY, _nothing_sentence(channel, "list", origin, reason))
    if next(letters, None) is not None:
        note_to_terminal(f"there are more than {counted(shown_count, 'event')}; see all with --limit 0")


def _write_lines(letters: Iterable[DeadLetter]) -> int:
    count = 0
    for letter in letters:
        typer.echo(json.dumps(letter_document(letter)))
        count += 1
    return count


def _show_table(letters: Iterable[DeadLetter]) -> int:
    table = letters_table(letters)
    if table.row_count:
        show(table)
    return table.row_count


@dead_letter_app.command("replay")
@with_client
def replay_dead_letters(
    client: Client,
    channel: ChannelArgument,
    *,
    origin: OriginOption = None,
    reason: ReasonOption = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="CHANNEL",
            callback=check_sendable,
            show_default=False,
            help="Bring them all to this channel; else each to the one that it came from or was meant for.",
        ),
    ] = None,
    keep_headers: Annotated[
        bool, typer.Option("--keep-headers", help="Leave the headers that tell why they were set aside.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    patience: PatienceOption = PATIENCE_SECONDS,
    as_json: JsonOption = False,
) -> None:
    """Bring events that an agent has set aside back to the channels that they came from, each exactly once.

    They stand behind all that is in those channels. What is not chosen, and what comes in meanwhile, stays in its
    place. A replay that was cut off, in whatever way, is finished by running it again. Ends with 1 where some events
    must stay, and with 4 where there was none.
    """
    if to == channel:
        raise CommandError(ExitCode.USAGE, f"--to: is {to}, where the events are already; name another channel")
    plan = ReplayPlan(selection=LetterSelection(origin, reason), target=to, keep_headers=keep_headers)
    if to is not None:
        # Refuses one that is not there.
        client.admin.get_channel(to)
    with shown_progress("replay", None, "events") as progress:
        replay = Replay(client, channel, plan, RetryPolicy(patience), progress)
        try:
            replay.survey() if dry_run else replay.run()
        except BaseException as error:
            _tell_of_break(replay.report, channel, error, as_json=as_json)
            if isinstance(error, ReplayError):
                raise CommandError(ExitCode.LATER, str(error)) from error
            raise
    _tell(replay.report, channel, plan, is_dry_run=dry_run, as_json=as_json)


def _tell_of_break(account: ReplayReport, channel: str, error: BaseException, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(replay_document(account, is_complete=False)))
    error.add_note(f"{replay_sentence(account, channel, is_dry_run=False)}; run the command again for the rest")


def _tell(account: ReplayReport, channel: str, plan: ReplayPlan, *, is_dry_run: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(replay_document(account, is_complete=not account.left_count)))
    if account.held_elsewhere:
        note(
            f"{counted(account.held_elsewhere, 'event')} of {channel} were in open transactions, perhaps of a replay "
            "that was cut off; they come back when those end"
        )
    if not account.replayed_count and not account.left_count:
        raise CommandError(
            ExitCode.EMPTY, _nothing_sentence(channel, "replay", plan.selection.origin, plan.selection.reason)
        )
    if not as_json:
        typer.echo(replay_sentence(account, channel, is_dry_run=is_dry_run))
    if account.left_count:
        for why, count in account.left.most_common():
            note(f"{counted(count, 'event')} {'stays' if count == 1 else 'stay'}: {why}")
        raise CommandError(ExitCode.REFUSED, f"{counted(account.left_count, 'event')} of {channel} must stay there")


def _nothing_sentence(channel: str, what: str, origin: str | None, reason: str | None) -> str:
    advice = (
        "see what it holds with `millrace peek {}`" if origin is None and reason is None else "choose less narrowly"
    )
    return f"there is no dead letter to {what} in {channel}; {advice.format(channel)}"
