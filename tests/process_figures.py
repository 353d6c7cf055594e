"""Statistics of a process on Linux."""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT, _USER_TICKS, _SYSTEM_TICKS = 1, 11, 12


def cpu_seconds(pid: int) -> float:
    """The processor time used so far."""
    fields = _fields(pid)
    return (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / _TICKS


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
