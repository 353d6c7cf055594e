"""Fast starts of the project's programs: a server process imports them once, and forks each of them.

A start of `millraced` spends more than a second of processor time on imports, and the suite starts hundreds. A forked
program is a process of its own: it has arguments, streams, an exit code, and may be killed. In the shell commands of
`run_script`, and where Spark starts its Python (`tests/spark_python.py`), a small program stands for it. Tests of what
is installed run the programs themselves.
"""

import argparse
import atexit
import gc
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import IO, Any, Self

_REQUEST_BYTES_MAX = 128 * 1024
_REQUEST_SECONDS_MAX = 10.0
"""The longest wait for the request of a new connection, during which the server serves no other."""
_CODE_SECONDS_MAX = 60.0
_STREAM_COUNT = 3
_IMPORTED_LATE = (
    "millrace_client.cli.admin_commands",
    "millrace_client.cli.bench_command",
    "millrace_client.cli.dead_letter_commands",
    "millrace_client.cli.put_command",
    "millrace_client.cli.read_commands",
    "millrace_client.cli.top_command",
    "millrace_server.process.daemon",
    "regex",
    "uvloop",
)
"""The modules that the programs import when they need them."""

_STAND_IN = "import sys; sys.path[0] = '{root}'; import tests.fork_server as it; it.stand_for('{program}', '{place}')"
"""Imports nothing of the program that it stands for, which took most of the time of a short command."""

_creation = threading.Lock()
_ROOT = Path(__file__).resolve().parents[1]
_LOST_EXIT_CODE = -signal.SIGKILL


