"""Runs one command, and ends it with all its descendants when whoever asked for it asks for that, or is gone.

A program of its own, which needs nothing but Python: `python -I -S guard.py FD`. FD is a socket to its parent. The
parent sends one line of JSON, the job, and keeps the socket open for as long as the command shall run; the kernel
closes it when the parent dies, of SIGKILL too. The guard answers in lines of JSON: `{"pid": 17}` or `{"error": "..."}`,
and in the end `{"exit_code": 3}`, negative for a signal. The command has the guard's standard output and error.

No process escapes: the guard is the parent of last resort (a "subreaper") of whatever descends from the command, so
that a grandchild that left its group, its session or its parent is still found. Should the guard itself be killed, the
kernel kills the command.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_JOB_BYTES_MAX = 16 << 20
_KILL_AGAIN_SECONDS = 0.2
_KILLS_MAX = 50
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PARENT_PID_FIELD = 1


class _Guard:
    """One command, and how it goes.

    Attributes:
        pid: The command's.
        exit_code: The command's, once it has ended.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._is_told_to_stop = False
        self._wake_reader, wake_writer = os.pipe()
        os.set_blocking(wake_writer, False)
        # Every signal is told by a byte in this pipe; its handler need do nothing.
        signal.set_wakeup_fd(wake_writer)
        for number in (signal.SIGCHLD, *_STOP_SIGNALS):
            signal.signal(number, self._note)
        self.pid = 0
        self.exit_code: int | None = None

    def _note(self, number: int, _frame: object) -> None:
        self._is_told_to_stop |= number in _STOP_SIGNALS

    def run(self, job: dict[str, Any]) -> None:
        """Runs the job; returns once the command and all its descendants have ended."""
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        guard_pid = os.getpid()

        def die_with_the_guard() -> None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != guard_pid:
                os._exit(1)

        try:
            command = subprocess.Popen(  # noqa: S603 - running the user's command is what this is for
                job["command"],
                cwd=job["directory"],
                env={**os.environ, **job["environment"]},
                start_new_session=True,
                preexec_fn=die_with_the_guard,  # noqa: PLW1509 - the guard has one thread, so that no lock can be held
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._tell(error=_described(error))
            return
        self.pid = command.pid
        # Only the command and its descendants hold the output now: its end is their end.
        silence = os.open(os.devnull, os.O_RDWR)
        os.dup2(silence, 1)
        self._tell(pid=self.pid)
        self._attend(float(job["grace_seconds"]))
        self._tell(exit_code=self.exit_code)

    def _attend(self, grace_seconds: float) -> None:
        self._wait(lambda: self.exit_code is not None)
        # What the command has left running, such as the far end of a pipeline, may end by itself.
        if not self._is_told_to_stop and self._wait(lambda: not self._has_children(), grace_seconds):
            return
        self._signal_all(signal.SIGTERM)
        # Being told to stop once more changes nothing from here on.
        if self._wait(lambda: not self._has_children(), grace_seconds, heeds_stop=False):
            return
        for _ in range(_KILLS_MAX):
            # Again, since what dies may just have started something.
            self._signal_all(signal.SIGKILL)
            if self._wait(lambda: not self._has_children(), _KILL_AGAIN_SECONDS, heeds_stop=False):
                return
        _complain(f"processes {_descendants(os.getpid())} cannot be ended")

    def _wait(self, is_over: Callable[[], bool], seconds: float | None = None, *, heeds_stop: bool = True) -> bool:
        """Waits until something is over, so many seconds at most, or until the guard is told to stop."""
        give_up = None if seconds is None else time.monotonic() + seconds
        while True:
            self._reap()
            if is_over():
                return True
            remaining = None if give_up is None else give_up - time.monotonic()
            if (heeds_stop and self._is_told_to_stop) or (remaining is not None and remaining <= 0):
                return False
            watched = [self._wake_reader] if self._is_told_to_stop else [self._wake_reader, self._link.fileno()]
            ready, _, _ = select.select(watched, [], [], remaining)
            if self._wake_reader in ready:
                os.read(self._wake_reader, 4096)
            if self._link.fileno() in ready:
                # The parent says nothing after the job: this is the end of what it sends.
                self._is_told_to_stop = True

    def _reap(self) -> None:
        while self._has_children():
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid == self.pid:
                self.exit_code = os.waitstatus_to_exitcode(status)

    def _has_children(self) -> bool:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in _descendants(os.getpid()):
            # One that has ended, or one with rights of its own such as `sudo`, which ends when what it runs does.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _tell(self, **said: object) -> None:
        try:
            self._link.sendall(json.dumps(said).encode() + b"\n")
        except OSError:
            # The parent is gone; there is nobody to tell.
            self._is_told_to_stop = True


def _descendants(root: int) -> list[int]:
    """All processes that descend from one."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        if (parent := _parent_of(process)) is not None:
            children.setdefault(parent, []).append(int(process.name))
    found = list(children.get(root, ()))
    for pid in found:
        found += children.get(pid, ())
    return found


def _parent_of(process: Path) -> int | None:
    try:
        stat = (process / "stat").read_bytes()
    except OSError:
        return None
    # The name in parentheses may hold anything, parentheses too.
    return int(stat.rpartition(b")")[2].split()[_PARENT_PID_FIELD])


def _described(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _complain(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


def _read_job(link: socket.socket) -> dict[str, Any] | None:
    received = b""
    while not received.endswith(b"\n"):
        piece = link.recv(1 << 16)
        received += piece
        if not piece or len(received) > _JOB_BYTES_MAX:
            return None
    job: dict[str, Any] = json.loads(received)
    return job


def main() -> None:
    """Runs the job that comes through the socket whose number is the only argument."""
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    guard = _Guard(link)
    if (job := _read_job(link)) is not None:
        guard.run(job)


if __name__ == "__main__":
    main()
