import threading
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from millrace_server.agent.agent import Agent
from millrace_server.agent.components import ComponentKind, ComponentState
from millrace_server.agent.settings import AgentConfig
from millrace_server.agent.sources.taildir.config import TaildirSourceConfig
from millrace_server.agent.sources.taildir.positions import POSITIONS_FILE
from millrace_server.channels.registry import ChannelRegistry
from tests.agent_components import agent_on, registry_with, until_state
from tests.channel_events import numbered as numbered_events
from tests.unit.agent.sources.taildir.tailing import append, config_of, numbered
from tests.waiting import WAIT_SECONDS_MAX, until


@pytest.fixture
async def registry() -> ChannelRegistry:
    return registry_with("orders", capacity=10_000, transaction_capacity=300)


@pytest.fixture
async def agent(registry: ChannelRegistry, tmp_path: Path) -> AsyncIterator[Agent]:
    async with agent_on(registry, tmp_path) as running:
        yield running


def start(agent: Agent, config: TaildirSourceConfig) -> None:
    agent.start(AgentConfig(cast("Any", {"app": config}), {}))


def rows(registry: ChannelRegistry) -> list[tuple[Mapping[str, str], bytes]]:
    """The events in the channel, in order."""
    queue = registry.get("orders")._contents.queue
    return [row for batch in queue for row in batch.window.rows()]


def bodies(registry: ChannelRegistry) -> list[bytes]:
    queue = registry.get("orders")._contents.queue
    return [body for _, body in numbered_events(queue)]


def holds(registry: ChannelRegistry, expected: list[bytes]) -> Callable[[], bool]:
    return lambda: bodies(registry) == expected


async def test_run_brings_lines_with_the_headers_that_are_asked_for(
    agent: Agent, registry: ChannelRegistry, logs: Path, log: Path
) -> None:
    """The headers of an event contain its origin: its file, its offset, and the headers of the pattern."""
    append(log, b"one", b"two")
    other = logs / "other.txt"
    append(other, b"three")
    config = config_of(
        logs / "*.log",
        logs / "*",
        file_header="file",
        basename_header="name",
        byte_offset_header="offset",
        path_headers={str(logs / "*.log"): {"kind": "log"}, str(logs / "*"): {"kind": "other"}},
    )
    start(agent, config)
    await until(lambda: len(bodies(registry)) == 3)
    assert rows(registry) == [
        ({"kind": "log", "file": str(log), "name": "app.log", "offset": "0"}, b"one"),
        ({"kind": "log", "file": str(log), "name": "app.log", "offset": "4"}, b"two"),
        ({"kind": "other", "file": str(other), "name": "other.txt", "offset": "0"}, b"three"),
    ]


async def test_run_without_further_settings_adds_no_headers(agent: Agent, registry: ChannelRegistry, log: Path) -> None:
    """Headers that are not configured cost nothing."""
    append(log, b"one")
    start(agent, config_of(log))
    await until(lambda: rows(registry) == [({}, b"one")])


async def test_run_keeps_the_channels_limits(agent: Agent, registry: ChannelRegistry, log: Path) -> None:
    """A batch exceeds neither the channel's limits nor the source's."""
    append(log, *numbered(0, 1_000))
    start(agent, config_of(log, batch_events_max=400))
    await until(holds(registry, numbered(0, 1_000)))
    assert registry.get("orders")._contents.counters.commits == 4


async def test_run_into_a_full_channel_waits_and_loses_nothing(tmp_path: Path, log: Path) -> None:
    """While the channel is full nothing is lost, and the state has the reason; then the source continues."""
    append(log, *numbered(0, 100))
    small = registry_with("orders", capacity=30, transaction_capacity=10, keep_alive_seconds=0.0)
    async with agent_on(small, tmp_path) as agent:
        start(agent, config_of(log))
        taken: list[bytes] = []
        while len(taken) < 100:
            await until(lambda: bool(bodies(small)))
            await until_state(agent.components, ComponentKind.SOURCE, "app", ComponentState.BACKING_OFF)
            taken += bodies(small)
            await small.get("orders").purge()
            if len(taken) == 90:
                break
        await until(lambda: len(bodies(small)) == 10)
        assert taken + bodies(small) == numbered(0, 100)


async def test_stop_saves_positions_and_ends_its_thread(
    agent: Agent, registry: ChannelRegistry, tmp_path: Path, log: Path
) -> None:
    """A restarted source continues where it stopped, and leaves no thread running."""
    size = 0
    of_others = set(threading.enumerate())

    def threads() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name.startswith("taildir") and each not in of_others]

    for number in range(3):
        append(log, *numbered(number * 10, number * 10 + 10))
        size += sum(len(line) + 1 for line in numbered(number * 10, number * 10 + 10))
        start(agent, config_of(log))
        await until(holds(registry, numbered(0, number * 10 + 10)))
        # The thread must not keep the program from ending while its file system hangs.
        assert [thread.daemon for thread in threads()] == [True]
        await agent.stop_sources(WAIT_SECONDS_MAX)
        await until(lambda: not threads())
        assert f'"position":{size},' in (tmp_path / "sources" / "app" / POSITIONS_FILE).read_text()


async def test_run_on_a_channel_that_forgot_nothing_repeats_nothing_without_positions(
    agent: Agent, registry: ChannelRegistry, tmp_path: Path, log: Path
) -> None:
    """The channels alone suffice to continue."""
    append(log, *numbered(0, 10))
    start(agent, config_of(log))
    await until(holds(registry, numbered(0, 10)))
    await agent.stop_sources(WAIT_SECONDS_MAX)
    (tmp_path / "sources" / "app" / POSITIONS_FILE).unlink()
    append(log, *numbered(10, 20))
    start(agent, config_of(log))
    await until(holds(registry, numbered(0, 20)))


async def test_run_where_positions_are_of_another_version_fails(agent: Agent, tmp_path: Path, log: Path) -> None:
    """A retry would not help, so the source fails."""
    directory = tmp_path / "sources" / "app"
    directory.mkdir(parents=True)
    (directory / POSITIONS_FILE).write_text('{"format": "millrace taildir positions", "version": 7}')
    start(agent, config_of(log))
    await until_state(agent.components, ComponentKind.SOURCE, "app", ComponentState.FAILED)


async def test_run_on_a_name_that_is_not_text_shows_it_with_escapes(
    agent: Agent, registry: ChannelRegistry, logs: Path
) -> None:
    """A header is text, but a file name need not be."""
    (logs / b"caf\xe9.log".decode(errors="surrogateescape")).write_bytes(b"one\n")
    start(agent, config_of(logs / "*", basename_header="name"))
    await until(lambda: rows(registry) == [({"name": "caf\\xe9.log"}, b"one")])
