"""Runners: each keeps a source or a sink at work, as one task that can be stopped."""

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

    Args:
        component: Its state.
        make: Creates the source and the writer for its events. Called on a thread, since it may import much, and again
            after it has failed.
    """

    def __init__(self, component: Component, make: Callable[[], tuple[Source, ChannelWriter]]) -> None:
        self.component = component
        self.components = (component,)
        self._make = make
        self._made: tuple[Source, ChannelWriter] | None = None
        self._task = asyncio.create_task(supervise(component, self._run, Backoff()), name=f"source {component.name}")

    async def _run(self) -> None:
        if self._made is None:
            self._made = await asyncio.to_thread(self._make)
        source, writer = self._made
        await writer.wait_open()
        await source.run(writer)

    async def stop(self, grace_seconds: float) -> bool:
        """Cancels the source, and waits until it has finished what it had begun.

        Returns:
            Whether it ended in time.
        """
        self._task.cancel()
        if not await _has_ended(self._task, grace_seconds):
            return False
        self.component.mark_stopped()
        return True


class SinkRunner:
    """Runs a sink or a sink group.

    Args:
        component: Its state.
        members: The components of a group's sinks.
        reader: Where its events come from.
        make: Creates it, as for `SourceRunner`.
    """

    def __init__(
        self, component: Component, members: Sequence[Component], reader: ChannelReader, make: Callable[[], Sink]
    ) -> None:
        self.component = component
        self.components = (component, *members)
        self.reader = reader
        self._make = make
        self._sink: Sink | None = None
        self._idle = asyncio.Event()
        """Set while it holds no deliveries: it has not begun, waits for a retry, or has ended."""
        self._idle.set()
        backoff = Backoff(count_done=lambda: component.batch_count)
        self._task = asyncio.create_task(
            supervise(component, self._run, backoff), name=f"{component.kind.value} {component.name}"
        )

    @property
    def may_drain(self) -> bool:
        """Whether it may still empty its channel by itself."""
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
        """Ends the sink after it has settled or nacked the deliveries that it holds; it gets no more of them.

        Returns:
            Whether it ended in time.
        """
        self.reader.close()
        await _wait_for_first(self._idle.wait(), _has_ended(self._task, grace_seconds))
        self._task.cancel()
        if not await _has_ended(self._task, CANCELLED_SECONDS_MAX):
            return False
        for component in self.components:
            component.mark_stopped()
        return True


async def _has_ended(task: "asyncio.Task[None]", timeout_seconds: float) -> bool:
    await asyncio.wait({task}, timeout=timeout_seconds)
    return task.done()


async def _wait_for_first(*waits: Awaitable[object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
