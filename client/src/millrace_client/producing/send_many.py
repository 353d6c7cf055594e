"""Sends many events at once; and their futures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import overload

from millrace.tracing import TRACING
from millrace_client.errors import BufferFullError, MillraceError, SendResult
from millrace_client.events import Events
from millrace_client.producing.accumulator import Accumulator
from millrace_client.producing.channel_buffer import ChannelBuffer
from millrace_client.producing.pages import Page, SendFuture
from millrace_client.producing.results import Outcome
from millrace_client.producing.sending import bulk_of, parts_of

_RUN_EVENTS_MIN = 128
_RUN_EVENTS_MAX = 512
"""The maximum number of events that go into a page together. For 500 the lock is held for about 80 us."""

Key = str | bytes | None


@dataclass(frozen=True, slots=True)
class SendSummary:
    """The result of many events together, as far as they are settled."""

    stored_count: int
    """The number of stored events from the first on: all, or those before `failure`."""
    repeated_count: int
    """How many of them an earlier attempt, or an earlier producer of the same id, had stored."""
    first_sequence: int | None
    """The sequence of the first of the others; None if there is none, or they went to a source, not to a channel."""
    last_sequence: int | None
    """The sequence of the last of them. Events of other producers may be in between."""
    failure: SendResult | None
    """The result of the first event that is not stored; None if all are."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Events that are adjacent in a page."""

    page: Page
    first: int
    count: int


class SendFutures(Sequence[SendFuture]):
    """The futures of many events, in their order; each is created when it is accessed."""

    def __init__(self, runs: Sequence[_Run]) -> None:
        self._runs = runs
        self._count = sum(run.count for run in runs)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> SendFuture: ...

    @overload
    def __getitem__(self, index: slice) -> list[SendFuture]: ...

    def __getitem__(self, index: int | slice) -> SendFuture | list[SendFuture]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(self._count))]
        position = index + self._count if index < 0 else index
        for run in self._runs:
            if 0 <= position < run.count:
                return SendFuture(run.page, run.first + position)
            position -= run.count
        raise IndexError(f"index {index} is out of range; there are {self._count} events")

    def __iter__(self) -> Iterator[SendFuture]:
        for page, index in self._places():
            yield SendFuture(page, index)

    def results(self, timeout_seconds: float | None = None) -> list[SendResult]:
        """Waits until all events are settled; returns the result of each.

        Raises:
            TimeoutError: An event was not settled within the timeout after the one before it.
        """
        return [future.settled(timeout_seconds) for future in self]

    def summary(self, timeout_seconds: float | None = None) -> SendSummary:
        """Waits until all events are stored or one has failed; returns one result for all, faster than `results`."""
        stored_count = repeated_count = 0
        first_sequence: int | None = None
        last_sequence: int | None = None
        failure: SendResult | None = None
        for page, index in self._places():
            outcome, offset = page.wait_settled(index, timeout_seconds)
            if outcome.error is not None:
                failure = outcome.result(offset)
                break
            stored_count += 1
            repeated_count += offset < outcome.repeated_count
            if (sequence := outcome.sequence_of(offset)) is not None:
                first_sequence = first_sequence or sequence
                last_sequence = sequence
        return SendSummary(stored_count, repeated_count, first_sequence, last_sequence, failure)

    def _places(self) -> Iterator[tuple[Page, int]]:
        for run in self._runs:
            for index in range(run.first, run.first + run.count):
                yield run.page, index

    def __repr__(self) -> str:
        return f"<SendFutures of {self._count} events>"


def put_many(accumulator: Accumulator, buffer: ChannelBuffer, key: Key, events: Events) -> SendFutures:
    """Adds events, each as `Accumulator.put` does; events that are not accepted have failed when this returns.

    Once the time for waiting has passed without space, it has passed for all of them.
    """
    runs: list[_Run] = []
    remaining = iter(events)
    may_wait = True
    run_events = _RUN_EVENTS_MIN
    failure: BaseException | None = None
    while failure is None:
        some, failure = _next_events(remaining, run_events)
        if not some:
            break
        bulk = bulk_of(some)
        if bulk is not None and (spans := TRACING.spans) is not None:
            bulk.add_headers(spans.event_headers({}))
        if bulk is not None:
            run_events = max(_RUN_EVENTS_MIN, min(accumulator.run_events(buffer, bulk), _RUN_EVENTS_MAX))
        may_wait = may_wait and (bulk is None or accumulator.wait_for_space(bulk.held_bytes))
        place = None if bulk is None else accumulator.put_bulk(buffer, key, bulk)
        if place is not None:
            runs.append(_Run(*place, len(some)))
            continue
        for event in some:
            try:
                body, headers = parts_of(event)
                runs.append(_Run(*accumulator.put(buffer, key, body, headers, None, may_wait), 1))
            except MillraceError as error:
                may_wait = may_wait and not isinstance(error, BufferFullError)
                runs.append(_refused(accumulator, buffer.channel, error))
    if failure is not None:
        raise failure
    return SendFutures(runs)


def _next_events(events: Iterator[object], count: int) -> tuple[list[object], BaseException | None]:
    """Returns the next events, and what their iterator raised after them, since it may not yield them again."""
    some: list[object] = []
    try:
        some.extend(islice(events, count))
    except BaseException as failure:  # noqa: BLE001 - raised again once the events are added
        return some, failure
    return some, None


def _refused(accumulator: Accumulator, channel: str, error: MillraceError) -> _Run:
    accumulator.refuse_behind(error)
    page = Page(accumulator.lock, 0.0)
    page.settle(0, 1, 0, Outcome(channel, error=error))
    return _Run(page, 0, 1)
