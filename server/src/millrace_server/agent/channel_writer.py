"""Channel writers, through which a source stores its batches in its channels."""

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from millrace_server.agent.batch_limits import BatchLimits
from millrace_server.agent.batch_router import BatchRouter, Routing
from millrace_server.agent.components import Component, ComponentState, EventOutcome
from millrace_server.agent.events import EventTable, part_of
from millrace_server.agent.interceptor_run import StepError
from millrace_server.agent.interceptors.interceptor import Interceptor
from millrace_server.agent.spans import source_span
from millrace_server.agent.supervision import Backoff, ComponentError, describe, mark_not_owner
from millrace_server.channels.config import ChannelConfig
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import (
    BadArgumentError,
    EventTooLargeError,
    ForbiddenError,
    InternalError,
    MillraceError,
    NotOwnerError,
    OffsetGapError,
    TxnCapacityError,
)

_RETRY_DELAY_SECONDS = 1.0
_WATCH_SECONDS = 0.5
_TO_ALL = Routing()
_ERRORS_OF_BATCHES = (BadArgumentError, EventTooLargeError, ForbiddenError, OffsetGapError, TxnCapacityError)
"""Errors of a batch itself, not of the source or its channels."""


class ChannelWriter:
    """Stores a source's batches in its channels.

    Every batch has a stamp, so that a repeat after a failure stores no second copy. A source that can read its events
    again numbers them in the same way each time, under its own `producer_id`. Any other source uses the next numbers of
    this run (`next_stamp`).

    If a source is cancelled while it waits for a call, its events may be stored or not; after the next `wait_open`,
    `stored_ranges` returns what is stored.

    Attributes:
        router: For sources that begin to store a batch before earlier ones are stored.
    """

    def __init__(  # noqa: PLR0913 - it connects all of these parts
        self,
        registry: ChannelRegistry,
        channels: Sequence[str],
        interceptors: Sequence[Interceptor],
        component: Component,
        events_max: int,
        *,
        routing: Routing = _TO_ALL,
    ) -> None:
        self._registry = registry
        self._component = component
        self._limits = BatchLimits(registry, channels, events_max)
        self.router = BatchRouter(registry, channels, interceptors, routing, component)
        self._run_id = f"{component.name}/{secrets.token_hex(8)}"
        self._next_number = 1
        self._watch_task: asyncio.Task[None] | None = None

    @property
    def events_max(self) -> int:
        """The maximum number of events in a batch. Read it for each batch: it changes with the channels."""
        return self._limits.events_max

    @property
    def body_bytes_max(self) -> int:
        """The maximum bytes of the bodies in a batch, unless it is a single event. It changes as well."""
        return self._limits.body_bytes_max

    def required_configs(self) -> dict[str, ChannelConfig]:
        """Returns the current configurations of the channels that must not miss an event, by name."""
        return {name: self._registry.find(name).config for name in self.router.required}

    async def wait_open(self) -> None:
        """Waits until all required channels are open and their pending commits have ended.

        Only then is it known what they have stored. Called before each run of the source. Raises MillraceError if a
        channel does not exist, could not be opened, or cannot be written to.
        """
        for name in self.router.required:
            hosted = self._registry.find(name)
            await hosted.opened.wait()
            await hosted.channel.appends.wait_until_durable()

    def report_running(self) -> None:
        """Marks the source as running; called once it has opened its input."""
        self._component.mark_running()

    def report_stopped(self, reason: str) -> None:
        """Marks the source as stopped, with a reason; called right before its run ends."""
        self._component.mark_stopped(reason)

    def count_dropped(self, count: int) -> None:
        self._component.record_outcome(EventOutcome.DROPPED, count)

    def count_filtered(self, count: int) -> None:
        self._component.record_outcome(EventOutcome.FILTERED, count)

    def note_incident(self, incident: str, count: int = 1) -> None:
        """Counts an incident; see `Component.incident_counts`."""
        self._component.record_incident(incident, count)

    def next_stamp(self, count: int) -> Stamp:
        """Returns a stamp with the next numbers of this run, for a source that cannot read its events again."""
        first = self._next_number
        self._next_number += count
        return Stamp(self._run_id, first, first + count - 1)

    def stored_ranges(self, producer_id: str) -> list[list[tuple[int, int]]]:
        """Returns the numbers of a producer that each required channel has stored.

        They are ascending ranges, both ends included. A batch must not partly overlap a range: split it at the ends.
        """
        return [list(channel.ledger.intervals_of(producer_id)) for channel in self.router.fan_out.channels()]

    async def deliver(self, table: EventTable, stamp: Stamp) -> None:
        """Stores events in all their channels, and waits for as long as that takes.

        While a channel is full, or cannot store anything, the source's state says so. The table is not changed. A batch
        with as many numbers as events may have any size; it is stored in parts if necessary. Concurrent calls must not
        have the same numbers.

        Raises ComponentError if the batch is too large for a channel, or partly overlaps stored events. The source must
        then end its run: in the next one, `stored_ranges` shows where to resume, and the limits are smaller.
        """
        with self.span(table) as traced:
            for piece in self._limits.pieces(traced, stamp):
                await self._deliver(*piece)

    def span(self, table: EventTable) -> AbstractContextManager[EventTable]:
        """Returns a context with the span of a batch, if tracing is on; it yields the events to store."""
        return source_span(self._component.name, self.router.required, table)

    async def _deliver(self, table: EventTable, stamp: Stamp) -> None:
        backoff = Backoff()
        attempt = self.router.start(table, stamp)
        while True:
            try:
                await self.router.route(attempt)
            except BadArgumentError as error:
                raise ComponentError(f"a batch does not match what is stored: {_describe(error)}") from error
            except (MillraceError, StepError, ComponentError) as error:
                self._back_off(error)
                if isinstance(error, TxnCapacityError) and table.count > 1:
                    await self._deliver_smaller(table, stamp, error)
                    return
                await self._component.wait_for_retry(backoff.next_seconds())
            else:
                self._limits.note_stored()
                return

    async def _deliver_smaller(self, table: EventTable, stamp: Stamp, error: TxnCapacityError) -> None:
        if stamp.span != table.count:
            self._limits.note_too_large()
            raise ComponentError(
                f"a batch is too large; its events are read again in smaller batches: {_describe(error)}"
            ) from error
        middle = table.count // 2
        await self._deliver(*part_of(table, stamp, 0, middle))
        await self._deliver(*part_of(table, stamp, middle, table.count))

    async def try_deliver(self, table: EventTable, stamp: Stamp) -> None:
        """Stores events as `deliver` does, but raises MillraceError if they cannot be stored now.

        The call may be repeated with the same stamp, which stores the events once; this does not help after
        TxnCapacityError and BadArgumentError.
        """
        with self.span(table) as traced:
            for piece in self._limits.pieces(traced, stamp):
                with self.reported(piece[0]):
                    await self.router.route(self.router.start(*piece))

    @contextmanager
    def reported(self, table: EventTable) -> Iterator[None]:
        """A context that shows in the source's state why a batch is not stored; it raises only MillraceError."""
        try:
            yield
        except _ERRORS_OF_BATCHES:
            raise
        except MillraceError as error:
            self._back_off(error)
            self._watch_for_space(table)
            raise
        except (StepError, ComponentError) as error:
            self._back_off(error)
            raise InternalError(str(error), retry_delay_seconds=_RETRY_DELAY_SECONDS) from error

    def _watch_for_space(self, table: EventTable) -> None:
        """Marks the source as running once the channels have space, even if its clients send no events for a while."""
        if self._watch_task is not None:
            self._watch_task.cancel()
        self._watch_task = asyncio.create_task(self._recover(table, self._component.reason))

    async def _recover(self, table: EventTable, reason: str) -> None:
        component = self._component
        idle = {ComponentState.BACKING_OFF, ComponentState.STANDING_BY}
        while component.state in idle and component.reason == reason:
            await asyncio.sleep(_WATCH_SECONDS)
            if component.reason == reason and self.router.has_space(table):
                component.mark_running()

    def _back_off(self, error: MillraceError | StepError | ComponentError) -> None:
        if isinstance(error, NotOwnerError):
            mark_not_owner(self._component, error, _describe(error))
            return
        self._component.mark_backing_off(_describe(error), error.cause if isinstance(error, StepError) else None)


def _describe(error: Exception) -> str:
    """Returns an error as the source's state shows it, with the channel, since there may be several."""
    if isinstance(error, MillraceError) and "channel" in error.metadata:
        return f"channel {error.metadata['channel']}: {describe(error)}"
    return describe(error)
