"""Optional channels: the channels of a source that may miss events."""

import logging
from collections import Counter
from collections.abc import Mapping

from millrace_server.agent.components import Component, EventOutcome
from millrace_server.agent.fan_out import ChannelBatch
from millrace_server.agent.rate_limited_log import RateLimitedLog
from millrace_server.channels.commit import Commit
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import MillraceError, OverloadedError

_PENDING_COMMITS_MAX = 16
"""How many batches may wait for the disk of an optional channel; it misses further ones."""


class OptionalChannels:
    """Offers batches to channels that may miss them, and counts what they miss.

    A batch is offered once, after all required channels have stored it. So a channel may miss a batch in a crash, but
    never stores one twice.
    """

    def __init__(self, registry: ChannelRegistry, component: Component, log: RateLimitedLog) -> None:
        self._registry = registry
        self._component = component
        self._log = log
        self._pending_counts: Counter[str] = Counter()

    def offer(self, batches: Mapping[str, ChannelBatch]) -> None:
        """Stores each batch in its channel, or counts it as missed if that is not possible now; never waits."""
        for name, batch in batches.items():
            try:
                self._offer(name, batch)
            except MillraceError as error:
                self._miss(name, batch.table.count, f"{error.reason}: {error}")

    def _offer(self, name: str, batch: ChannelBatch) -> None:
        channel = self._registry.get(name)
        if self._pending_counts[name] >= _PENDING_COMMITS_MAX:
            raise OverloadedError(f"{_PENDING_COMMITS_MAX} batches already wait for its disk")
        if refused := batch.unstorable(channel):
            self._miss(name, len(refused), next(iter(refused.values())))
            batch = batch.without(refused)
        commit = channel.appends.plan_append(batch.batches(), None)
        if not channel.appends.admits(commit):
            raise channel.appends.full_error(commit)
        channel.appends.submit_append(commit)
        self._pending_counts[name] += 1
        commit.add_done_callback(lambda ended: self._end(name, batch.table.count, ended))

    def _end(self, name: str, event_count: int, commit: Commit) -> None:
        self._pending_counts[name] -= 1
        if (error := commit.error) is not None:
            self._miss(name, event_count, f"{error.reason}: {error}")

    def _miss(self, name: str, event_count: int, reason: str) -> None:
        self._component.record_outcome(EventOutcome.MISSED, event_count)
        message = "an optional channel missed events"
        self._log.log(logging.WARNING, message, name, event_count, channel=name, reason=reason)
