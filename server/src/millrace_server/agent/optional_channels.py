"""Channels that get a source's events where that holds nothing up."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping

from millrace_server.agent.channel_batches import ChannelBatch
from millrace_server.agent.components import Component, EventOutcome
from millrace_server.agent.notices import Notices
from millrace_server.channels.contents import Receipt
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import MillraceError, OverloadedError

_COMMITS_UNDER_WAY_MAX = 16
"""So many batches wait for the disk of one optional channel; it misses those that come then."""


class OptionalChannels:
    """Offers batches to channels that may miss them; what they miss is counted.

    A batch is offered once all required channels have it, and is not offered again. So a channel may miss a batch in a
    crash, and gets none twice.

    Args:
        registry: All channels.
        component: The source; it counts what is missed.
        notices: Told of it.
    """

    def __init__(self, registry: ChannelRegistry, component: Component, notices: Notices) -> None:
        self._registry = registry
        self._component = component
        self._notices = notices
        self._under_way: Counter[str] = Counter()

    def offer(self, batches: Mapping[str, ChannelBatch]) -> None:
        """Has each channel take its batch now, or miss it; waits for nothing."""
        for name, batch in batches.items():
            try:
                self._offer(name, batch)
            except MillraceError as error:
                self._miss(name, batch.table.count, error)

    def _offer(self, name: str, batch: ChannelBatch) -> None:
        channel = self._registry.get(name)
        if self._under_way[name] >= _COMMITS_UNDER_WAY_MAX:
            raise OverloadedError(f"{_COMMITS_UNDER_WAY_MAX} batches wait for its disk already")
        if refused := batch.unstorable(channel):
            batch = self._without_refused(name, batch, refused)
        change = channel.plan_append(batch.batches(), None)
        if not channel.contents.goes_at_once(change):
            raise channel.contents.room.full_error(change.event_count, change.body_bytes, 0.0)
        commit = channel.begin_append(change)
        if isinstance(commit, Receipt):
            return
        self._under_way[name] += 1
        commit.add_done_callback(lambda ended: self._end(name, batch.table.count, ended))

    def _without_refused(self, name: str, batch: ChannelBatch, refused: Mapping[int, str]) -> ChannelBatch:
        reason = next(iter(refused.values()))
        self._note_missed(name, len(refused), reason)
        return batch.without(refused)

    def _end(self, name: str, event_count: int, commit: "asyncio.Future[Receipt]") -> None:
        self._under_way[name] -= 1
        error = None if commit.cancelled() else commit.exception()
        if isinstance(error, MillraceError):
            self._miss(name, event_count, error)

    def _miss(self, name: str, event_count: int, error: MillraceError) -> None:
        self._note_missed(name, event_count, f"{error.reason}: {error}")

    def _note_missed(self, name: str, event_count: int, reason: str) -> None:
        self._component.note_outcome(EventOutcome.MISSED, event_count)
        self._notices.tell(
            logging.WARNING, "an optional channel missed events", name, event_count, channel=name, reason=reason
        )
