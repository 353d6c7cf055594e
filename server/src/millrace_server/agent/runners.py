"""Runners, each of which runs a source or a sink as a task that can be stopped."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from millrace_server.agent.channel_reader import ChannelReader
from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.components import Component, ComponentState
from millrace_server.agent.sinks.sink import Sink
from millrace_server.agent.sources.source import Source
from millrace_server.agent.supervision import Backoff, supervise

CANCELLED_SECONDS_MAX = 5.0
"""How long a sink that was cancelled may take to end."""


class SourceRunner:
    """Runs a source.

    `make` creates the source and its writer. It is called on a thread, since it may import large modules, and again if
    it failed.
    """

    def __init__(self, component: Component, make: Callable[[], tuple[Source, ChannelWriter]]) -> None:
        self.component = component
        self.components = (component,)
        self._make = make
        self._made: tuple[Source, ChannelWriter] | None = None
        self._task = _supervised(component, self._run, Backoff())

    async def _run(self) -> None:
        if self._made is None:
            self._made = await asyncio.to_thread(self._make)
        source, writer = self._made
        await writer.wait_open()
        await source.run(writer)

    async def stop(self, grace_seconds: float) -> bool:
        """Cancels the source and waits until it has ended; returns whether it did in time."""
        self._task.cancel()
        return await _mark_stopped_after(self._task, grace_seconds, self.components)


class SinkRunner:
    """Runs a sink or a sink group."""

    def __init__(
        self, component: Component, members: Sequence[Component], reader: ChannelReader, make: Callable[[], Sink]
    ) -> None:
        self.component = component
        component.members = members
        self.components = (component, *members)
        self.reader = reader
        self._make = make
        self._sink: Sink | None = None
        self._idle = asyncio.Event()
        """Set while it has no open deliveries: before its start, during the wait for a retry, and after its end."""
        self._idle.set()
        self._task = _supervised(component, self._run, Backoff(count_done=lambda: component.batch_count))

    @property
    def may_drain(self) -> bool:
        """Whether it may still empty its channel without intervention."""
        return self.component.state not in {ComponentState.FAILED, ComponentState.STOPPED}

    async def _run(self) -> None:
        if self._sink is None:
            self._sink = await asyncio.to_thread(self._make)
        await self.reader.wait_open()
        self._idle.clear()
        try:
            await self._sink.run(self.reader)
        finally:
            self.reader.nack_all()
            self._idle.set()

    async def stop(self, grace_seconds: float) -> bool:
        """Ends the sink after it has settled or nacked its open deliveries; returns whether it ended in time."""
        self.reader.close()
        idle = asyncio.ensure_future(self._idle.wait())
        try:
            await asyncio.wait({idle, self._task}, timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()
        self._task.cancel()
        return await _mark_stopped_after(self._task, CANCELLED_SECONDS_MAX, self.components)


def _supervised(component: Component, run: Callable[[], Awaitable[None]], backoff: Backoff) -> "asyncio.Task[None]":
    name = f"{component.kind.value} {component.name}"
    return asyncio.create_task(supervise(component, run, backoff), name=name)


async def _mark_stopped_after(
    task: "asyncio.Task[None]", timeout_seconds: float, components: Sequence[Component]
) -> bool:
    await asyncio.wait({task}, timeout=timeout_seconds)
    if not task.done():
        return False
    for component in components:
        component.mark_stopped()
    return True
