"""Where the sinks of a group get their events from."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from millrace_server.agent.channel_reader import ChannelReader, Delivery, ReaderLimits
from millrace_server.agent.components import Component, ComponentState
from millrace_server.agent.failover import Succession
from millrace_server.agent.sink_group_config import SinkGroupConfig
from millrace_server.agent.sinks.sink import Sink
from millrace_server.agent.supervision import ComponentFailedError, EarnedBackoff, describe, supervise
from millrace_server.channels.channel import Channel
from millrace_server.channels.registry import ChannelRegistry


class GroupReader(ChannelReader):
    """A group's reader. It gives nothing by itself, but has one for each sink, and is the face of all of them.

    Attributes:
        component: The group's.
        members: The sinks' readers.
        closing: Set once it is closed.
    """

    def __init__(self, registry: ChannelRegistry, channel_name: str, component: Component) -> None:
        super().__init__(registry, channel_name, ReaderLimits(1, 1, None), component)
        self.component = component
        self.members: list[MemberReader] = []
        self.closing = asyncio.Event()

    def member(self, component: Component, limits: ReaderLimits) -> "MemberReader":
        """An reader for one more sink."""
        member = MemberReader(self, self._registry, limits, component)
        self.members.append(member)
        return member

    @property
    def delivered_count(self) -> int:
        """Deliveries that are neither settled nor given back."""
        return sum(member.delivered_count for member in self.members)

    def hurry(self) -> None:
        super().hurry()
        for member in self.members:
            member.hurry()

    def close(self) -> None:
        """Gives no more to any of them."""
        self.closing.set()
        super().close()
        for member in self.members:
            member.close()

    def nack_all(self) -> None:
        """Takes back whatever the sinks have left unsettled."""
        for member in self.members:
            member.nack_all()


class MemberReader(ChannelReader):
    """Gives one sink of a group its events.

    Attributes:
        component: The sink's.
        has_ended: Whether it has told the sink that there is no more.
        begin_turn: Called before each take; the sink gets no more where it answers False.
        on_progress: Called when something is done, or there is nothing to do.
    """

    def __init__(
        self, group: GroupReader, registry: ChannelRegistry, limits: ReaderLimits, component: Component
    ) -> None:
        super().__init__(registry, group.channel_name, limits, component)
        self._group = group
        self.has_ended = False
        self.component = component
        self.begin_turn: Callable[[], Awaitable[bool]] = _always
        self.on_progress: Callable[[], None] = _ignore

    async def take(self, body_bytes_max: int = 0) -> Delivery | None:
        delivery = None
        if not self._is_closing and await self.begin_turn():
            delivery = await super().take(body_bytes_max)
        self.has_ended = delivery is None
        return delivery

    def reopen(self) -> None:
        """Gives again, unless the group gives no more."""
        self.has_ended = False
        if not self._group.closing.is_set():
            self._is_closing = False
            if not self._group.hurried.is_set():
                self.hurried.clear()

    def _note_readiness(self, channel: Channel) -> None:
        super()._note_readiness(channel)
        if self._component.state is ComponentState.RUNNING:
            self._group.component.runs()
            if not channel.contents.room.event_count:
                self.on_progress()

    def _note_end(self, delivery: Delivery, is_settled: bool) -> None:  # noqa: FBT001 - a callback's argument
        super()._note_end(delivery, is_settled)
        if is_settled:
            self._group.component.note_progress(*delivery.delivered)
            self.on_progress()


async def _always() -> bool:
    return True


def _ignore() -> None:
    """Nobody wants to know."""


MakeSink = Callable[[], Sink]


class SinkGroup:
    """Runs the sinks of a group, each with a state and a back-off of its own.

    It is a sink itself: what runs it need not know that it is several.

    Args:
        config: How they share the work.
        reader: The group's, with a reader for each sink.
        make: Makes each sink, on a thread, for it may import much.
    """

    def __init__(self, config: SinkGroupConfig, reader: GroupReader, make: Sequence[MakeSink]) -> None:
        self._reader = reader
        self._members = [
            _Member(rank, member_outlet, make_sink, config.backoff_seconds_max)
            for rank, (member_outlet, make_sink) in enumerate(zip(reader.members, make, strict=True))
        ]
        self._succession = Succession(self._members) if config.policy == "failover" else None

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
            # Those at work end what they have in hand; the others have nothing.
            for task, member in tasks.items():
                if not member.is_at_work:
                    task.cancel()
            await asyncio.wait(tasks)
        finally:
            closing.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, ended, return_exceptions=True)
        if all(member.component.state is ComponentState.FAILED for member in self._members):
            raise ComponentFailedError(self._all_reasons())

    async def _run_member(self, member: "_Member") -> None:
        while True:
            if self._succession is not None:
                await self._wait_for_turn(member, self._succession)
            has_failed = True
            try:
                has_ended = await member.work()
                has_failed = False
            except Exception as error:
                self._note_failure(member, error)
                raise
            finally:
                if self._succession is not None:
                    self._succession.leave(member.rank, has_failed=has_failed)
            if has_ended or self._reader.closing.is_set():
                return

    async def _wait_for_turn(self, member: "_Member", succession: Succession) -> None:
        member.reader.begin_turn = partial(succession.begin, member.rank)
        member.reader.on_progress = succession.note_progress
        if not (succession.is_wanted(member.rank) or succession.has_failed(member.rank)):
            member.component.stands_by()
        await succession.wait_wanted(member.rank)

    def _note_failure(self, failing: "_Member", error: Exception) -> None:
        """Has the group's state say it once none of its sinks works."""
        failing.reason = describe(error)
        others = [member for member in self._members if member is not failing]
        if not any(member.component.state.is_well for member in others):
            self._reader.component.backs_off(self._all_reasons())

    def _all_reasons(self) -> str:
        told = "; ".join(f"{member.component.name}: {member.reason}" for member in self._members)
        return f"none of its sinks works: {told}"


