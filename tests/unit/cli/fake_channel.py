"""A channel without a server, which fails when a test says so."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

from millrace.columns import CommitTimes, columns_from_events
from millrace_client import (
    Batch,
    ChannelCounters,
    ChannelFullError,
    ChannelGauges,
    ChannelInfo,
    ChannelNotFoundError,
    ChannelState,
    ChannelType,
    ClaimStatus,
    ComponentCounters,
    ComponentInfo,
    ComponentKind,
    ComponentState,
    Event,
    EventTooLargeError,
    FoundSequence,
    MillraceError,
    Receipt,
    Stamp,
    TxnCapacityError,
)
from millrace_client.channel_info import ChannelLimits
from millrace_client.dead_letters.targets import StampedEvents

START_TIME = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

LIMITS = ChannelLimits(
    type=ChannelType.MEMORY,
    capacity=100,
    transaction_capacity=100,
    byte_capacity=1_000_000,
    byte_capacity_buffer_percentage=20,
    keep_alive_seconds=3.0,
    lease_seconds=30.0,
    open_transactions_max=5000,
)


def zeros_of(kind: type[ChannelGauges | ChannelCounters]) -> dict[str, Any]:
    """A 0 for each field without a default."""
    return {one.name: 0 for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}


GAUGES = replace(ChannelGauges(**zeros_of(ChannelGauges)), body_bytes_max=800_000, first_sequence=1, next_sequence=1)
COUNTERS = ChannelCounters(**zeros_of(ChannelCounters))
ORDERS = ChannelInfo(
    name="orders",
    channel_id="c-1",
    config=LIMITS,
    gauges=GAUGES,
    counters=COUNTERS,
    claim=None,
    start_time=START_TIME,
    state=ChannelState.OPEN,
    fault="",
    replayed_fraction=1.0,
)

ACCESS = ComponentInfo(
    kind=ComponentKind.SOURCE,
    name="access",
    type="taildir",
    state=ComponentState.RUNNING,
    reason="",
    since=START_TIME,
    counters=ComponentCounters(
        event_count=1234,
        batch_count=5,
        body_bytes=2048,
        failure_count=0,
        filtered_count=2,
        unrouted_count=0,
        dead_lettered_count=0,
        dropped_count=0,
        missed_count=0,
    ),
    progress_age_seconds=90.0,
)


def batch_of(events: Iterable[Event], first_sequence: int = 1, skipped_events: int = 0) -> Batch:
    events = list(events)
    (columns,) = columns_from_events((event.headers, event.body) for event in events)
    times = [event.commit_time for event in events if event.commit_time]
    committed = (
        CommitTimes(
            round(times[0].timestamp() * 1e6), [(time - times[0]) // timedelta(microseconds=1) for time in times]
        )
        if times
        else CommitTimes()
    )
    return Batch(first_sequence, columns, skipped_events=skipped_events, times=committed)


def batches_of(events: Iterable[Event]) -> list[Batch]:
    """Stored events as a channel returns them: one batch for each contiguous range of sequences."""
    runs: list[list[Event]] = []
    for event in events:
        if runs and event.sequence == (runs[-1][-1].sequence or 0) + 1:
            runs[-1].append(event)
        else:
            runs.append([event])
    return [batch_of(run, run[0].sequence or 0) for run in runs]


@dataclass
class FakeTransaction:
    channel: "FakeChannel"
    taken: list[Event] = field(default_factory=list)
    lease_seconds: float | None = None

    def begin(self) -> Self:
        self.channel.check()
        return self

    def take(self, max_events: int = 0, max_bytes: int = 0, wait_seconds: float | None = None) -> list[Batch]:
        self.channel.waits.append(wait_seconds)
        self.channel.raise_sometimes()
        space = self.channel.config.transaction_capacity - len(self.taken)
        if not space:
            raise TxnCapacityError("the transaction is full", channel=self.channel.name)
        count = min(max_events or space, space, len(self.channel.events))
        taken = [self.channel.events.popleft() for _ in range(count)]
        self.taken += taken
        return batches_of(taken)

    def rollback(self) -> None:
        self.channel.events = deque(sorted([*self.taken, *self.channel.events], key=lambda event: event.sequence or 0))
        self.taken = []

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        commit_error = self.channel.commit_errors.popleft() if self.channel.commit_errors and not error else None
        if error or commit_error:
            self.rollback()
        if commit_error:
            raise commit_error


@dataclass
class FakeChannel:
    """Stores events; its next calls raise the given errors, one each; None lets a call pass."""

    name: str
    config: ChannelLimits = LIMITS
    claim: ClaimStatus | None = None
    state: ChannelState = ChannelState.OPEN
    fault: str = ""
    replayed_fraction: float = 1.0
    is_configured: bool = False
    is_overridden: bool = False
    owner: str = ""
    exists: bool = True
    events: deque[Event] = field(default_factory=deque)
    next_sequence: int = 1
    stored: set[tuple[str, int]] = field(default_factory=set)
    stamps: list[Stamp] = field(default_factory=list)
    waits: list[float | None] = field(default_factory=list)
    append_errors: deque[BaseException | None] = field(default_factory=deque)
    commit_errors: deque[BaseException | None] = field(default_factory=deque)
    followed: list[Batch | BaseException] = field(default_factory=list)
    body_bytes_max: int = 1_000_000
    taken_events: int = 0
    producer_count: int = 0
    raise_sometimes: Callable[[], None] = field(default=lambda: None)
    """Called by takes, and by appends before and after they have stored."""

    def check(self) -> None:
        if not self.exists:
            raise ChannelNotFoundError(f"there is no channel {self.name!r}", channel=self.name)

    def append(self, events: Iterable[Event | bytes | str], stamp: Stamp | None = None) -> Receipt:
        self.check()
        assert stamp is not None
        self.stamps.append(stamp)
        if self.append_errors and (error := self.append_errors.popleft()):
            raise error
        self.raise_sometimes()
        offered = [event if isinstance(event, Event) else Event(_bytes_of(event)) for event in events]
        if any(len(event.body) > self.body_bytes_max for event in offered):
            raise EventTooLargeError(f"an event has more than {self.body_bytes_max} bytes.", channel=self.name)
        if len(offered) > self.config.transaction_capacity:
            raise TxnCapacityError(f"{len(offered)} are too many", channel=self.name)
        numbered = zip(range(stamp.first_sequence, stamp.last_sequence + 1), offered, strict=True)
        new = [(number, event) for number, event in numbered if (stamp.producer_id, number) not in self.stored]
        if len(self.events) + len(new) > self.config.capacity:
            raise ChannelFullError(f"channel {self.name!r} is full", channel=self.name, retry_delay_seconds=0.5)
        first = self.next_sequence
        for number, event in new:
            self.stored.add((stamp.producer_id, number))
            self.add(event)
        last = self.next_sequence - 1
        self.raise_sometimes()
        return Receipt(first if new else 0, last if new else 0, deduplicated=len(new) <= stamp.last_sequence - first)

    def add(self, event: Event | bytes | str) -> None:
        if not isinstance(event, Event):
            event = Event(_bytes_of(event))
        self.events.append(replace(event, sequence=self.next_sequence))
        self.next_sequence += 1

    def transaction(self) -> FakeTransaction:
        return FakeTransaction(self)

    def find_sequence(self, time: datetime) -> FoundSequence:
        self.check()
        found = next((event for event in self.events if event.commit_time and event.commit_time >= time), None)
        if found is None:
            return FoundSequence(self.next_sequence, None)
        return FoundSequence(found.sequence or 0, found.commit_time)

    def peek(
        self, from_sequence: int = 0, max_events: int = 0, *, follow: bool = False, since: datetime | None = None
    ) -> Iterator[Batch]:
        self.check()
        if follow:
            yield from self._follow()
            return
        from_sequence = self.find_sequence(since).sequence if since else from_sequence
        shown = [event for event in self.events if (event.sequence or 0) >= from_sequence][: max_events or 10]
        yield from batches_of(shown)

    def _follow(self) -> Iterator[Batch]:
        for batch in self.followed:
            if isinstance(batch, BaseException):
                raise batch
            yield batch

    def info(self) -> ChannelInfo:
        gauges = replace(
            GAUGES,
            queued_events=len(self.events),
            taken_events=self.taken_events,
            body_bytes=sum(len(event.body) for event in self.events),
            next_sequence=self.next_sequence,
            producers=self.producer_count,
        )
        counters = replace(COUNTERS, event_put_success_count=self.next_sequence - 1)
        return replace(
            ORDERS,
            name=self.name,
            config=self.config,
            gauges=gauges,
            counters=counters,
            claim=self.claim,
            state=self.state,
            fault=self.fault,
            replayed_fraction=self.replayed_fraction,
            is_configured=self.is_configured,
            is_overridden=self.is_overridden,
            owner=self.owner,
        )


def fake_append_pipelined(
    channel: FakeChannel, appends: Iterable[StampedEvents], after_each: Callable[[], None]
) -> int:
    """Replaces `append_pipelined`."""
    stored_count = 0
    for events, stamp in appends:
        try:
            channel.append(events, stamp)
        except MillraceError:
            break
        stored_count += 1
        after_each()
    return stored_count


def _bytes_of(body: bytes | str) -> bytes:
    return body.encode() if isinstance(body, str) else body
