"""Statistics of a process, and of the machine, on Linux."""

import os
import time
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT = 1
_IDLE_TICKS = slice(4, 6)
_SCHEDULED = 2


def cpu_seconds(pid: int) -> float:
    """The processor time used so far."""
    # The clock of another process, numbered as clock_getcpuclockid(3) does; /proc counts in steps of 10 ms.
    return time.clock_gettime(~pid << 3 | _SCHEDULED)


def idle_seconds() -> float:
    """The time that the machine's cores were idle so far, all together, in steps of 10 ms."""
    line = Path("/proc/stat").read_text().partition("\n")[0]
    return sum(map(int, line.split()[_IDLE_TICKS])) / _TICKS


def parent_of(pid: int) -> int:
    """The id of its parent process."""
    return int(_fields(pid)[_PARENT])


def resident_bytes(pid: int) -> int:
    """The resident memory."""
    return int(_status(pid, "VmRSS")) * 1024


def thread_count(pid: int) -> int:
    """The number of threads."""
    return int(_status(pid, "Threads"))


def _fields(pid: int) -> list[str]:
    """The fields of `stat` after the program's name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _status(pid: int, field: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [value] = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return value


def is_running(pid: int) -> bool:
    """Whether a process exists; one that has ended but was not waited for does not count."""
    try:
        return _status(pid, "State") != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
