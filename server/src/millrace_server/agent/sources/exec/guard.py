"""Runs one command, and ends it with all its descendants when its parent requests that or exits.

This is a standalone program that needs only Python: `python -I -S guard.py FD`, where FD is a socket to the parent. The
parent sends one line of JSON, the job, and keeps the socket open for as long as the command is to run; the kernel
closes it when the parent exits, even by SIGKILL. The guard responds with lines of JSON: `{"pid": 17}` or
`{"error": "..."}`, and finally `{"exit_code": 3}`, negative for a signal. The command inherits the guard's standard
output and error.

No process escapes: the guard is the "subreaper" of all descendants of the command, so a grandchild that has left its
process group, its session or its parent is still found. If the guard itself is killed, the kernel kills the command.
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
_KILL_RETRY_SECONDS = 0.2
_KILLS_MAX = 50
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PARENT_PID_FIELD = 1


class _Guard:
    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._is_stopping = False
        self._wake_reader, wake_writer = os.pipe()
        os.set_blocking(wake_writer, False)
        # Each signal writes a byte to this pipe; the handler is needed only for stop signals.
        signal.set_wakeup_fd(wake_writer)
        for number in (signal.SIGCHLD, *_STOP_SIGNALS):
            signal.signal(number, self._on_signal)
        self.pid = 0
        self.exit_code: int | None = None

    def _on_signal(self, number: int, _frame: object) -> None:
        self._is_stopping |= number in _STOP_SIGNALS

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
            command = subprocess.Popen(  # noqa: S603 - running the user's command is the purpose
                job["command"],
                cwd=job["directory"],
                env={**os.environ, **job["environment"]},
                start_new_session=True,
                preexec_fn=die_with_the_guard,  # noqa: PLW1509 - the guard has one thread, so no lock can be held
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._send(error=_describe(error))
            return
        self.pid = command.pid
        # Only the command and its descendants now have the output open, so it ends when they do.
        devnull = os.open(os.devnull, os.O_RDWR)
        os.dup2(devnull, 1)
        self._send(pid=self.pid)
        self._supervise(float(job["grace_seconds"]))
        self._send(exit_code=self.exit_code)

    def _supervise(self, grace_seconds: float) -> None:
        self._wait(lambda: self.exit_code is not None)
        # Remaining processes, such as the end of a pipeline, may end by themselves.
        if not self._is_stopping and self._wait(lambda: not self._has_children(), grace_seconds):
            return
        self._signal_all(signal.SIGTERM)
        # Further requests to stop change nothing from here on.
        if self._wait(lambda: not self._has_children(), grace_seconds, is_interruptible=False):
            return
        for _ in range(_KILLS_MAX):
            # Repeated, since a dying process may just have started another one.
            self._signal_all(signal.SIGKILL)
            if self._wait(lambda: not self._has_children(), _KILL_RETRY_SECONDS, is_interruptible=False):
                return
        sys.stderr.write(f"processes {_descendants(os.getpid())} cannot be ended\n")

    def _wait(
        self, is_over: Callable[[], bool], seconds: float | None = None, *, is_interruptible: bool = True
    ) -> bool:
        """Waits until the condition is true, the time has passed, or the guard must stop."""
        give_up = None if seconds is None else time.monotonic() + seconds
        while True:
            self._reap()
            if is_over():
                return True
            remaining = None if give_up is None else give_up - time.monotonic()
            if (is_interruptible and self._is_stopping) or (remaining is not None and remaining <= 0):
                return False
            watched = [self._wake_reader] if self._is_stopping else [self._wake_reader, self._link.fileno()]
            ready, _, _ = select.select(watched, [], [], remaining)
            if self._wake_reader in ready:
                os.read(self._wake_reader, 4096)
            if self._link.fileno() in ready:
                # The parent sends nothing after the job, so this is the end of the stream.
                self._is_stopping = True

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
            # The process may have ended, or have other privileges, such as `sudo`, which ends when its child does.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _send(self, **fields: object) -> None:
        try:
            self._link.sendall(json.dumps(fields).encode() + b"\n")
        except OSError:
            # The parent has exited.
            self._is_stopping = True


def _descendants(root: int) -> list[int]:
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
    # The name in parentheses may itself contain parentheses.
    return int(stat.rpartition(b")")[2].split()[_PARENT_PID_FIELD])


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _read_job(link: socket.socket) -> dict[str, Any] | None:
    received = b""
    while not received.endswith(b"\n"):
        chunk = link.recv(1 << 16)
        received += chunk
        if not chunk or len(received) > _JOB_BYTES_MAX:
            return None
    job: dict[str, Any] = json.loads(received)
    return job


def main() -> None:
    """Runs the job received through the socket whose file descriptor is the only argument."""
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    guard = _Guard(link)
    if (job := _read_job(link)) is not None:
        guard.run(job)


if __name__ == "__main__":
    main()
