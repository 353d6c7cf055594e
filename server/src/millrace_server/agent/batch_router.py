"""The way of a batch from its source to the channels, one try after the other."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millrace_server.agent.components import Component, EventOutcome
from millrace_server.agent.dead_letters import DeadLetterBox
from millrace_server.agent.events import EventTable
from millrace_server.agent.fan_out import ChannelBatch, FanOut, channel_batches_of, unrouted_count
from millrace_server.agent.interceptor_run import InterceptorRun, StepError
from millrace_server.agent.interceptors.interceptor import Interceptor, QuickInterceptor
from millrace_server.agent.rate_limited_log import Notices
from millrace_server.agent.selectors import Balancer, CustomSelector, Replicating, Selector
from millrace_server.agent.worker_thread import WorkThread
from millrace_server.channels.channel import Channel
from millrace_server.channels.contents import Receipt
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import MillraceError, OverloadedError

STEP_TRIES_MAX = 5
"""So often an interceptor gets a batch on which it raises what it should not; then the events are found out on which it
does so, and go to the dead-letter channel. Where there is none, it gets the batch again for ever."""

_LOOP_EVENTS_MAX = 10_000
"""More events than these are encoded on a thread."""

_ANYWHERE = ""
"""Stands for the channel that a balancer is going to pick."""


class Routing(NamedTuple):
    """Where the events of a source go."""

    selector: Selector | Balancer | None = None
    """Which channels an event goes to; None: to all."""
    optional: frozenset[str] = frozenset()
    """The channels that hold nothing up."""
    dead_letter_channel: str | None = None
    """Where events go that can go no further."""


class BatchAttempt:
    """One batch: how far it has come, so that the next try goes on there.

    Attributes:
        table: The events, as the source hands them over.
        stamp: Names the batch.
        run: Its way through the interceptors and the selector.
        batches: What each channel is to get, once that is known; what was set aside has left them.
        failed_steps: Times that an interceptor or the selector raised what it should not.
    """

    def __init__(self, table: EventTable, stamp: Stamp, run: InterceptorRun) -> None:
        self.table = table
        self.stamp = stamp
        self.run = run
        self.batches: dict[str, ChannelBatch] | None = None
        self.failed_steps = 0


class BatchRouter:
    """Brings batches through interceptors and selector into the channels.

    Args:
        registry: All channels.
        channels: The source's.
        interceptors: Its interceptors.
        routing: Where its events go.
        component: The source; it counts them.
    """

    def __init__(
        self,
        registry: ChannelRegistry,
        channels: Sequence[str],
        interceptors: Sequence[Interceptor],
        routing: Routing,
        component: Component,
    ) -> None:
        self._optional_names = routing.optional
        self.required = [name for name in channels if name not in routing.optional]
        self._registry = registry
        self._component = component
        self._interceptors = interceptors
        selector = routing.selector or Replicating(channels)
        self._balancer = selector if isinstance(selector, Balancer) else None
        self._selector = None if isinstance(selector, Balancer) else selector
        self._needs_thread = isinstance(selector, CustomSelector) or not all(
            isinstance(each, QuickInterceptor) for each in interceptors
        )
        self._thread = WorkThread(f"interceptors-{component.name}")
        self._notices = Notices(component.name)
        self._dead_letters = DeadLetterBox(registry, routing.dead_letter_channel, component, self._notices)
        self._optional = OptionalChannels(registry, component, self._notices)
        self.fan_out = FanOut(registry, self.required)

    def attempt(self, table: EventTable, stamp: Stamp) -> BatchAttempt:
        """A batch that has not gone anywhere yet."""
        return BatchAttempt(table, stamp, InterceptorRun(self._interceptors, self._selector, table))

    async def advance(self, attempt: BatchAttempt) -> None:
        """Brings a batch to its end; where it raises, the next try goes on there.

        Raises:
            StepError: An interceptor, or the selector, raised what it should not.
            ComponentError: An interceptor cannot do its work now.
            TxnCapacityError: The batch is more than some channel takes at once.
            BadArgumentError: It overlaps in part what is stored.
            MillraceError: Some channel has not stored it.
        """
        if self.fan_out.has_accepted(attempt.stamp):
            # It is stored, or on its way to the disks, for which this waits.
            await self.fan_out.store({}, attempt.stamp)
            self._component.runs()
            return
        if attempt.batches is None:
            await self._take_steps(attempt)
            attempt.batches = self._batches(attempt.run)
        if self._balancer is not None and attempt.batches:
            await self._store_balanced(attempt.batches, attempt.stamp, self._balancer)
        else:
            await self._store_chosen(attempt.batches, attempt.stamp)
        self._note_stored(attempt)

    def has_room(self, table: EventTable) -> bool:
        """Whether the channels would take a batch of this size now, as far as they can tell."""
        size = table.count, sum(map(len, table.bodies))
        try:
            channels = self.fan_out.channels()
        except MillraceError:
            return False
        enough = all if self._balancer is None else any
        return all(channel.commits.fault is None for channel in channels) and enough(
            channel.contents.room.admits(*size) for channel in channels
        )

    async def _take_steps(self, attempt: BatchAttempt) -> None:
        run = attempt.run
        try:
            if self._needs_thread:
                await self._thread.do(run.go_on)
            else:
                run.go_on()
        except asyncio.CancelledError:
            run.abandon()
            raise
        except StepError:
            attempt.failed_steps += 1
            if attempt.failed_steps < STEP_TRIES_MAX or not self._dead_letters.is_there:
                raise
            await self._thread.do(run.refuse_culprits)
            if not run.refusals:
                raise
            attempt.failed_steps = 0
            await self._take_steps(attempt)
            return
        while run.refusals:
            refusal = run.refusals[0]
            said = {"reason": refusal.reason, "step": refusal.step}
            await self._dead_letters.set_aside(refusal.table, attempt.stamp, said)
            run.refusals.pop(0)

    def _batches(self, run: InterceptorRun) -> dict[str, ChannelBatch]:
        """What goes where; with a balancer the whole, whose channel is not known yet."""
        if self._balancer is None:
            return channel_batches_of(run.table, run.choices)
        return {_ANYWHERE: ChannelBatch(run.table)} if run.table.count else {}

    async def _store_chosen(self, batches: dict[str, ChannelBatch], stamp: Stamp) -> None:
        for channel in self.fan_out.channels():
            if batch := batches.get(channel.name):
                await self._encode(batch)
                batches[channel.name] = await self._accepted_part(batch, stamp, channel)
        await self.fan_out.store(batches, stamp)
        self._optional.offer({name: batch for name, batch in batches.items() if name in self._optional_names})

    async def _store_balanced(self, batches: dict[str, ChannelBatch], stamp: Stamp, balancer: Balancer) -> None:
        await self._encode(batches[_ANYWHERE])
        batches[_ANYWHERE] = await self._accepted_part(batches[_ANYWHERE], stamp, None)
        name = await self.fan_out.pick(balancer, batches[_ANYWHERE], stamp)
        batches[_ANYWHERE] = await self._accepted_part(batches[_ANYWHERE], stamp, self._registry.get(name))
        await self.fan_out.store({name: batches[_ANYWHERE]}, stamp, last=name)

    async def _encode(self, batch: ChannelBatch) -> None:
        if batch.table.count > _LOOP_EVENTS_MAX:
            await asyncio.to_thread(batch.unencodable)

    async def _accepted_part(self, batch: ChannelBatch, stamp: Stamp, channel: Channel | None) -> ChannelBatch:
        """The events that a channel, or any at all, can take; the others are set aside."""
        refused = batch.unencodable() if channel is None else batch.unstorable(channel)
        for reason in dict.fromkeys(refused.values()):
            table = batch.table.chosen([refused.get(index) == reason for index in range(batch.table.count)])
            where = {"step": "encoding"} if channel is None else {"channel": channel.name}
            await self._dead_letters.set_aside(table, stamp, {"reason": reason, **where})
        return batch.without(refused) if refused else batch

    def _note_stored(self, attempt: BatchAttempt) -> None:
        component, run = self._component, attempt.run
        component.note_progress(attempt.table.count, sum(map(len, attempt.table.bodies)))
        component.note_outcome(EventOutcome.FILTERED, run.filtered_count)
        if self._balancer is None and (count := unrouted_count(run.table, run.choices)):
            component.note_outcome(EventOutcome.UNROUTED, count)
            self._notices.tell(logging.WARNING, "events were dropped that the selector has no channel for", "", count)


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
