"""Sources and sinks at work, each as one task that can be ended."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from millrace_server.agent.channel_reader import ChannelReader
from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.components import Component, ComponentState
from millrace_server.agent.sinks.sink import Sink
from millrace_server.agent.sources.source import Source
from millrace_server.agent.supervision import Backoff, EarnedBackoff, supervise

CANCELLED_SECONDS_MAX = 5.0
"""How long a sink that was cancelled may take to end."""


class MadeSource(NamedTuple):
    """A source, and where it hands its events to."""

    source: Source
    writer: ChannelWriter


class RunningSource:
    """A source at work.

    Args:
        component: Its state.
        make: Makes it, on a thread, for it may import much. Called again where it failed.
    """

    def __init__(self, component: Component, make: Callable[[], MadeSource]) -> None:
        self.component = component
        self.components = (component,)
        self._make = make
        self._made: MadeSource | None = None
        self._task = asyncio.create_task(supervise(component, self._run, Backoff()), name=f"source {component.name}")

    async def _run(self) -> None:
        if self._made is None:
            self._made = await asyncio.to_thread(self._make)
        await self._made.writer.wait_open()
        await self._made.source.run(self._made.writer)

    async def stop(self, grace_seconds: float) -> bool:
        """Cancels it, and waits until it has ended what it had begun.

        Returns:
            False where it goes on all the same, after that time.
        """
        self._task.cancel()
        if not await _ended(self._task, grace_seconds):
            return False
        self.component.stops()
        return True


class RunningSink:
    """A sink, or a sink group, at work.

    Args:
        component: Its state.
        members: Those of the sinks of a group.
        reader: Where it gets its events from.
        make: Makes it, as with `RunningSource`.
    """

    def __init__(
        self, component: Component, members: Sequence[Component], reader: ChannelReader, make: Callable[[], Sink]
    ) -> None:
        self.component = component
        self.components = (component, *members)
        self.reader = reader
        self._make = make
        self._sink: Sink | None = None
        self._rests = asyncio.Event()
        """Set while it has nothing in hand: it has not begun, waits for its next try, or has ended."""
        self._rests.set()
        backoff = EarnedBackoff(lambda: component.batch_count)
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
        self._rests.clear()
        try:
            await self._sink.run(self.reader)
        finally:
            self.reader.nack_all()
            self._rests.set()

    async def stop(self, grace_seconds: float) -> bool:
        """Gives it no more events, has it finish those that it has, or give them back, and ends it.

        Returns:
            False where it goes on all the same, long after it was told to end.
        """
        self.reader.close()
        await _first_of(self._rests.wait(), _ended(self._task, grace_seconds))
        self._task.cancel()
        if not await _ended(self._task, CANCELLED_SECONDS_MAX):
            return False
        for component in self.components:
            component.stops()
        return True


async def _ended(task: "asyncio.Task[None]", timeout_seconds: float) -> bool:
    await asyncio.wait({task}, timeout=timeout_seconds)
    return task.done()


async def _first_of(*waits: Awaitable[object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
