"""`millrace dead-letter`: lists and replays the events that an agent has set aside."""

import json
from collections.abc import Iterable
from itertools import islice
from typing import Annotated

import typer

from millrace.command_line.notes import printable
from millrace.command_line.tables import PlainTable, plain_table, show
from millrace.json_bodies import body_document
from millrace.units import counted, format_byte_size
from millrace_client import Client
from millrace_client.cli.exit_status import CommandError, ExitCode
from millrace_client.cli.formatting import beginning, beginning_of_bytes
from millrace_client.cli.progress import shown_progress
from millrace_client.cli.put_command import PATIENCE_SECONDS, PatienceOption
from millrace_client.cli.session import (
    ChannelArgument,
    JsonOption,
    channel_names,
    check_sendable,
    completed,
    with_client,
)
from millrace_client.cli.terminal import note, note_to_terminal
from millrace_client.dead_letters import DeadLetter, LetterSelection, selected_letters
from millrace_client.dead_letters.replay import Replay, ReplayError, ReplayPlan, ReplayReport
from millrace_client.dead_letters.targets import RetryPolicy

dead_letter_app = typer.Typer(no_args_is_help=True, help="List and replay dead letters.")

OriginOption = Annotated[
    str | None,
    typer.Option(
        "--channel-of",
        metavar="ORIGIN",
        callback=check_sendable,
        autocompletion=completed(channel_names),
        help="Only events that came from this channel, or were meant for it.",
    ),
]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Only events whose reason contains this text.")
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
        int, typer.Option("--limit", "-n", metavar="N", min=0, help="Maximum events to show; 0: all.")
    ] = 100,
    as_json: JsonOption = False,
) -> None:
    """List the events in a channel that an agent has set aside, oldest first, without taking them.

    CHANNEL is where an event came from or was meant for, with its sequence there, TRIES counts its deliveries to a
    sink, and REASON is why it was set aside. --json writes all fields, one event per line. Exits with 4 if there is
    none.
    """
    letters = selected_letters(client.channel(channel), LetterSelection(origin, reason))
    shown_count = _write(islice(letters, limit or None), as_json=as_json)
    if not shown_count:
        raise CommandError(ExitCode.EMPTY, _nothing_sentence(channel, "list", origin, reason))
    if next(letters, None) is not None:
        note_to_terminal(f"there are more than {counted(shown_count, 'event')}; see all with --limit 0")


