"""Sink groups: several sinks that together empty one channel."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from millrace_server.agent.channel_reader import ChannelReader, Delivery, ReaderLimits
from millrace_server.agent.components import Component, ComponentState
from millrace_server.agent.failover import Failover
from millrace_server.agent.sink_group_config import SinkGroupConfig
from millrace_server.agent.sinks.sink import Sink
from millrace_server.agent.supervision import Backoff, ComponentFailedError, describe, supervise
from millrace_server.channels.channel import Channel
from millrace_server.channels.registry import ChannelRegistry

SinkFactory = Callable[[], Sink]


class GroupReader(ChannelReader):
    """Represents the readers of a group's sinks as a single one; it delivers no events itself."""

    def __init__(self, registry: ChannelRegistry, channel_name: str, component: Component) -> None:
        super().__init__(registry, channel_name, ReaderLimits(1, 1, None), component)
        self.members: list[MemberReader] = []
        self.closing = asyncio.Event()

    def add_member(self, component: Component, limits: ReaderLimits) -> None:
        self.members.append(MemberReader(self, self._registry, limits, component))

    @property
    def unsettled_count(self) -> int:
        return sum(member.unsettled_count for member in self.members)

    def request_flush(self) -> None:
        super().request_flush()
        for member in self.members:
            member.request_flush()

    def close(self) -> None:
        self.closing.set()
        super().close()
        for member in self.members:
            member.close()

    def nack_all(self) -> None:
        for member in self.members:
            member.nack_all()


class MemberReader(ChannelReader):
    """Delivers events to one sink of a group.

    Attributes:
        has_ended: Whether the last `take` returned None.
        acquire: Called before each take; if it returns False, the sink gets no more deliveries.
        on_progress: Called after a settle, or when the channel is empty.
    """

    def __init__(
        self, group: GroupReader, registry: ChannelRegistry, limits: ReaderLimits, component: Component
    ) -> None:
        super().__init__(registry, group.channel_name, limits, component)
        self._group = group
        self.has_ended = False
        self.acquire: Callable[[], Awaitable[bool]] = _always
        self.on_progress: Callable[[], None] = lambda: None

    async def take(self, body_bytes_max: int = 0) -> Delivery | None:
        delivery = None
        if not self._is_closing and await self.acquire():
            delivery = await super().take(body_bytes_max)
        self.has_ended = delivery is None
        return delivery

    def reopen(self) -> None:
        """Delivers again after `close`, unless the group is closed."""
        self.has_ended = False
        if not self._group.closing.is_set():
            self._is_closing = False
            if not self._group.flush_requested.is_set():
                self.flush_requested.clear()

    def _report_readiness(self, channel: Channel) -> None:
        super()._report_readiness(channel)
        if self.component.state is ComponentState.RUNNING:
            self._group.component.mark_running()
            if not channel.event_count:
                self.on_progress()

    def _finish(self, delivery: Delivery, is_settled: bool) -> None:  # noqa: FBT001 - a callback's argument
        super()._finish(delivery, is_settled)
        if is_settled:
            self._group.component.record_progress(*delivery.delivered_counts)
            self.on_progress()


async def _always() -> bool:
    return True


class SinkGroup:
    """Runs the sinks of a group, each with its own state and back-off.

    It implements `Sink`, so that a group runs like a single sink. The factories of its sinks are called on threads.
    """

    def __init__(self, config: SinkGroupConfig, reader: GroupReader, factories: Sequence[SinkFactory]) -> None:
        self._reader = reader
        self._members = [
            _Member(priority, member_reader, factory, config.backoff_seconds_max)
            for priority, (member_reader, factory) in enumerate(zip(reader.members, factories, strict=True))
        ]
        self._failover = Failover(self._members) if config.policy == "failover" else None

    async def run(self, _reader: ChannelReader) -> None:
        tasks: dict[asyncio.Task[None], _Member] = {
            asyncio.create_task(supervise(member.component, partial(self._run_member, member), member.backoff)): member
            for member in self._members
        }
        closing = asyncio.ensure_future(self._reader.closing.wait())
        ended = asyncio.gather(*tasks)
        waited_for: set[asyncio.Future[Any]] = {ended, closing}
        try:
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            # Running sinks settle their open deliveries; the others have none.
            for task, member in tasks.items():
                if not member.is_at_work:
                    task.cancel()
            await asyncio.wait(tasks)
        finally:
            closing.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, ended, return_exceptions=True)

    async def _run_member(self, member: "_Member") -> None:
        while True:
            if self._failover is not None:
                await self._wait_until_first(member, self._failover)
            has_failed = True
            try:
                has_ended = await member.work()
                has_failed = False
            except Exception as error:
                self._report_failure(member, error)
                raise
            finally:
                if self._failover is not None:
                    self._failover.release(member.priority, has_failed=has_failed)
            if has_ended or self._reader.closing.is_set():
                return

    async def _wait_until_first(self, member: "_Member", failover: Failover) -> None:
        member.reader.acquire = partial(failover.acquire, member.priority)
        member.reader.on_progress = failover.record_progress
        if not (failover.is_first(member.priority) or failover.has_failed(member.priority)):
            member.component.mark_standing_by()
        await failover.wait_until_first(member.priority)

    def _report_failure(self, failing: "_Member", error: Exception) -> None:
        """Marks the group as backing off once none of its sinks works, and as failed once none can recover."""
        failing.reason = describe(error)
        others = [member.component.state for member in self._members if member is not failing]
        if isinstance(error, ComponentFailedError) and all(state is ComponentState.FAILED for state in others):
            self._reader.component.mark_failed(self._all_reasons())
        elif not any(state.is_healthy for state in others):
            self._reader.component.mark_backing_off(self._all_reasons())

    def _all_reasons(self) -> str:
        reasons = "; ".join(f"{member.component.name}: {member.reason}" for member in self._members)
        return f"none of its sinks works: {reasons}"


class _Member:
    """One sink of a group."""

    def __init__(self, priority: int, reader: MemberReader, factory: SinkFactory, backoff_seconds_max: float) -> None:
        self.priority = priority
        self.reader = reader
        self.component = reader.component
        self.backoff = member_backoff(reader.component, backoff_seconds_max)
        self.reason = ""
        self._factory = factory
        self._sink: Sink | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False

    @property
    def is_at_work(self) -> bool:
        """Whether it may have open deliveries."""
        return self._task is not None

    async def work(self) -> bool:
        """Runs the sink until it ends; returns False if it ended because another sink preempted it."""
        if self._sink is None:
            self._sink = await asyncio.to_thread(self._factory)
        self.reader.reopen()
        self._is_cancelled = False
        self._task = asyncio.create_task(self._sink.run(self.reader))
        try:
            await asyncio.wait({self._task})
        finally:
            task, self._task = self._task, None
            task.cancel()
            outcome = await asyncio.gather(task, return_exceptions=True)
            self.reader.nack_all()
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return not (self._is_cancelled or self.reader.has_ended)

    def close_reader(self) -> None:
        self.reader.close()

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()


def member_backoff(component: Component, max_seconds: float) -> Backoff:
    """Returns the back-off of a sink in a group.

    A shorter delay that a server requests is ignored: the other sinks work in the meantime, and each retry of a sink
    with a higher priority would interrupt them.
    """
    return Backoff(min(1.0, max_seconds), max_seconds, lambda: component.batch_count, can_shorten=False)