class _Member:
    """One sink of a group.

    Attributes:
        reason: Why it failed last.
    """

    def __init__(self, rank: int, reader: MemberReader, make: MakeSink, backoff_seconds_max: float) -> None:
        self.rank = rank
        self.reader = reader
        self.component = reader.component
        self.backoff = MemberBackoff(reader.component, backoff_seconds_max)
        self.reason = ""
        self._make = make
        self._sink: Sink | None = None
        self._work: asyncio.Task[None] | None = None
        self._is_cut_off = False

    @property
    def is_at_work(self) -> bool:
        """Whether it may have something in hand."""
        return self._work is not None

    async def work(self) -> bool:
        """Has the sink work until it ends; False where it ends because its turn was over."""
        if self._sink is None:
            self._sink = await asyncio.to_thread(self._make)
        self.reader.reopen()
        self._is_cut_off = False
        self._work = asyncio.create_task(self._sink.run(self.reader))
        try:
            await asyncio.wait({self._work})
        finally:
            work, self._work = self._work, None
            work.cancel()
            outcome = await asyncio.gather(work, return_exceptions=True)
            self.reader.nack_all()
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return not (self._is_cut_off or self.reader.has_ended)

    def retire(self) -> None:
        self.reader.close()

    def cut_off(self) -> None:
        self._is_cut_off = True
        if self._work is not None:
            self._work.cancel()


class MemberBackoff(EarnedBackoff):
    """Delays between the tries of one sink of a group.

    None is shorter for that a server asks for it: the other sinks work meanwhile, and are not to be interrupted often.
    """

    def __init__(self, component: Component, max_seconds: float) -> None:
        super().__init__(lambda: component.batch_count, min(1.0, max_seconds), max_seconds)

    def next_seconds(self, asked_seconds: float | None = None) -> float:
        own_seconds = super().next_seconds()
        return own_seconds if asked_seconds is None else max(own_seconds, super().next_seconds(asked_seconds))
