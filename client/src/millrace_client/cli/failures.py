"""What went wrong, in one sentence that tells what to do: the one table from reasons to sentences."""

from typing import NamedTuple

from millrace_client import MillraceError, RetryAdvice
from millrace_client.cli.exit_codes import ExitCode
from millrace_client.cli.plain_text import printable


class CommandError(Exception):
    """Raised where a command fails on this side of the wire; the message is a whole sentence."""

    def __init__(self, exit_code: ExitCode, sentence: str) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


class Advice(NamedTuple):
    """What to do about a refusal. `{channel}` and `{server}` are filled in."""

    text: str = ""
    """Empty where the error's message says already what is allowed."""
    finding: str | None = None
    """Says what happened instead of the error's own message, which then is of no use to people."""


ADVICE = {
    "CHANNEL_NOT_FOUND": Advice(
        "see the names with `millrace channels`, or make it with `millrace channel create {channel}`",
        finding="the server at {server} has no channel {channel}",
    ),
    "CHANNEL_EXISTS": Advice("choose another name, or change its limits with `millrace channel update {channel}`"),
    "CHANNEL_NOT_EMPTY": Advice("empty it with `millrace channel purge {channel}`, or lose what it holds with --force"),
    "CHANNEL_CLAIMED": Advice(
        "see who reads it with `millrace channel show {channel}`, and try again when the claim has ended",
    ),
    "TXNS_OPEN": Advice("try again when the open transactions have ended"),
    "CHANNEL_FULL": Advice("take events out, or make room with `millrace channel update {channel} --capacity N`"),
    "BYTES_FULL": Advice("take events out, or make room with `millrace channel update {channel} --byte-capacity N`"),
    "DISK_FULL": Advice("take events out, or free space on the server's disk"),
    "TOO_MANY_TXNS": Advice("try again when others have ended theirs"),
    "OVERLOADED": Advice("try again, with a smaller --batch-size if it goes on"),
    "REPLAYING": Advice("try again when the channel has read its log"),
    "DRAINING": Advice("try again when the server is up again"),
    "LEASE_EXPIRED": Advice("the events are back in the channel, so run the command again"),
    "TXN_CAPACITY": Advice(
        "use a smaller --batch-size, or `millrace channel update {channel} --transaction-capacity N`",
    ),
    "EVENT_TOO_LARGE": Advice(
        "send smaller events, or raise the channel's byte_capacity or the server's message_bytes_max"
    ),
    "MESSAGE_TOO_LARGE": Advice("send smaller events, or raise the server's message_bytes_max"),
    "SEQUENCE_GONE": Advice("see what there is with `millrace channel show {channel}`"),
    "TXN_NOT_FOUND": Advice("the server was probably started anew, so run the command again"),
    "LOG_FAILED": Advice("look into the server's log, then restart the server"),
    "CORRUPT": Advice("look into the server's log, and see `millraced log verify`"),
    "INTERNAL": Advice("the server's log tells more; please report it"),
    "UNAVAILABLE": Advice(
        "start one with `millraced serve`, or name another with --server or MILLRACE_SERVER",
        finding="no server answers at {server}",
    ),
    "UNIMPLEMENTED": Advice("name a Millrace server with --server or MILLRACE_SERVER"),
    "DEADLINE": Advice(
        "try again, or allow more with --timeout",
        finding="the server at {server} did not answer in time",
    ),
}
"""By the error's reason. A reason that is not here is told as the server told it."""


_EXIT_CODES = {
    RetryAdvice.CORRECT: ExitCode.USAGE,
    RetryAdvice.FULL: ExitCode.LATER,
    RetryAdvice.LATER: ExitCode.LATER,
    RetryAdvice.LOST: ExitCode.LATER,
    RetryAdvice.UNREACHABLE: ExitCode.UNREACHABLE,
}


def exit_code_of(error: MillraceError) -> ExitCode:
    """Returns the exit code of a command that failed with this error."""
    if error.reason == "UNIMPLEMENTED":
        # The server is not a Millrace server.
        return ExitCode.UNREACHABLE
    return _EXIT_CODES.get(error.advice, ExitCode.REFUSED)


def sentence_of(error: MillraceError, server: str) -> str:
    """One sentence: what happened, and what to do."""
    message = printable(error.message.strip()).rstrip(".") or error.reason
    advice = ADVICE.get(error.reason)
    if advice is None:
        return message
    names = {"server": server, "channel": printable(error.channel) or "CHANNEL"}
    parts = [advice.finding.format_map(names) if advice.finding else message, advice.text.format_map(names)]
    return "; ".join(filter(None, parts))
