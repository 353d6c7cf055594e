import asyncio
import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from millrace_server.agent.sources.exec.command import Job, RunningCommand, StderrLog
from millrace_server.agent.supervision import ComponentError
from tests.process_figures import is_running
from tests.waiting import until

LONG_SECONDS = 60.0
"""Longer than any test takes."""


def job(script: str, *, grace_seconds: float = LONG_SECONDS, **changes: Any) -> Job:
    return Job(["/bin/sh", "-c", script], {}, None, grace_seconds)._replace(**changes)


async def start(started_job: Job) -> RunningCommand:
    return await RunningCommand.start(started_job, StderrLog(structlog.stdlib.get_logger("test")))


async def next_line(command: RunningCommand) -> bytes:
    """Reads one line and nothing after it."""
    line = b""
    while not line.endswith(b"\n"):
        byte = await command._output.read(1)
        assert byte, f"the output has ended behind {line!r}"
        line += byte
    return line


async def rest_of(command: RunningCommand) -> bytes:
    """Reads the output to its end."""
    rest = b""
    while data := await command.read():
        rest += data
    return rest


async def pids_from(command: RunningCommand, count: int) -> list[int]:
    """Reads pids that a script writes, a line each."""
    return [int(await next_line(command)) for _ in range(count)]


async def ended(command: RunningCommand) -> int | None:
    assert await rest_of(command) == b""
    return await command.wait()


def open_file_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until_gone(pids: list[int]) -> None:
    await until(lambda: not any(is_running(pid) for pid in pids))


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", -9), ("kill -TERM $$", -15)]
)
async def test_wait_for_a_command_returns_its_exit_code(script: str, code: int) -> None:
    """For a signal the exit code is negative, as in Python's subprocess."""
    assert await ended(await start(job(script))) == code


async def test_output_of_a_command_is_what_it_writes(tmp_path: Path) -> None:
    """The command runs in its directory and with its environment; its standard input is empty."""
    script = 'cat; pwd; printf "%s %s" "$WATER" "$PATH"'
    command = await start(job(script, directory=str(tmp_path), environment={"WATER": "clear"}))
    assert await rest_of(command) == f"{tmp_path}\nclear {os.environ['PATH']}".encode()
    assert await command.wait() == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"command": ["no-such-program"]}, "no-such-program: No such file or directory"),
        ({"command": ["/etc/passwd"]}, "/etc/passwd: Permission denied"),
        ({"directory": "/no/such/directory"}, "/no/such/directory: No such file or directory"),
    ],
)
async def test_start_of_what_cannot_run_says_why(changes: dict[str, Any], reason: str) -> None:
    """The error names the file and the reason."""
    with pytest.raises(ComponentError, match=f"the command cannot be started: {reason}"):
        await start(job("true", **changes))


async def test_terminate_ends_children_and_grandchildren() -> None:
    """This includes processes that have left the group, the session or their parents."""
    script = """
        sleep 1000 & echo $!
        setsid sh -c 'sleep 1000 & echo $!; sleep 1000 & echo $!; wait' &
        (setsid sleep 1000 & echo $!)
        wait
    """
    command = await start(job(script))
    pids = [command.pid, *await pids_from(command, 4)]
    assert all(map(is_running, pids))
    command.terminate()
    assert await ended(command) == -signal.SIGTERM
    assert not any(map(is_running, pids))


async def test_terminate_lets_a_command_end_in_order() -> None:
    """It gets SIGTERM once, and what it writes then is read."""
    command = await start(job("trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.01; done"))
    await next_line(command)
    command.terminate()
    assert await rest_of(command) == b"bye\n"
    assert await command.wait() == 5


async def test_terminate_of_what_will_not_end_kills_it() -> None:
    """The kill follows after the grace time, and includes all children."""
    command = await start(job("trap '' TERM; sleep 1000 & echo $!; wait; while :; do sleep 1; done", grace_seconds=0.1))
    pids = [command.pid, *await pids_from(command, 1)]
    command.terminate()
    assert await ended(command) == -signal.SIGKILL
    assert not any(map(is_running, pids))


