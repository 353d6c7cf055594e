"""Batch routers, which pass a source's batches through the interceptors and the selector and store them."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace_server.agent.components import Component, EventOutcome
from millrace_server.agent.dead_letters import DeadLetterWriter
from millrace_server.agent.events import EventTable
from millrace_server.agent.fan_out import (
    DEFAULT_OPTIONS,
    AppendOptions,
    ChannelBatch,
    FanOut,
    SubmittedCommits,
    channel_batches_of,
    unrouted_count,
)
from millrace_server.agent.interceptor_run import InterceptorRun, StepError
from millrace_server.agent.interceptors.interceptor import Interceptor, MustWaitError, QuickInterceptor
from millrace_server.agent.optional_channels import OptionalChannels
from millrace_server.agent.rate_limited_log import RateLimitedLog
from millrace_server.agent.selectors import CustomSelector, LoadBalancer, Replicating, Selector
from millrace_server.agent.worker_thread import WorkerThread
from millrace_server.channels.channel import Channel
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import BadArgumentError, EventTooLargeError, MillraceError

STEP_TRIES_MAX = 5
"""How often a batch is tried whose interceptor raises an unexpected error. Then the events that cause it are found by
bisection and stored in the dead-letter channel; without such a channel, the batch is retried indefinitely."""

_LOOP_EVENTS_MAX = 10_000
"""Batches with more events are encoded on a thread."""

_UNPICKED = ""
"""Stands for a channel that the load balancer has not picked yet."""


class Routing(NamedTuple):
    """How a source's events are distributed to its channels."""

    selector: Selector | LoadBalancer | None = None
    """Selects an event's channels; None: all of them."""
    optional: frozenset[str] = frozenset()
    """The channels that may miss events."""
    dead_letter_channel: str | None = None
    has_callers: bool = False
    """Whether a caller waits for each batch. Without a dead-letter channel, a batch that contains events that can never
    be stored is then refused."""


@dataclass(slots=True)
class BatchAttempt:
    """The state of a batch, with which a later attempt resumes where the last one failed."""

    table: EventTable
    """The events as the source delivered them."""
    stamp: Stamp | None
    """None if the source never repeats a batch."""
    run: InterceptorRun
    options: AppendOptions = DEFAULT_OPTIONS
    batches: dict[str, ChannelBatch] | None = None
    """The events of each channel, without those stored as dead letters; None until the selector has run."""
    failed_steps: int = 0
    """Unexpected errors of an interceptor or the selector."""
    dropped: list[tuple[EventTable, Mapping[str, str]]] = field(default_factory=list)
    """Events that cannot be stored and have no dead-letter channel, with the reason and the channel or step."""
    commits: SubmittedCommits | None = None
    """Its commits, once they are submitted."""
    is_repeat: bool = False
    """Whether an earlier attempt has stored it."""


