"""Many events at once, and the futures that tell what became of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import overload

from millrace_client.errors import BufferFullError, MillraceError
from millrace_client.events import Events
from millrace_client.producing.bulk import bulk_of
from millrace_client.producing.intake import Intake
from millrace_client.producing.lanes import Gathering
from millrace_client.producing.pages import Page, SendFuture
from millrace_client.producing.results import Outcome, SendResult
from millrace_client.producing.sending import parts_of

_RUN_EVENTS_MIN = 128
_RUN_EVENTS_MAX = 512
"""How many events go into a page together. For 500 the lock is held for some 80 us."""

Key = str | bytes | None


@dataclass(frozen=True, slots=True)
class SendSummary:
    """What became of many events together, as far as it is settled."""

    stored_count: int
    """How many are stored, counted from the first: all, or those before `failure`."""
    repeated_count: int
    """Of these, stored by an earlier attempt or an earlier producer of the same id."""
    first_sequence: int | None
    """Of the others, the first one's sequence in the channel; None where there is none."""
    last_sequence: int | None
    """The last one's sequence. Events of other producers may lie between."""
    failure: SendResult | None
    """The first event that is not stored; None: all are."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Events that lie side by side in a page."""

    page: Page
    first: int
    """Index of the first."""
    count: int


class SendFutures(Sequence[SendFuture]):
    """What will become of many events, in their order: a future for each, made when it is asked for."""

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
        raise IndexError(f"there are {self._count} events; index {index} is none of them")

    def __iter__(self) -> Iterator[SendFuture]:
        for page, index in self._places():
            yield SendFuture(page, index)

    def results(self, timeout_seconds: float | None = None) -> list[SendResult]:
        """Waits until all are settled; tells of each event whether it is stored.

        Raises:
            TimeoutError: Some are not settled that long after the one before them.
        """
        return [future.settled(timeout_seconds) for future in self]

    def summary(self, timeout_seconds: float | None = None) -> SendSummary:
        """Waits until all are stored or one has failed; tells of all together, for less than what `results` costs.

        Raises:
            TimeoutError: Some are not settled that long after those before them.
        """
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
            sequence = outcome.sequence_of(offset)
            if sequence is None:
                repeated_count += 1
            else:
                first_sequence = first_sequence or sequence
                last_sequence = sequence
        return SendSummary(stored_count, repeated_count, first_sequence, last_sequence, failure)

    def _places(self) -> Iterator[tuple[Page, int]]:
        for run in self._runs:
            for index in range(run.first, run.first + run.count):
                yield run.page, index

    def __repr__(self) -> str:
        return f"<SendFutures of {self._count} events>"


def put_many(intake: Intake, gathering: Gathering, key: Key, events: Events) -> SendFutures:
    """Takes events, each as `Intake.put` does; what cannot be taken has failed when this returns.

    Once the time for waiting has passed without room, it has passed for all of them.
    """
    runs: list[_Run] = []
    remaining = iter(events)
    may_wait = True
    run_events = _RUN_EVENTS_MIN
    while some := list(islice(remaining, run_events)):
        bulk = bulk_of(some)
        if bulk is not None:
            run_events = max(_RUN_EVENTS_MIN, min(intake.run_events(gathering, bulk), _RUN_EVENTS_MAX))
        may_wait = may_wait and (bulk is None or intake.wait_for_room(bulk.held_bytes))
        place = None if bulk is None else intake.put_bulk(gathering, key, bulk)
        if place is not None:
            runs.append(_Run(*place, len(some)))
            continue
        for event in some:
            try:
                body, headers = parts_of(event)
                runs.append(_Run(*intake.put(gathering, key, body, headers, None, may_wait), 1))
            except MillraceError as error:
                may_wait = may_wait and not isinstance(error, BufferFullError)
                runs.append(_refused(intake, gathering.channel, error))
    return SendFutures(runs)


def _refused(intake: Intake, channel: str, error: MillraceError) -> _Run:
    intake.refuse_behind(error)
    page = Page(intake.lock, 0.0)
    page.settle(0, 1, 0, Outcome(channel, error=error))
    return _Run(page, 0, 1)
