"""How a command ends: exit codes, errors as sentences, and signals."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType

import millrace_client
from millrace.command_line.notes import printable
from millrace_client._endpoints import servers_of


class ExitCode(IntEnum):
    """How a command ended. The numbers never change, since scripts depend on them."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    EMPTY = 4
    LATER = 5
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.REFUSED: "refused by the server, or failed; the same command would fail again",
    ExitCode.USAGE: "the command line or the input is wrong",
    ExitCode.UNREACHABLE: "no server responded at the address, or not in time",
    ExitCode.EMPTY: "there was no event to take or to show",
    ExitCode.LATER: "refused for now (channel full or claimed, server busy); try again later",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C (`tail` and `top` then exit with 0)",
    ExitCode.BROKEN_PIPE: "the reader closed the output pipe",
    ExitCode.TERMINATED: "terminated by SIGTERM",
}
"""The meaning of each code, as `millrace --help` shows it."""


class CommandError(Exception):
    """Raised when a command fails in the client; the message is a whole sentence."""

    def __init__(self, exit_code: ExitCode, sentence: str) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


FINDINGS = {
    "CHANNEL_NOT_FOUND": "the server at {server} has no channel {channel}",
    "UNAVAILABLE": "no server responds at {server}",
    "DEADLINE": "the server at {server} did not respond in time",
}
"""What happened, by the error's reason, in place of a message that does not help people."""

ADVICE = {
    "UNAUTHENTICATED": "name the file of a valid token with --token-file or MILLRACE_TOKEN_FILE",
    "TOKEN_EXPIRED": "get another token, and name its file with --token-file or MILLRACE_TOKEN_FILE",
    "FORBIDDEN": "ask for a role that allows it, in the server's configuration",
    "CHANNEL_NOT_FOUND": (
        "see the names with `millrace channels`, or create it with `millrace channel create {channel}`"
    ),
    "CHANNEL_EXISTS": "choose another name, or change its limits with `millrace channel update {channel}`",
    "CHANNEL_NOT_EMPTY": "empty it with `millrace channel purge {channel}`, or discard its events with --force",
    "CHANNEL_CLAIMED": (
        "see its reader with `millrace channel show {channel}`, and try again when the claim ends; or end it with "
        "`millrace claim release {channel}`"
    ),
    "PRODUCER_NOT_FOUND": "see the ids with `millrace producers {channel}`",
    "COMPONENT_NOT_FOUND": "see the names with `millrace components`",
    "TXNS_OPEN": "try again when the open transactions end",
    "CHANNEL_FULL": "take events out, or raise the capacity with `millrace channel update {channel} --capacity N`",
    "BYTES_FULL": "take events out, or raise the capacity with `millrace channel update {channel} --byte-capacity N`",
    "DISK_FULL": "take events out, free space on the server's disk, or raise stream_bytes_max of a replicated channel",
    "TOO_MANY_TXNS": "try again when other clients have finished theirs",
    "TOO_MANY_CHANNELS": "delete channels that are not needed, or raise server.channels_max",
    "QUOTA_EXCEEDED": "try again later, or ask for a larger quota, in the server's configuration",
    "OVERLOADED": "try again, with a smaller --batch-size if it happens again",
    "REPLAYING": "try again when the channel has replayed its log",
    "NOT_OWNER": "try again when a server has taken the channel over; `millrace channels` shows its state",
    "DRAINING": "try again when the server is up again",
    "LEASE_EXPIRED": "the events are back in the channel, so run the command again",
    "TXN_CAPACITY": "use a smaller --batch-size, or raise the named limit with `millrace channel update {channel}`",
    "EVENT_TOO_LARGE": "send smaller events, or raise the channel's byte_capacity or the server's message_bytes_max",
    "MESSAGE_TOO_LARGE": "send smaller events, or raise the server's message_bytes_max",
    "SEQUENCE_GONE": "see what there is with `millrace channel show {channel}`",
    "TXN_NOT_FOUND": "the server has probably restarted, so run the command again",
    "LOG_FAILED": "see the server's log, then restart the server; a replicated channel recovers by itself",
    "CORRUPT": "see the server's log, and run `millraced log verify`",
    "INTERNAL": "see the server's log, and please report it",
    "UNAVAILABLE": "start one with `millraced serve`, or name another with --server or MILLRACE_SERVER",
    "UNIMPLEMENTED": "name a Millrace server with --server or MILLRACE_SERVER",
    "DEADLINE": "try again, or allow more with --timeout",
}
"""What to do, by the error's reason. For other reasons the server's message says it all."""

