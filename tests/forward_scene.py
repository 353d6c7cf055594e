"""A channel and the fake server to which a sink forwards its events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from millrace_server.agent.channel_reader import ChannelReader
from millrace_server.agent.components import Component
from millrace_server.agent.sinks.millrace.sink import ForwardingSink
from millrace_server.agent.supervision import ComponentError
from millrace_server.channels.channel import Channel
from millrace_server.channels.registry import ChannelRegistry
from tests.channel_events import append
from tests.forward_targets import STORED, FakeTarget, Request, Response, config_of, reader_of, refused
from tests.waiting import until

FULL = refused("CHANNEL_FULL", grpc.StatusCode.RESOURCE_EXHAUSTED, 1.0)


@dataclass
class Scene:
    """A channel, and the server to which its events are forwarded."""

    registry: ChannelRegistry
    target: FakeTarget
    scratch: Path
    reader: ChannelReader = field(init=False)

    def __post_init__(self) -> None:
        self.reader = reader_of(self.registry)

    @property
    def channel(self) -> Channel:
        """The channel that the sink empties."""
        return self.registry.get("orders")

    @property
    def component(self) -> Component:
        """The component that shows the state of the sink."""
        return self.reader.component

    def sink(self, **settings: Any) -> ForwardingSink:
        """A sink with these settings; see `config_of`."""
        return ForwardingSink(config_of(self.target.address, **settings), self.scratch)

    async def give_up(self, words: str, sink: ForwardingSink | None = None) -> ComponentError:
        """Runs a sink that must give up, and checks its reason."""
        with pytest.raises(ComponentError, match=words) as raised:
            await (sink or self.sink()).run(self.reader)
        self.reader.nack_all()
        return raised.value


async def fill(channel: Channel, count: int, batch_events: int = 10) -> list[bytes]:
    """Appends events; returns their bodies."""
    bodies = [b"%d" % number for number in range(count)]
    for start in range(0, count, batch_events):
        await append(channel, *bodies[start : start + batch_events])
    return bodies


async def empty(channel: Channel) -> None:
    """Waits until the channel holds no event."""
    await until(lambda: not channel._contents.capacity.event_count)


@asynccontextmanager
async def running(sink: ForwardingSink, reader: ChannelReader) -> AsyncIterator[None]:
    """Runs the sink inside the block and stops it at the end; a sink that gives up fails the test."""
    async with asyncio.TaskGroup() as working:
        working.create_task(sink.run(reader))
        yield
        reader.close()


@dataclass
class Held:
    """Responses that wait until the test releases them."""

    response: Response = field(default_factory=lambda: STORED)
    may_go: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, _request: Request) -> Response:
        await self.may_go.wait()
        return self.response


def responding(response: Response) -> Held:
    """Responds at once, always the same."""
    held = Held(response)
    held.may_go.set()
    return held
