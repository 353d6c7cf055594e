import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from millrace_server.agent.components import ComponentState
from millrace_server.agent.sources.exec.command import Job, RunningCommand, StderrLog
from millrace_server.agent.sources.exec.source import ExecSourceConfig
from millrace_server.agent.supervision import Backoff
from tests.agent_components import registry_with
from tests.process_figures import is_running
from tests.unit.agent.sources.running_sources import bodies_in, running_source, take
from tests.waiting import until


@pytest.fixture
def log() -> Iterator[list[Any]]:
    with capture_logs() as entries:
        yield entries


def shell(script: str, **settings: Any) -> ExecSourceConfig:
    tables = {"type": "exec", "channels": ["lines"], "command": script, "shell": True, **settings}
    return ExecSourceConfig.model_validate({"grace_seconds": 0.2, "restart": "never", **tables}, strict=True)


async def test_run_of_a_command_that_ends_stores_all_and_says_how_it_ended(tmp_path: Path, log: list[Any]) -> None:
    """The state says that the source will deliver nothing more."""
    registry = registry_with("lines")
    async with running_source(shell("seq 1 50; printf last; exit 7"), registry, tmp_path) as component:
        await until(lambda: component.state is ComponentState.STOPPED)
        assert component.reason == "the command exited with code 7"
        assert bodies_in(registry) == [*(b"%d" % number for number in range(1, 51)), b"last"]
    assert [entry["event"] for entry in log if entry.get("reason")] == ["the source has ended"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("kill -KILL $$", "was terminated by SIGKILL"),
        ("kill -40 $$", "was terminated by signal 40"),
        ("exit 0", "exited with code 0"),
    ],
)
async def test_end_of_a_command_in_any_way_is_reported(tmp_path: Path, script: str, reason: str) -> None:
    """Signals are shown by name if they have one."""
    async with running_source(shell(script), registry_with("lines"), tmp_path) as component:
        await until(lambda: component.state is ComponentState.STOPPED)
        assert component.reason.endswith(reason)


@pytest.mark.parametrize(("restart", "code"), [("always", 0), ("always", 1), ("on_failure", 1)])
async def test_run_of_a_command_that_is_to_be_restarted_restarts_it(tmp_path: Path, restart: str, code: int) -> None:
    """The state reports the delay; every line of every run is stored."""
    registry = registry_with("lines")
    config = shell(f"echo line; exit {code}", restart=restart)
    async with running_source(config, registry, tmp_path) as component:
        await until(lambda: component.state is ComponentState.BACKING_OFF)
        assert component.reason == f"the command exited with code {code}; it is started again"
        await until(lambda: component.event_count >= 2)
    assert set(bodies_in(registry)) == {b"line"}


