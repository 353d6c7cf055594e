"""Sources and sinks that a test controls, and agents that run them in this process."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, cast

from millrace_server.agent.agent import Agent
from millrace_server.agent.channel_reader import EventsRejectedError
from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.components import ComponentKind, Components, ComponentState
from millrace_server.agent.events import EventTable
from millrace_server.agent.settings import AgentConfig
from millrace_server.agent.sinks.sink import BatchSink, Sink, SinkConfig, SinkContext
from millrace_server.agent.sources.source import Source, SourceConfig, SourceContext
from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.registry import ChannelRegistry
from tests.channel_events import limits_of
from tests.waiting import WAIT_SECONDS_MAX, until

made_sources: list["TestSource"] = []
"""All sources that were created in a test, in order; see `agent_on`."""
made_sinks: list["TestSink"] = []
"""All sinks that were created in a test, in order."""


class TestSourceConfig(SourceConfig):
    """A source that delivers what the test passes in."""

    __test__ = False
    type: Literal["test"] = "test"
    note: str = ""
    """Sources with different notes are different configurations."""

    def make(self, context: SourceContext) -> Source:
        made_sources.append(TestSource(context))
        return made_sources[-1]


class TestSource:
    """Delivers `bodies` in order; `runs` and `ends` count its starts and ends."""

    __test__ = False

    def __init__(self, context: SourceContext) -> None:
        self.place = context
        self.bodies: asyncio.Queue[bytes] = asyncio.Queue()
        self.runs = 0
        self.ends = 0
        self.error: Exception | None = None

    async def run(self, writer: ChannelWriter) -> None:
        self.runs += 1
        try:
            if self.error is not None:
                raise self.error
            writer.report_running()
            while True:
                body = await self.bodies.get()
                await writer.deliver(EventTable([body]), writer.next_stamp(1))
        finally:
            self.ends += 1


class TestSinkConfig(SinkConfig):
    """A sink that records its events once the test allows it."""

    __test__ = False
    type: Literal["test"] = "test"
    note: str = ""
    """Sinks with different notes are different configurations."""
    is_shut: bool = False
    """Whether it waits for `may_write` before it writes."""

    def make(self, context: SinkContext) -> Sink:
        made_sinks.append(TestSink(context, is_shut=self.is_shut))
        return made_sinks[-1]


class TestSink(BatchSink):
    """Records the bodies of settled deliveries in `written`."""

    __test__ = False

    def __init__(self, context: SinkContext, *, is_shut: bool) -> None:
        self.place = context
        self.written: list[bytes] = []
        self.may_write = asyncio.Event()
        if not is_shut:
            self.may_write.set()
        self.has_begun = asyncio.Event()
        self.opens = 0
        self.closes = 0
        self.error: Exception | None = None
        self.poison: bytes | None = None
        """The body of events that it never takes."""

    async def open(self) -> None:
        self.opens += 1

    async def write(self, batches: Sequence[StoredBatch]) -> None:
        self.has_begun.set()
        await self.may_write.wait()
        if self.error is not None:
            raise self.error
        bodies = [body for batch in batches for _, body in batch.window.rows()]
        if self.poison in bodies:
            raise EventsRejectedError("it is poisoned")
        self.written += bodies

    async def close(self) -> None:
        self.closes += 1


def source_of(*channels: str, **settings: Any) -> TestSourceConfig:
    """Returns the configuration of a source that fills these channels."""
    return TestSourceConfig(channels=list(channels), **settings)


def sink_of(channel: str, **settings: Any) -> TestSinkConfig:
    """Returns the configuration of a sink that empties this channel."""
    return TestSinkConfig(channel=channel, **settings)


def flows_of(
    sources: dict[str, TestSourceConfig] | None = None, sinks: dict[str, TestSinkConfig] | None = None
) -> AgentConfig:
    """Returns the configuration of an agent with test components, which no file can name."""
    return AgentConfig(cast("Any", sources or {}), cast("Any", sinks or {}))


def registry_with(*names: str, **limits: Any) -> ChannelRegistry:
    """Returns a registry with memory channels."""
    registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=1_000)
    for name in names:
        registry.create(name, limits_of(**limits))
    return registry


@asynccontextmanager
async def agent_on(registry: ChannelRegistry, data_dir: Path) -> AsyncIterator[Agent]:
    """Runs an agent for the block; the components that it creates are in `made_sources` and `made_sinks`."""
    made_sources.clear()
    made_sinks.clear()
    agent = Agent(registry, data_dir)
    try:
        yield agent
    finally:
        await agent.stop_sources(WAIT_SECONDS_MAX)
        await agent.stop_sinks(0.0)


async def until_state(components: Components, kind: ComponentKind, name: str, state: ComponentState) -> None:
    """Waits until a component is in a state."""

    def is_there() -> bool:
        component = components.find(kind, name)
        return component is not None and component.state is state

    await until(is_there)