class ForkedProgram:
    """A running program; the part of `subprocess.Popen` that tests need.

    Attributes:
        pid: The number of its process.
        returncode: Its exit code, negative if a signal ended it; set by `poll` or `wait`.
        stdin: The end of the pipe to write to, if `PIPE` was given.
        stdout: The end of the pipe to read from, if `PIPE` was given.
        stderr: The end of the pipe to read from, if `PIPE` was given.
    """

    def __init__(  # noqa: PLR0913 - the parameters of `subprocess.Popen`, and the server to ask
        self,
        program: str,
        arguments: Sequence[str | Path],
        *,
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        stdout: IO[bytes] | int = subprocess.DEVNULL,
        stderr: IO[bytes] | int = subprocess.DEVNULL,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        requests: socket.socket | None = None,
    ) -> None:
        self.returncode: int | None = None
        request = {
            "program": program,
            "arguments": [str(argument) for argument in arguments],
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or Path.cwd()),
            "files_max": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        with ExitStack() as given:
            self.stdin, read_from = _stream(stdin, given, is_input=True)
            self.stdout, written_to = _stream(stdout, given, is_input=False)
            self.stderr, told_to = _stream(stderr, given, is_input=False)
            self._status, its_status = socket.socketpair()
            given.callback(its_status.close)
            handed_over = [its_status.fileno(), read_from, written_to, told_to]
            socket.send_fds(requests or fork_server().requests, [json.dumps(request).encode()], handed_over)
        self._responses = self._status.makefile("r", encoding="ascii")
        self.pid = int(self._responses.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()

    def poll(self) -> int | None:
        """Returns the exit code, or None while the program runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end of the program; returns the exit code.

        Raises:
            subprocess.TimeoutExpired: It still runs after so many seconds.
        """
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = int(self._responses.readline() or _LOST_EXIT_CODE)
            self._responses.close()
            self._status.close()
        return self.returncode

    def communicate(self, typed: bytes = b"", timeout: float | None = None) -> tuple[bytes, bytes]:
        """Feeds these bytes to the program, and waits for its end; returns its output and its errors, where piped.

        Raises:
            subprocess.TimeoutExpired: It still ran after so many seconds; it was killed.
        """
        read: dict[IO[bytes], bytes] = {}

        def read_all(stream: IO[bytes]) -> None:
            read[stream] = stream.read()

        outputs = [stream for stream in (self.stdout, self.stderr) if stream is not None and not stream.closed]
        tasks = [threading.Thread(target=read_all, args=(stream,)) for stream in outputs]
        if self.stdin is not None:
            tasks.append(threading.Thread(target=_feed, args=(self.stdin, typed)))
        for task in tasks:
            task.start()
        try:
            self.wait(timeout)
        finally:
            self.kill()
            for task in tasks:
                task.join()
        output, errors = (read.get(stream, b"") if stream else b"" for stream in (self.stdout, self.stderr))
        return output, errors

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the program has ended."""
        # The fork server may have reaped the program without having reported its end yet.
        with suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run_program(
    program: str, arguments: Sequence[str | Path], *, cwd: Path | None = None, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Runs a program without input to its end, as `subprocess.run` does."""
    pipe = subprocess.PIPE
    with ForkedProgram(program, arguments, stdout=pipe, stderr=pipe, cwd=cwd) as running:
        output, errors = running.communicate(timeout=timeout)
    return subprocess.CompletedProcess([program, *arguments], running.wait(), output.decode(), errors.decode())


def run_code(code: str, *arguments: str, warning_filters: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs `python -c` to its end, from a Python that has imported the project's packages; it ends as Python does.

    Args:
        code: The code, which may be indented.
        arguments: Its arguments.
        warning_filters: The values of Python's option `-W`.
    """
    filters = (word for value in warning_filters for word in ("-W", value))
    return run_program("python", (*filters, "-c", textwrap.dedent(code), *arguments), timeout=_CODE_SECONDS_MAX)


def _feed(stream: IO[bytes], typed: bytes) -> None:
    """Writes to a program, which need not read all of it, and closes the pipe."""
    with suppress(BrokenPipeError), stream:
        stream.write(typed)


def _stream(wanted: IO[bytes] | int, given: ExitStack, *, is_input: bool) -> tuple[IO[bytes] | None, int]:
    """Returns this process's end of a pipe, if there is one, and the program's end."""
    if wanted == subprocess.PIPE:
        reader, writer = os.pipe()
        ours, its = (writer, reader) if is_input else (reader, writer)
        given.callback(os.close, its)
        return os.fdopen(ours, "wb" if is_input else "rb"), its
    if wanted == subprocess.DEVNULL:
        null = os.open(os.devnull, os.O_RDWR)
        given.callback(os.close, null)
        return None, null
    return None, wanted if isinstance(wanted, int) else wanted.fileno()


class ForkServer:
    """The process that forks; it ends with this one, whose end closes the connection.

    Attributes:
        requests: The connection for this process's requests.
        process: The process.
        folder: A directory that is removed when its owner ends.
    """

    def __init__(self, module: str) -> None:
        self.requests, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.folder = Path(mkdtemp(prefix="millrace-forks-"))
        self._place = str(self.folder / "requests")
        self._owner = os.getpid()
        with its, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self._place)
            listener.listen()
            its_listener = listener.fileno()
            command = [sys.executable, "-m", module, str(its_listener)]
            self.process = subprocess.Popen(command, cwd=_ROOT, stdin=its.fileno(), pass_fds=[its_listener])
        atexit.register(self.close)

    def stand_in(self, program: str) -> str:
        """Returns the shell command, without arguments, of a program that stands for one of this server."""
        code = _STAND_IN.format(root=_ROOT, program=program, place=self._place)
        return f'{sys.executable} -S -c "{code}"'

    def close(self) -> None:
        # A process that was forked from the owner, and ends as it would, has copies of these.
        if os.getpid() == self._owner:
            self.requests.close()
            self.process.wait()
            shutil.rmtree(self.folder)


def fork_server(module: str = "tests.fork_server") -> ForkServer:
    """Returns this process's server of a module that calls `serve`; a forked process has its own."""
    # Several threads may ask at once, and a server without a reference would end under the programs it started.
    with _creation:
        return _fork_server_of(os.getpid(), module)


@cache
def _fork_server_of(_owner_pid: int, module: str) -> ForkServer:
    return ForkServer(module)


def stand_for(program: str, place: str) -> None:
    """Is a process for a program of a shell: a forked one with its arguments, streams and signals, and ends as it does.

    Args:
        program: The name of the program.
        place: Where its fork server takes requests.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as requests:
        requests.connect(place)
        running = ForkedProgram(program, sys.argv[1:], stdin=0, stdout=1, stderr=2, requests=requests)

    def pass_on(number: int, _frame: object) -> None:
        # Not `send_signal`, whose look for the end would close what `wait` is waiting for.
        with suppress(ProcessLookupError):
            os.kill(running.pid, number)

    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    exit_code = running.wait()
    if exit_code < 0:
        signal.signal(-exit_code, signal.SIG_DFL)
        os.kill(os.getpid(), -exit_code)
    sys.exit(exit_code)


# The fork server itself.


def _serve_forks(requests: socket.socket, listener: socket.socket) -> dict[str, Any] | None:
    """Forks a child for each request until its owner sends no more.

    Args:
        requests: The connection of the owner.
        listener: Where others connect, each for one request.

    Returns:
        In a child the request that it must execute; None in the server, at its end.
    """
    running: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as selector:
        for source in (requests, listener):
            selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd in running:
                    selector.unregister(key.fd)
                    _report_end(key.fd, *running.pop(key.fd))
                    continue
                is_of_owner = key.fd == requests.fileno()
                message, descriptors = _received(requests) if is_of_owner else _received_once(listener)
                if not message and is_of_owner:
                    return None
                if not message:
                    continue
                pid = os.fork()
                if not pid:
                    # Descriptors of other programs; an open one would hide the end of a stream from them.
                    for process, (_, status) in running.items():
                        os.close(process)
                        status.close()
                    _take_streams(descriptors)
                    return dict(json.loads(message))
                status_fd, *streams = descriptors
                for stream in streams:
                    os.close(stream)
                process = os.pidfd_open(pid)
                running[process] = (pid, socket.socket(fileno=status_fd))
                _report_start(pid, running[process][1])
                selector.register(process, selectors.EVENT_READ)


def _received(requests: socket.socket) -> tuple[bytes, Sequence[int]]:
    """Returns a request and its descriptors: one for its status, and the streams; without bytes at the end."""
    message, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 1 + _STREAM_COUNT)
    return message, descriptors


def _received_once(listener: socket.socket) -> tuple[bytes, Sequence[int]]:
    """Returns the only request of a new connection, which follows at once; without bytes if none comes."""
    connection, _ = listener.accept()
    with connection, suppress(OSError):
        connection.settimeout(_REQUEST_SECONDS_MAX)
        return _received(connection)
    return b"", ()


def _take_streams(descriptors: Sequence[int]) -> None:
    """Makes the descriptors of a request this process's standard streams."""
    status_fd, *streams = descriptors
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for descriptor in (status_fd, *streams):
        os.close(descriptor)
    # Buffering depends on whether they are terminals.
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _report_start(pid: int, status: socket.socket) -> None:
    """Sends the number of a child to the test, or ends it if the test, or the shell in it, has ended."""
    try:
        status.sendall(b"%d\n" % pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)


def _report_end(process: int, pid: int, status: socket.socket) -> None:
    """Sends the exit code of a child that has ended to the test."""
    _, wait_status = os.waitpid(pid, 0)
    os.close(process)
    # The test may have ended.
    with suppress(OSError), status:
        status.sendall(b"%d\n" % os.waitstatus_to_exitcode(wait_status))


def serve(programs: Mapping[str, Callable[[], None]]) -> None:
    """Serves forks of this process until the end of its owner; a child becomes the program, as if started alone.

    Args:
        programs: The programs by their names; they find their arguments in `sys.argv`. What they import should be
            there already.
    """
    exit_codes: list[int] = []
    # The first that is registered runs last.
    atexit.register(_end_at_once, exit_codes)
    # Ctrl-C reaches all processes of the terminal; this one ends with the tests.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Collections in the children leave shared memory shared.
    gc.freeze()
    with socket.socket(fileno=os.dup(0)) as requests, socket.socket(fileno=int(sys.argv[1])) as listener:
        request = _serve_forks(requests, listener)
    if request is None:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    resource.setrlimit(resource.RLIMIT_NOFILE, request["files_max"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = [request["program"], *request["arguments"]]
    _run(programs[request["program"]], exit_codes)


def _run(program: Callable[[], None], exit_codes: list[int]) -> None:
    """Runs a program to its end, and notes its exit code, unless it failed."""
    try:
        program()
    except SystemExit as ended:
        if isinstance(ended.code, int):
            exit_codes.append(ended.code)
        raise
    exit_codes.append(0)


def _end_at_once(exit_codes: list[int]) -> None:
    """Ends this process before Python takes it apart, which would copy its shared memory, and cost more than its start.

    A program that failed, or whose output is lost, ends as Python has it.
    """
    with suppress(OSError):
        for exit_code in exit_codes:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(exit_code)


def _interpret() -> None:
    """Is `python -W FILTER... -c CODE ARGUMENT...`."""
    # What a program leaves behind must not keep Python from taking it apart.
    atexit.unregister(_end_at_once)
    options = argparse.ArgumentParser()
    options.add_argument("-W", action="append", default=[])
    options.add_argument("-c")
    options.add_argument("arguments", nargs=argparse.REMAINDER)
    given = options.parse_args()
    for value in given.W:
        warnings._setoption(value)  # type: ignore[attr-defined] # the stubs have public names only
    main = sys.modules["__main__"] = ModuleType("__main__")
    sys.argv = ["-c", *given.arguments]
    exec(compile(given.c, "<string>", "exec"), vars(main))  # noqa: S102 - a program of the tests


def _main() -> None:
    """Serves the project's programs."""
    import millrace_client.cli.program
    import millrace_server.cli
    from millrace_server.configuration.settings import Settings

    for module in _IMPORTED_LATE:
        import_module(module)
    # Built at its first use, which takes most of a program's start.
    Settings.model_rebuild()
    serve({"millraced": millrace_server.cli.main, "millrace": millrace_client.cli.main, "python": _interpret})


if __name__ == "__main__":
    _main()
