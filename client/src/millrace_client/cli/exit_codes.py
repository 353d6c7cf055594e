"""What `millrace` tells its caller on leaving: the one table of exit codes."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended. Numbers never change: scripts decide by them."""

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
    ExitCode.REFUSED: "refused by the server, or failed; a repeat of the same cannot help",
    ExitCode.USAGE: "the command line or the input is wrong",
    ExitCode.UNREACHABLE: "no server answers at the address, or not in time",
    ExitCode.EMPTY: "there was no event to take or to show",
    ExitCode.LATER: "refused for now (channel full or claimed, server busy); try again later",
    ExitCode.INTERRUPTED: "ended by Ctrl-C (`tail` and `top` end so with 0)",
    ExitCode.BROKEN_PIPE: "whoever read the output has gone",
    ExitCode.TERMINATED: "ended by SIGTERM",
}
"""For each code one phrase, as `millrace --help` shows it."""