class BatchRouter:
    """Routes batches through interceptors and selector into the channels."""

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
        self._has_callers = routing.has_callers
        selector = routing.selector or Replicating(channels)
        self._load_balancer = selector if isinstance(selector, LoadBalancer) else None
        self._selector = None if isinstance(selector, LoadBalancer) else selector
        self._needs_thread = isinstance(selector, CustomSelector) or not all(
            isinstance(each, QuickInterceptor) for each in interceptors
        )
        self._thread = WorkerThread(f"interceptors-{component.name}")
        self._log = RateLimitedLog(component.log)
        self._dead_letters = DeadLetterWriter(registry, routing.dead_letter_channel, component, self._log)
        self._optional = OptionalChannels(registry, component, self._log)
        self.fan_out = FanOut(registry, self.required)

    def start(self, table: EventTable, stamp: Stamp | None, options: AppendOptions = DEFAULT_OPTIONS) -> BatchAttempt:
        return BatchAttempt(table, stamp, InterceptorRun(self._interceptors, self._selector, table), options)

    async def route(self, attempt: BatchAttempt) -> None:
        """Stores a batch in its channels; after an error, the next call resumes at the same step.

        Raises StepError or ComponentError if a step fails, TxnCapacityError if the batch is too large for a channel,
        BadArgumentError if it partly overlaps stored events, or another MillraceError of a channel.
        """
        await self.begin(attempt)
        await self.finish(attempt)

    async def begin(self, attempt: BatchAttempt) -> None:
        """Does the first part of `route`: batches that begin after this call returns are stored after this one."""
        if self.fan_out.has_accepted(attempt.stamp):
            # It is stored, or being written; `finish` waits for that.
            attempt.is_repeat = True
            attempt.commits = await self.fan_out.begin({}, attempt.stamp, options=attempt.options)
            return
        if attempt.batches is None:
            await self._run_steps(attempt)
            attempt.batches = self._batches(attempt.run)
        if self._load_balancer is not None and attempt.batches:
            attempt.commits = await self._begin_balanced(attempt, attempt.batches, self._load_balancer)
        else:
            attempt.commits = await self._begin_chosen(attempt, attempt.batches)

    async def finish(self, attempt: BatchAttempt) -> None:
        """Does the rest of `route`."""
        assert attempt.commits is not None, "it has begun"
        try:
            await attempt.commits.finish()
        except asyncio.CancelledError:
            if self.fan_out.has_accepted(attempt.stamp) and not attempt.is_repeat:
                # The commits continue, so a repeat finds the batch stored and would not count it.
                self._note_stored(attempt)
            raise
        if attempt.is_repeat:
            self._component.mark_running()
            return
        # Not if cancelled, as above: a commit that continues may still fail, and the batch is then repeated.
        attempt.run.note_stored()
        if attempt.batches is not None:
            self._optional.offer(
                {name: batch for name, batch in attempt.batches.items() if name in self._optional_names}
            )
        self._note_stored(attempt)

    def has_space(self, table: EventTable) -> bool:
        """Whether the channels are likely to accept a batch of this size now."""
        size = table.count, table.body_bytes
        try:
            channels = self.fan_out.channels()
        except MillraceError:
            return False
        enough = all if self._load_balancer is None else any
        return all(channel.fault is None for channel in channels) and enough(
            channel.has_space(*size) for channel in channels
        )

    async def _run_steps(self, attempt: BatchAttempt) -> None:
        run = attempt.run
        try:
            await self._resume(run)
        except asyncio.CancelledError:
            run.abandon()
            raise
        except StepError:
            attempt.failed_steps += 1
            if attempt.failed_steps < STEP_TRIES_MAX or not self._dead_letters.has_channel:
                raise
            await self._thread.submit(run.refuse_failing_events)
            if not run.refusals:
                raise
            attempt.failed_steps = 0
            await self._run_steps(attempt)
            return
        while run.refusals:
            refusal = run.refusals[0]
            fields = {"reason": refusal.reason, "step": refusal.step}
            await self._set_aside(attempt, refusal.table, fields)
            run.refusals.pop(0)

    async def _resume(self, run: InterceptorRun) -> None:
        while True:
            try:
                if self._needs_thread:
                    await self._thread.submit(run.resume)
                else:
                    run.resume()
            except MustWaitError as error:
                await asyncio.sleep(error.seconds)
            else:
                return

    def _batches(self, run: InterceptorRun) -> dict[str, ChannelBatch]:
        """Returns the events of each channel; with a load balancer all events, since no channel is picked yet."""
        if self._load_balancer is None:
            return channel_batches_of(run.table, run.masks)
        return {_UNPICKED: ChannelBatch(run.table)} if run.table.count else {}

    async def _set_aside(self, attempt: BatchAttempt, table: EventTable, fields: Mapping[str, str]) -> None:
        """Stores events as dead letters; without a dead-letter channel, drops them once the other events are stored."""
        if self._dead_letters.has_channel:
            await self._dead_letters.write_or_drop(table, attempt.stamp, fields)
        elif self._has_callers:
            raise _refusal(table.count, fields)
        else:
            # Later: if the batch is split and repeated, they would be counted as dropped again.
            attempt.dropped.append((table, fields))

    async def _begin_chosen(self, attempt: BatchAttempt, batches: dict[str, ChannelBatch]) -> SubmittedCommits:
        for channel in self.fan_out.channels():
            if batch := batches.get(channel.name):
                await self._encode(batch)
                batches[channel.name] = await self._accepted_part(attempt, batch, channel)
        return await self.fan_out.begin(batches, attempt.stamp, options=attempt.options)

    async def _begin_balanced(
        self, attempt: BatchAttempt, batches: dict[str, ChannelBatch], load_balancer: LoadBalancer
    ) -> SubmittedCommits:
        await self._encode(batches[_UNPICKED])
        batches[_UNPICKED] = await self._accepted_part(attempt, batches[_UNPICKED], None)
        name = await self.fan_out.pick(load_balancer, batches[_UNPICKED], attempt.stamp, attempt.options)
        batches[_UNPICKED] = await self._accepted_part(attempt, batches[_UNPICKED], self._registry.get(name))
        return await self.fan_out.begin({name: batches[_UNPICKED]}, attempt.stamp, name, attempt.options)

    async def _encode(self, batch: ChannelBatch) -> None:
        if batch.table.count > _LOOP_EVENTS_MAX:
            await asyncio.to_thread(batch.unencodable)

    async def _accepted_part(self, attempt: BatchAttempt, batch: ChannelBatch, channel: Channel | None) -> ChannelBatch:
        """Sets aside the events that the channel (None: any channel) can never accept; returns the others."""
        refused = batch.unencodable() if channel is None else batch.unstorable(channel)
        for reason in dict.fromkeys(refused.values()):
            table = batch.table.chosen([refused.get(index) == reason for index in range(batch.table.count)])
            where = {"step": "encoding"} if channel is None else {"channel": channel.name}
            await self._set_aside(attempt, table, {"reason": reason, **where})
        return batch.without(refused) if refused else batch

    def _note_stored(self, attempt: BatchAttempt) -> None:
        component, run = self._component, attempt.run
        component.record_progress(attempt.table.count, attempt.table.body_bytes)
        component.record_outcome(EventOutcome.FILTERED, run.filtered_count)
        for dropped in attempt.dropped:
            self._dead_letters.drop(*dropped)
        if self._load_balancer is None and (count := unrouted_count(run.table, run.masks)):
            component.record_outcome(EventOutcome.UNROUTED, count)
            self._log.log(logging.WARNING, "events for which the selector has no channel were dropped", "", count)


def _refusal(event_count: int, fields: Mapping[str, str]) -> MillraceError:
    """Returns the error for a batch with events that can never be stored."""
    if channel := fields.get("channel"):
        return EventTooLargeError(
            f"events: channel {channel!r} can never accept {event_count} of them: {fields['reason']}"
        )
    return BadArgumentError(f"events: {fields['step']} refuses {event_count} of them: {fields['reason']}")