async def test_run_of_a_command_that_ends_again_and_again_reports_it_once(
    tmp_path: Path, log: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never worked, so there is nothing new to log."""
    monkeypatch.setattr("millrace_server.agent.runners.Backoff", lambda: Backoff(0.01, 0.01))
    monkeypatch.setattr("millrace_server.agent.sources.exec.source._STABLE_SECONDS", 3_600.0)
    async with running_source(shell("exit 1", restart="always"), registry_with("lines"), tmp_path) as component:
        await until(lambda: component.failure_count >= 5)
        assert component.state is ComponentState.BACKING_OFF
    assert [entry["event"] for entry in log if entry["event"] in {"backs off", "works again"}] == ["backs off"]


async def test_run_of_a_command_that_lives_after_a_restart_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes a command without output."""
    monkeypatch.setattr("millrace_server.agent.sources.exec.source._STABLE_SECONDS", 0.05)
    script = f"test -e {tmp_path}/tried && sleep 1000; touch {tmp_path}/tried; exit 1"
    async with running_source(shell(script, restart="always"), registry_with("lines"), tmp_path / "data") as component:
        await until(lambda: component.state is ComponentState.BACKING_OFF)
        await until(lambda: component.state is ComponentState.RUNNING)


async def test_run_of_a_command_that_succeeds_restarts_it_not_on_failure(tmp_path: Path) -> None:
    """After a success there is no restart."""
    async with running_source(shell("exit 0", restart="on_failure"), registry_with("lines"), tmp_path) as component:
        await until(lambda: component.state is ComponentState.STOPPED)


@pytest.mark.parametrize(
    ("restart", "state"), [("never", ComponentState.FAILED), ("on_failure", ComponentState.BACKING_OFF)]
)
async def test_run_of_a_command_that_is_not_there_reports_it(
    tmp_path: Path, restart: str, state: ComponentState
) -> None:
    """The program may be installed later; without restarts there is no further attempt."""
    config = ExecSourceConfig(type="exec", channels=["lines"], command=["no-such-program"], restart=restart)  # type: ignore[arg-type]  # one of the words
    async with running_source(config, registry_with("lines"), tmp_path) as component:
        await until(lambda: component.state is state)
        assert "no-such-program: No such file or directory" in component.reason


async def test_lines_that_are_too_few_for_a_batch_are_stored_soon(tmp_path: Path) -> None:
    """Flume kept them until there was a further one."""
    registry = registry_with("lines")
    async with running_source(shell("echo one; sleep 1000", linger_seconds=0.01), registry, tmp_path):
        await until(lambda: bodies_in(registry) == [b"one"])


async def test_run_with_a_full_channel_waits_and_loses_nothing(tmp_path: Path) -> None:
    """The command is neither ended nor read from, until there is space; then all its lines come, in order.

    Flume ended the command with the first batch that the channel refused, and lost what it had read.
    """
    registry = registry_with("lines", capacity=100, keep_alive_seconds=0.01)
    count = 30_000
    config = shell(f"seq 1 {count}", batch_events_max=50)
    async with running_source(config, registry, tmp_path) as component:
        await until(lambda: component.state is ComponentState.BACKING_OFF)
        assert "CHANNEL_FULL" in component.reason
        assert len(bodies_in(registry)) <= 100
        taken: list[bytes] = []
        while len(taken) < count:
            taken += await take(registry, 100)
        assert taken == [b"%d" % number for number in range(1, count + 1)]
        await until(lambda: component.state is ComponentState.STOPPED)


async def test_run_with_events_that_cannot_be_stored_continues(tmp_path: Path) -> None:
    """Broken UTF-8, too long lines, and events that the channel refuses do not end the source.

    Flume's source ended with the first bad event.
    """
    registry = registry_with("lines", body_bytes_max=1_000)
    script = "echo good; printf 'caf\\351\\n'; head -c 5000 /dev/zero | tr '\\0' x; echo; seq 1 3"
    config = shell(script, line_bytes_max=2_000, long_lines="truncate")
    async with running_source(config, registry, tmp_path) as component:
        await until(lambda: component.state is ComponentState.STOPPED)
        assert component.reason == "the command exited with code 0"
    assert bodies_in(registry) == [b"good", b"caf\xe9", b"1", b"2", b"3"]


async def test_run_with_a_line_that_must_not_be_fails_and_ends_the_command(tmp_path: Path) -> None:
    """If the charset is enforced, the source names the invalid line; the lines before it are stored."""
    registry = registry_with("lines")
    script = "echo $$; printf 'caf\\351\\n'; sleep 0.05; while :; do echo more; sleep 0.01; done"
    async with running_source(shell(script, decode_errors="fail"), registry, tmp_path) as component:
        await until(lambda: component.state is ComponentState.FAILED)
        assert "is not in utf-8" in component.reason
        [pid] = bodies_in(registry)
        assert not is_running(int(pid))


async def test_stop_of_the_source_stores_what_the_command_has_written(tmp_path: Path) -> None:
    """The command gets SIGTERM, may write its last lines, and all of them are stored, however few."""
    registry = registry_with("lines")
    ready = tmp_path / "ready"
    script = (
        "trap 'echo bye; printf unfinished; exit 0' TERM; echo $$; echo one; "
        f"touch {ready}; while :; do sleep 0.01; done"
    )
    config = shell(script, linger_seconds=3_600.0, grace_seconds=20.0)
    async with running_source(config, registry, tmp_path / "data") as component:
        await until(ready.exists)
    pid, *rest = bodies_in(registry)
    assert rest == [b"one", b"bye", b"unfinished"]
    assert component.state is ComponentState.STOPPED
    assert not is_running(int(pid))


async def test_stop_of_the_source_while_the_command_starts_stores_what_it_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command may have started before its pid is known."""
    registry = registry_with("lines")
    ready, start, has_begun = tmp_path / "ready", RunningCommand.start, asyncio.Event()

    async def start_slowly(job: Job, stderr_log: StderrLog) -> RunningCommand:
        has_begun.set()
        command = await start(job, stderr_log)
        await until(ready.exists)
        return command

    monkeypatch.setattr(RunningCommand, "start", start_slowly)
    config = shell(f"echo one; touch {ready}; exec sleep 1000", grace_seconds=20.0)
    async with running_source(config, registry, tmp_path / "data"):
        await has_begun.wait()
    assert bodies_in(registry) == [b"one"]


async def test_stop_of_the_source_with_a_full_channel_says_what_is_lost(
    tmp_path: Path, log: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events cannot be kept, and the loss is always logged."""
    monkeypatch.setattr("millrace_server.agent.sources.exec.source._DRAIN_SECONDS", 0.1)
    registry = registry_with("lines", capacity=10, keep_alive_seconds=0.01)
    async with running_source(shell("seq 1 25; sleep 1000", batch_events_max=10), registry, tmp_path) as component:
        await until(lambda: component.state is ComponentState.BACKING_OFF)
    [reported] = [entry for entry in log if "events_lost" in entry]
    assert reported["events_lost"] == 15
    assert reported["event"] == "the source stops before everything that it has read could be stored"


async def test_start_of_the_source_warns_of_its_promise_once(tmp_path: Path, log: list[Any]) -> None:
    """The warning is not repeated when the command is restarted."""
    async with running_source(shell("exit 1", restart="always"), registry_with("lines"), tmp_path) as component:
        await until(lambda: component.failure_count >= 2)
    warnings = [entry for entry in log if "a crash loses" in entry["event"]]
    assert [(entry["log_level"], entry["source"]) for entry in warnings] == [("warning", "in")]


async def test_kill_of_the_guard_restarts_the_command(tmp_path: Path) -> None:
    """It counts as a failure of the command."""
    registry = registry_with("lines")
    config = shell("echo $PPID; exec sleep 1000", restart="on_failure", linger_seconds=0.0)
    async with running_source(config, registry, tmp_path):
        await until(lambda: len(bodies_in(registry)) == 1)
        os.kill(int(bodies_in(registry)[0]), signal.SIGKILL)
        await until(lambda: len(bodies_in(registry)) == 2)


async def test_lines_of_several_that_are_one_event_are_stored_without_a_further_one(tmp_path: Path) -> None:
    """An event that may have further lines waits for a limited time."""
    registry = registry_with("lines")
    multiline = {"pattern": "^ ", "role": "continues", "timeout_seconds": 0.05}
    config = shell("printf 'one\\n more\\ntwo\\n'; sleep 1000", multiline=multiline, linger_seconds=0.01)
    async with running_source(config, registry, tmp_path):
        await until(lambda: bodies_in(registry) == [b"one\n more", b"two"])
