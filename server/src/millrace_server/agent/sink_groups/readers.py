"""Where the sinks of a group get their events from."""

import asyncio
from collections.abc import Awaitable, Callable

from millrace_server.agent.channel_reader import ChannelReader, Delivery, ReaderLimits
from millrace_server.agent.components import Component, ComponentState
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
