"""Dead letters and what became of them, as people and programs read them."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from millrace_client.cli.event_writer import body_document
from millrace_client.cli.notes import counted
from millrace_client.cli.plain_text import beginning, beginning_of_bytes, printable
from millrace_client.cli.screen import plain_table, text
from millrace_client.cli.sizes import format_byte_size
from millrace_client.dead_letters.letters import DeadLetter
from millrace_client.dead_letters.replay import ReplayReport

REASON_LENGTH_MAX = 60
"""Characters of a reason in the table; JSON has all of it."""

BODY_LENGTH_MAX = 40
"""Characters of a body there."""

_NAME_LENGTH_MAX = 85
"""A channel's name and a sequence."""

_TIME_LENGTH = len("2026-01-02T03:04:05")


def letter_document(letter: DeadLetter) -> dict[str, object]:
    """One dead letter as JSON has it; `headers` are those that it had before."""
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


def letters_table(letters: Iterable[DeadLetter]) -> Table:
    """Dead letters, one row each; nothing in them can drive a terminal."""
    table = plain_table("SEQUENCE>", "TIME (UTC)", "COMPONENT", "CHANNEL", "TRIES>", "SIZE>", "REASON", "BODY")
    for column in table.columns[-2:]:
        # On a narrow terminal these take more lines, so that the others stay whole.
        column.no_wrap = False
    for letter in letters:
        table.add_row(
            f"{letter.sequence:,}",
            _name(letter.time[:_TIME_LENGTH].replace("T", " ")),
            _name(letter.component),
            _name(letter.origin if letter.origin_sequence is None else f"{letter.origin}/{letter.origin_sequence}"),
            "-" if letter.deliveries is None else f"{letter.deliveries:,}",
            format_byte_size(len(letter.event.body)),
            text(beginning(_one_line(letter.reason), REASON_LENGTH_MAX) or "-"),
            text(beginning_of_bytes(letter.event.body, BODY_LENGTH_MAX).replace("\t", " ")),
        )
    return table


def replay_document(account: ReplayReport, *, is_complete: bool) -> dict[str, object]:
    """What a replay did, for programs."""
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


def _name(content: str) -> Text:
    return text(beginning(_one_line(content), _NAME_LENGTH_MAX) or "-")


def _one_line(content: str) -> str:
    return printable(content).replace("\t", " ")
