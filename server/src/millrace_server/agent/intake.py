"""Where a source hands its events to: through the interceptors and the selector, into the channels."""

import asyncio
import secrets
from collections.abc import Sequence

from millrace_server.agent.backoff import Backoff
from millrace_server.agent.components import Component
from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.interceptor import Interceptor
from millrace_server.agent.supervision import describe
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import MillraceError


class Intake:
    """Takes a source's events, and answers once they are stored.

    Every batch has a stamp, so that whatever fails in the middle can be done again without a second copy. A source that
    can read its events again names them by a number that is the same each time (`producer_id` and numbers of its own).
    One that cannot takes the next numbers of this run (`numbered`).

    Attributes:
        events_max: A batch has at most so many events.
    """

    def __init__(
        self,
        registry: ChannelRegistry,
        channels: Sequence[str],
        interceptors: Sequence[Interceptor],
        component: Component,
        events_max: int,
    ) -> None:
        self._registry = registry
        self._channels = channels
        self._interceptors = interceptors
        self._component = component
        self._run_id = f"{component.name}/{secrets.token_hex(8)}"
        self._next_number = 1
        self.events_max = events_max

    async def wait_open(self) -> None:
        """Waits until all channels are open: only then they know what they have stored."""
        for name in self._channels:
            hosted = self._registry.get_hosted(name)
            await hosted.opened.wait()
            hosted.refuse_unless_open()

    def is_ready(self) -> None:
        """Has the source's state say that it works; to be called once it has opened what it reads from."""
        self._component.starts()

    def numbered(self, count: int) -> Stamp:
        """A stamp for a source that cannot read its events again: the next numbers of this run."""
        first = self._next_number
        self._next_number += count
        return Stamp(self._run_id, first, first + count - 1)

    def accepted(self, producer_id: str) -> list[list[tuple[int, int]]]:
        """For each required channel the numbers of a producer that it has stored.

        Returns:
            Ascending ranges, both ends included. A batch must not overlap one of them in part: end it where a range
            begins or ends.
        """
        return [list(self._registry.get(name).contents.ledger.intervals_of(producer_id)) for name in self._channels]

    async def deliver(self, table: EventTable, stamp: Stamp) -> None:
        """Stores events in all channels, however long that takes.

        While a channel has no room, or cannot store anything, the source's state says so.
        """
        backoff = Backoff()
        table = self._intercepted(table)
        while True:
            try:
                await self._store(table, stamp)
            except MillraceError as error:
                self._component.backs_off(describe(error))
                await asyncio.sleep(backoff.next_seconds())
            else:
                return

    async def offer(self, table: EventTable, stamp: Stamp) -> None:
        """Stores events in all channels, or says that they cannot be stored now.

        Raises:
            MillraceError: Some channel has no room, or cannot store anything. Whoever offers the same events with the
                same stamp once more has them stored once.
        """
        try:
            await self._store(self._intercepted(table), stamp)
        except MillraceError as error:
            self._component.backs_off(describe(error))
            raise

    def _intercepted(self, table: EventTable) -> EventTable:
        for interceptor in self._interceptors:
            table = interceptor.intercept(table)
        return table

    async def _store(self, table: EventTable, stamp: Stamp) -> None:
        batches = table.stored()
        for name in self._channels:
            await self._registry.get(name).append(batches, stamp)
        self._component.note_progress(table.count, sum(stored.body_bytes for stored in batches))
