"""Commands of a real daemon: their lines are stored, and they never outlive the daemon."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.conftest import StartMillraced
from tests.integration.daemon_queries import component_of, stored_bodies, stored_count
from tests.millraced import Millraced
from tests.process_figures import is_running, resident_bytes
from tests.waiting import wait_until

FILE_CHANNEL_TOML = """
[channels.lines]
type = "file"
capacity = 1000000
min_free_bytes = 0
"""
MIB = 1 << 20


def source_of(script: str, **settings: str) -> str:
    """A configuration with a source that runs a script."""
    lines = "\n".join(f"{key} = {value}" for key, value in settings.items())
    return f"""
        {FILE_CHANNEL_TOML}
        [sources.in]
        type = "exec"
        channels = ["lines"]
        shell = true
        {lines}
        command = '''{script}'''
    """


def pids_in(server: Millraced, count: int) -> list[int]:
    """The process ids that a script has written, one per line."""
    wait_until(lambda: stored_count(server) >= count)
    return [int(body) for body in stored_bodies(server)[:count]]


def none_runs(pids: list[int]) -> bool:
    return not any(map(is_running, pids))


# What a command may leave behind: a child, one in a session of its own, one whose parent has ended, and one that
# ignores SIGTERM.
_FAMILY = """
echo $$
sleep 1000 & echo $!
setsid sh -c 'sleep 1000 & echo $!; wait' &
(setsid sleep 1000 & echo $!)
sh -c 'trap "" TERM; echo $$; while :; do sleep 0.1; done' &
wait
"""


def test_kill_of_the_daemon_ends_the_command_and_all_that_it_has_started(start_millraced: StartMillraced) -> None:
    """This holds also for SIGKILL, after which the daemon can do nothing any more.

    Flume left the child running.
    """
    server = start_millraced(source_of(_FAMILY, grace_seconds="0.3"))
    pids = pids_in(server, 5)
    assert all(map(is_running, pids))
    server.kill()
    wait_until(lambda: none_runs(pids))


def test_kill_of_the_daemon_and_of_the_guard_ends_the_command(start_millraced: StartMillraced) -> None:
    """After the daemon and its guard processes are killed, the kernel ends the command."""
    server = start_millraced(source_of("echo $PPID; echo $$; exec sleep 1000"))
    guard, command = pids_in(server, 2)
    server.send(signal.SIGSTOP)
    os.kill(guard, signal.SIGKILL)
    wait_until(lambda: none_runs([guard, command]))
    server.kill()


def test_stop_of_the_daemon_ends_them_and_stores_their_last_lines(start_millraced: StartMillraced) -> None:
    """The command may end in order, and no output of it is lost."""
    script = "trap 'echo bye; exit 0' TERM; sleep 1000 & echo $!; echo $$; while :; do sleep 0.05; done"
    server = start_millraced(source_of(script, linger_seconds="0.1", grace_seconds="10.0"))
    pids = pids_in(server, 2)
    assert server.stop() == 0
    assert none_runs(pids)
    assert server.other_output == []
    after = start_millraced(FILE_CHANNEL_TOML, server.data_dir)
    assert stored_bodies(after)[2:] == [b"bye"]


def test_kill_of_the_daemon_while_it_stores_leaves_whole_lines_in_order(start_millraced: StartMillraced) -> None:
    """Stored lines are there after the restart; lines read but not stored are lost, as the warning says."""
    script = "echo $$; seq 1 1000000000"
    server = start_millraced(source_of(script))
    wait_until(lambda: stored_count(server) > 5_000)
    server.wait_for("a crash loses what this source has read but not stored; sources that read files lose nothing")
    server.kill()
    after = start_millraced(FILE_CHANNEL_TOML, server.data_dir)
    pid, *lines = stored_bodies(after)
    assert lines == [b"%d" % number for number in range(1, len(lines) + 1)]
    wait_until(lambda: none_runs([int(pid)]))


def test_end_of_a_command_is_shown_in_log_and_state(start_millraced: StartMillraced) -> None:
    """In Flume the source seemed to continue, and logged nothing."""
    server = start_millraced(source_of("echo one; echo oops >&2; exit 3", restart="'never'"))
    ended = server.wait_for("the source has ended")
    assert (ended["source"], ended["reason"]) == ("in", "the command exited with code 3")
    component = component_of(server, "in")
    assert (component["State"], component["Reason"]) == ("stopped", "the command exited with code 3")
    said = server.wait_for("the command wrote to standard error")
    assert (said["source"], said["line"], said["level"]) == ("in", "oops", "warning")
    assert stored_bodies(server) == [b"one"]


def test_command_that_writes_more_than_is_taken_is_held_up(start_millraced: StartMillraced) -> None:
    """A full channel stops the reading and so blocks the command; memory does not grow."""
    config = """
        [channels.lines]
        type = "memory"
        capacity = 1000
        keep_alive_seconds = 0.1
        [sources.in]
        type = "exec"
        channels = ["lines"]
        command = ["yes"]
        grace_seconds = 0.1
    """
    server = start_millraced(config)
    wait_until(lambda: stored_count(server) == 1_000)
    wait_until(lambda: component_of(server, "in")["State"] == "backing off")
    before = resident_bytes(server.process.pid)
    wait_until(lambda: component_of(server, "in")["FailureCount"] >= 2)
    assert resident_bytes(server.process.pid) - before < 8 * MIB
    assert server.stop() == 0


@pytest.mark.torture
def test_kills_of_the_daemon_at_any_moment_leave_no_process_behind(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """The kills happen before, during and after the start of the command."""
    choice = random.Random(5)
    pids_file = tmp_path / "pids"
    pids_file.touch()
    script = (
        f"echo $$ >> {pids_file}; sleep 1000 & echo $! >> {pids_file}; setsid sleep 1000 & echo $! >> {pids_file}; wait"
    )
    for _ in range(30):
        server = start_millraced(source_of(script, grace_seconds="0.1"))
        time.sleep(choice.uniform(0.0, 0.1))
        server.kill()
        wait_until(lambda: none_runs([int(pid) for pid in pids_file.read_text().split()]))
    assert pids_file.read_text()
