"""What `millrace-spark` tells its caller on leaving: the one table of exit codes."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended. Numbers never change: scripts decide by them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    BAD_LINES = 4
    LATER = 5
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    ExitCode.OK: "done; with --follow also where Ctrl-C or SIGTERM ended it",
    ExitCode.FAILED: "refused or failed, as the message says; the next start goes on, nothing lost or doubled",
    ExitCode.USAGE: "the command line or the configuration is wrong",
    ExitCode.BAD_LINES: "done, but there were bad lines (with --strict only)",
    ExitCode.LATER: "another millrace-spark works on this folder; try again when it has ended",
    ExitCode.INTERRUPTED: "ended by Ctrl-C before all was landed, or at once by a second one; the next start goes on",
    ExitCode.TERMINATED: "ended by SIGTERM before all was landed; the next start goes on",
}
"""For each code one phrase, as `millrace-spark --help` shows it."""