def _write(letters: Iterable[DeadLetter], *, as_json: bool) -> int:
    if not as_json:
        table = letters_table(letters)
        if table.row_count:
            show(table)
        return table.row_count
    count = 0
    for letter in letters:
        typer.echo(json.dumps(letter_document(letter)))
        count += 1
    return count


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
            autocompletion=completed(channel_names),
            help="Replay all events to this channel; by default each to the one that it came from or was meant for.",
        ),
    ] = None,
    keep_headers: Annotated[
        bool, typer.Option("--keep-headers", help="Keep the headers that say why they were set aside.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    patience: PatienceOption = PATIENCE_SECONDS,
    as_json: JsonOption = False,
) -> None:
    """Return events that an agent has set aside to the channels that they came from, each exactly once.

    They are appended to those channels. Events that are not chosen, and events that arrive in the meantime, stay where
    they are. Run an interrupted replay again to finish it. Exits with 1 if some events must stay, and with 4 if there
    was none.
    """
    if to == channel:
        raise CommandError(ExitCode.USAGE, f"--to: is {to}, where the events are already; use another channel")
    plan = ReplayPlan(selection=LetterSelection(origin, reason), target=to, keep_headers=keep_headers)
    if to is not None:
        # Fails if there is no channel or source of the name.
        client.admin.append_capacity(to)
    with shown_progress("replay", None, "events") as progress:
        replay = Replay(client, channel, plan, RetryPolicy(patience), progress)
        try:
            replay.survey() if dry_run else replay.run()
        except BaseException as error:
            _report_failure(replay.report, channel, error, as_json=as_json)
            if isinstance(error, ReplayError):
                raise CommandError(ExitCode.LATER, str(error)) from error
            raise
    _report(replay.report, channel, plan, is_dry_run=dry_run, as_json=as_json)


def _report_failure(account: ReplayReport, channel: str, error: BaseException, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(replay_document(account, is_complete=False)))
    error.add_note(f"{replay_sentence(account, channel, is_dry_run=False)}; run the command again for the rest")


def _report(account: ReplayReport, channel: str, plan: ReplayPlan, *, is_dry_run: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(replay_document(account, is_complete=not account.left_count)))
    if account.held_elsewhere:
        note(
            f"{counted(account.held_elsewhere, 'event')} of {channel} were in open transactions, perhaps of a replay "
            "that was interrupted; they return when those end"
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
    advice = "see what it holds with `millrace peek {}`" if origin is None and reason is None else "use wider filters"
    return f"there is no dead letter to {what} in {channel}; {advice.format(channel)}"


# Characters of a cell of the table. JSON has the whole reason and the whole body.
REASON_LENGTH_MAX = 60
BODY_LENGTH_MAX = 40
_NAME_LENGTH_MAX = 85
_TIME_LENGTH = len("2026-01-02T03:04:05")


def letter_document(letter: DeadLetter) -> dict[str, object]:
    """Returns a dead letter for JSON; `headers` are the original ones."""
    return {
        "sequence": letter.sequence,
        "time": letter.time,
        "component": letter.component,
        "step": letter.step,
        "channel": letter.origin,
        "channel_sequence": letter.origin_sequence,
        "deliveries": letter.deliveries,
        "reason": letter.reason,
        "headers": letter.own_headers(),
        **body_document(letter.event.body),
    }


def letters_table(letters: Iterable[DeadLetter]) -> PlainTable:
    """Returns dead letters, one per row, with control characters escaped."""
    return plain_table(
        letters,
        {
            "SEQUENCE>": lambda letter: f"{letter.sequence:,}",
            "CHANNEL": lambda letter: _cell(_origin(letter)),
            "TIME (UTC)": lambda letter: _cell(letter.time[:_TIME_LENGTH].replace("T", " ")),
            "COMPONENT": lambda letter: _cell(letter.component),
            "TRIES>": lambda letter: "-" if letter.deliveries is None else f"{letter.deliveries:,}",
            "SIZE>": lambda letter: format_byte_size(len(letter.event.body)),
        },
        {
            "REASON": lambda letter: _cell(letter.reason, REASON_LENGTH_MAX),
            "BODY": lambda letter: beginning_of_bytes(letter.event.body, BODY_LENGTH_MAX).replace("\t", " "),
        },
    )


def _origin(letter: DeadLetter) -> str:
    return letter.origin if letter.origin_sequence is None else f"{letter.origin}/{letter.origin_sequence}"


def _cell(content: str, length_max: int = _NAME_LENGTH_MAX) -> str:
    return beginning(printable(content).replace("\t", " "), length_max) or "-"


def replay_document(account: ReplayReport, *, is_complete: bool) -> dict[str, object]:
    """Returns what a replay did, for programs."""
    return {
        "replayed": dict(account.replayed),
        "left": dict(account.left),
        "passed_over": account.skipped,
        "held_elsewhere": account.held_elsewhere,
        "complete": is_complete,
    }


def replay_sentence(account: ReplayReport, channel: str, *, is_dry_run: bool) -> str:
    """The same for people, without what was left."""
    done = "would be replayed" if is_dry_run else "replayed"
    where = ", ".join(f"{count:,} to {name}" for name, count in sorted(account.replayed.items()))
    sentence = f"{channel}: {counted(account.replayed_count, 'event')} {done}"
    return f"{sentence} ({where})" if where else sentence