async def test_end_of_a_command_ends_what_it_left_behind() -> None:
    """A background process would hold the output open, and each restart would add another one."""
    command = await start(job("sleep 1000 & echo $!; exit 4", grace_seconds=0.1))
    [pid] = await pids_from(command, 1)
    assert await ended(command) == 4
    assert not is_running(pid)


async def test_end_of_a_command_lets_what_it_left_behind_finish() -> None:
    """The last program of a pipeline may still have something to write."""
    command = await start(job("(sleep 0.1; echo late) & exit 0"))
    assert await rest_of(command) == b"late\n"
    assert await command.wait() == 0


async def test_wait_that_is_cancelled_may_follow_once_more() -> None:
    """A source that is cancelled finally waits for its command."""
    command = await start(job("exec >&- 2>&-; exec sleep 1000"))
    assert await rest_of(command) == b""
    waiting = asyncio.create_task(command.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    command.terminate()
    assert await command.wait() == -signal.SIGTERM


async def test_kill_of_the_guard_ends_the_command() -> None:
    """An operator may kill all processes with the server's name."""
    command = await start(job("sleep 1000 & echo $!; wait"))
    pids = [command.pid, *await pids_from(command, 1)]
    os.kill(command._guard.pid, signal.SIGKILL)
    async with asyncio.timeout(LONG_SECONDS):
        assert await ended(command) is None
    await until_gone(pids)


async def test_kill_of_the_guard_ends_what_the_command_has_started() -> None:
    """Processes that write without end are included: the output of the command ends."""
    command = await start(job("yes & wait"))
    assert await next_line(command) == b"y\n"
    os.kill(command._guard.pid, signal.SIGKILL)
    async with asyncio.timeout(LONG_SECONDS):
        # The output is not kept, since it might never end.
        while await command.read():
            pass
        assert await command.wait() is None


async def test_abandon_of_a_command_that_writes_on_and_on_ends_it() -> None:
    """This also holds if its output is not read."""
    command = await start(job("yes", grace_seconds=0.1))
    async with asyncio.timeout(LONG_SECONDS):
        await command.stop()
    assert not is_running(command.pid)
    await command.stop()


async def test_start_that_is_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    """This holds wherever the cancellation happens."""
    pid_file = tmp_path / "pid"
    for delay_seconds in (0.0, 0.005, 0.01, 0.02, 0.04, 0.06):
        starting = asyncio.create_task(start(job(f"echo $$ > {pid_file}; exec sleep 1000")))
        await asyncio.sleep(delay_seconds)
        if starting.cancel():
            await asyncio.wait({starting})
        if not starting.cancelled():
            await starting.result().stop()
        if pid_file.exists() and (text := pid_file.read_text()):
            await until_gone([int(text)])


async def test_end_of_a_command_leaves_no_file_open() -> None:
    """A command that is restarted for months would otherwise use up the file descriptors."""
    counts = []
    # The loop itself opens a file with its first connection.
    for _ in range(4):
        assert await ended(await start(job("echo oops >&2"))) == 0
        counts.append(open_file_count())
    # A leak grows in every round; what other tests have left in this process does not.
    assert min(later - earlier for earlier, later in pairwise(counts)) <= 0


async def test_read_of_a_command_that_writes_on_and_on_leaves_the_loop_to_others() -> None:
    """Neither of the two outputs may occupy the event loop."""
    command = await start(job("yes >&2 & yes", grace_seconds=0.1))
    async with asyncio.timeout(LONG_SECONDS):
        assert (await command.read()).startswith(b"y\n")
        stopping = asyncio.get_running_loop().call_later(0.05, command.terminate)
        # The output is not kept, since it grows without end.
        while await command.read():
            pass
        await command.wait()
        assert stopping.when() <= asyncio.get_running_loop().time()


async def test_errors_of_a_command_are_logged() -> None:
    """Lines of its standard error do not become events."""
    with capture_logs() as log:
        command = await start(job("echo oops >&2; echo fine"))
        assert await rest_of(command) == b"fine\n"
        await command.wait()
    assert [entry["line"] for entry in log if entry["event"] == "the command wrote to standard error"] == ["oops"]