_CONNECTION_ADVICE = {
    "cannot be resolved": "name the server by a name that this machine knows with --server or MILLRACE_SERVER",
    "speaks HTTP": "name the server's gRPC port, by default 7070, with --server or MILLRACE_SERVER",
    "it does not use TLS": "leave out --tls-ca, and unset MILLRACE_TLS_CA",
    "its certificate has expired": "replace it on the server, which reads the new one by itself",
    "does not trust its certificate": "name the file of the authority that signed it with --tls-ca or MILLRACE_TLS_CA",
    "is not valid for this name": "use a name or address from its certificate with --server",
    "does it require TLS": "If so, use --tls-ca, or --tls-certificate and --tls-key with a certificate that it accepts",
}
"""What to do about a server that cannot be reached, by what the client's message says of the cause."""

_EXIT_CODES_BY_ADVICE = {
    "CORRECT": ExitCode.USAGE,
    "FULL": ExitCode.LATER,
    "LATER": ExitCode.LATER,
}
_EXIT_CODES_BY_REASON = {
    "CHANNEL_CLAIMED": ExitCode.LATER,
    "LEASE_EXPIRED": ExitCode.LATER,
    "TXN_NOT_FOUND": ExitCode.LATER,
    "DEADLINE": ExitCode.UNREACHABLE,
    "UNAVAILABLE": ExitCode.UNREACHABLE,
    # The server is not a Millrace server.
    "UNIMPLEMENTED": ExitCode.UNREACHABLE,
}
"""For reasons whose advice does not decide: a lost claim can be waited for, but not every lost transaction."""


_DELAY_SECONDS = 0.01
"""How long a signal is delayed that arrives while gRPC starts a call."""


def exit_code_of(error: "millrace_client.MillraceError") -> ExitCode:
    """Returns the exit code of a command that failed with this error."""
    by_advice = _EXIT_CODES_BY_ADVICE.get(error.advice.name, ExitCode.REFUSED)
    return _EXIT_CODES_BY_REASON.get(error.reason, by_advice)


def sentence_of(error: "millrace_client.MillraceError", server: str, question: str = "") -> str:
    """Returns what happened, and what to do.

    Args:
        error: The error.
        server: The address of the server.
        question: What `similar_names.question` asks about a name that the server does not have.
    """
    message = printable(error.message.strip()).rstrip(".") or error.reason
    if error.reason not in ADVICE:
        return message
    if error.reason == "UNAVAILABLE" and (
        advice := next((_CONNECTION_ADVICE[one] for one in _CONNECTION_ADVICE if one in message), "")
    ):
        # Without gRPC's own words, which are in parentheses, for each of several servers.
        cause = "; ".join(each.partition(" (")[0] for each in message.split("); "))
        return f"{cause}{' ' if cause.endswith('?') else '; '}{advice}"
    names = {"server": server, "channel": printable(error.channel) or "CHANNEL"}
    # The server's message is no template: it may hold braces.
    # Of several servers, the message names those that were not reached and may have the channel.
    says_more = error.reason == "CHANNEL_NOT_FOUND" and len(servers_of(server)) > 1
    finding = FINDINGS[error.reason].format_map(names) if error.reason in FINDINGS and not says_more else message
    return f"{finding}; {question}{ADVICE[error.reason].format_map(names)}"


class TerminatedError(BaseException):
    """Raised in the main thread on SIGTERM. It is no `Exception`, so that only an explicit handler catches it."""


def raise_on_signals() -> None:
    """Makes Ctrl-C and SIGTERM raise `KeyboardInterrupt` and `TerminatedError`: open transactions are rolled back."""
    _handle(signal.SIGINT, _raising(KeyboardInterrupt))
    _handle(signal.SIGTERM, _raising(TerminatedError))


def end_on_signals() -> None:
    """Makes Ctrl-C and SIGTERM end the process at once, where there is nothing to roll back.

    While Python imports modules or exits, it may swallow what a handler raises, or write a traceback.
    """
    _handle(signal.SIGINT, signal.SIG_DFL)
    _handle(signal.SIGTERM, signal.SIG_DFL)


def _handle(number: signal.Signals, handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    # Shells start programs in the background with Ctrl-C ignored.
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, handler)


@contextmanager
def unwrapped_interrupts() -> Iterator[None]:
    """Raises interrupts that a lock has turned into a RuntimeError.

    If an interrupt arrives while a lock is released, the lock complains that it is not held.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt | TerminatedError):
            raise error.__context__ from None
        raise


def _raising(error: type[BaseException]) -> Callable[[int, FrameType | None], None]:
    """Returns a signal handler that raises an error, delayed while gRPC is starting a call."""

    def handle(number: int, frame: FrameType | None) -> None:
        if not _starts_call(frame):
            raise error
        # By the system's timer: a thread could not be started here, where one may be just starting.
        signal.signal(signal.SIGALRM, lambda _number, _frame: signal.raise_signal(number))
        signal.setitimer(signal.ITIMER_REAL, _DELAY_SECONDS)

    return handle


def _starts_call(frame: FrameType | None) -> bool:
    """Whether gRPC is starting a call. Without the thread that it starts last, its channel would never close."""
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) == ("grpc._channel", "create"):
            return True
        frame = frame.f_back
    return False
