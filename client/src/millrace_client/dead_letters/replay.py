"""A replay: returns dead letters to the channels that they came from."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace_client.channel import Channel
from millrace_client.client import Client
from millrace_client.dead_letters import DeadLetter, LetterSelection, letter_of
from millrace_client.dead_letters.parked_events import LeaseKeeper, ParkedEvents, QueueChangedError
from millrace_client.dead_letters.targets import Refusal, ReplayProgress, RetryPolicy, Targets, gone_reason
from millrace_client.errors import LeaseExpiredError, TxnNotFoundError
from millrace_client.events import Batch, Event
from millrace_client.transaction import Transaction

BATCH_EVENTS = 1_000
"""The most dead letters that are taken at once."""

BATCH_BYTES_MAX = 4 * 1024 * 1024
"""The maximum number of bytes of their bodies."""

REFUSED_MAX = 100_000
"""The most refused letters of a replay, which must remember each of them."""

FRUITLESS_PASSES_MAX = 10
"""How often a replay without progress starts over after other clients changed the queue."""

REASONS_MAX = 100
"""The most different reasons that are counted separately."""

_OTHER_REASONS = "other reasons"
_PAGE_EVENTS = 10_000
_RETURNED = "other clients held them while this ran; run the command again"
_NO_ORIGIN = "they have no header with their channel; name one with --to"


@dataclass(slots=True)
class ReplayReport:
    """What a replay has done."""

    replayed: Counter[str] = field(default_factory=Counter)
    """Returned events by their channel; in a dry run, events that would return."""
    left: Counter[str] = field(default_factory=Counter)
    """Selected events that stay, by the reason, a sentence."""
    skipped: int = 0
    """Events that were not selected: other dead letters, and ordinary events."""
    held_elsewhere: int = 0
    """Events that other open transactions held when the replay began."""

    @property
    def replayed_count(self) -> int:
        return self.replayed.total()

    @property
    def left_count(self) -> int:
        return self.left.total()

    def leave(self, reason: str, count: int = 1) -> None:
        is_known = reason in self.left or len(self.left) < REASONS_MAX
        self.left[reason if is_known else _OTHER_REASONS] += count


class ReplayError(Exception):
    """Raised when a replay cannot continue; the message says why."""


@dataclass(frozen=True, kw_only=True)
class ReplayPlan:
    """Which letters return, and where to."""

    selection: LetterSelection = field(default_factory=LetterSelection)
    target: str | None = None
    """Their channel. None: for each letter the channel that it was taken from, or was meant for."""
    keep_headers: bool = False
    """Whether events keep the headers about their rejection."""


class _EventOutcome(NamedTuple):
    """What happens to an event."""

    target: str = ""
    """The channel that it returns to; empty: it stays."""
    reason: str = ""
    """Why it stays although it is selected."""


class _Run(NamedTuple):
    """Neighbours in the queue that all return, or all stay."""

    returns: bool
    event_count: int
    first_sequence: int
    last_sequence: int


class _Page:
    """A part of the queue, whose letters are taken in one transaction while the events that stay are parked.

    Attributes:
        position: The sequence to continue at.
        first_taken: The oldest sequence that was taken.
    """

    def __init__(self, runs: list[_Run], parked: ParkedEvents) -> None:
        self.runs = runs
        self.parked = parked
        self.position = 0
        self.first_taken = 0

    def take(self, txn: Transaction, events_max: int) -> list[Batch]:
        """Takes the letters that return, up to one batch; raises QueueChangedError if the queue has changed."""
        taken: list[Batch] = []
        events_left, bytes_left = events_max, BATCH_BYTES_MAX
        for run in self.runs:
            if not run.returns:
                self.parked.skip(run.event_count, run.last_sequence)
                self.position = run.last_sequence + 1
                continue
            self.parked.park()
            count_left = run.event_count
            while count_left > 0:
                if events_left <= 0 or bytes_left <= 0:
                    return taken
                wanted = min(count_left, events_left)
                batches = txn.take(max_events=wanted, max_bytes=bytes_left, wait_seconds=0)
                if not batches:
                    # Another client has taken them.
                    break
                self.first_taken = self.first_taken or batches[0].first_sequence
                taken += batches
                count = sum(map(len, batches))
                count_left -= count
                events_left -= count
                bytes_left -= sum(map(_body_bytes, batches))
                self.position = batches[-1].last_sequence + 1
            self.position = max(self.position, run.last_sequence + 1)
        return taken


class _RefusedError(Exception):
    """Rolls back a batch of which some letters must stay."""

    def __init__(self, refusals: list[Refusal]) -> None:
        super().__init__()
        self.refusals = refusals


class Replay:
    """Moves dead letters from a channel to their own channels, each exactly once.

    Letters are stored before their removal is committed, under stamps of the dead-letter channel's id and their
    sequences. So a replay that was interrupted at any point is completed by another one: nothing is lost, and nothing
    is stored twice in a channel. Events that stay keep their positions. Events that arrive in the meantime are left for
    the next replay.

    Raises:
        ChannelNotFoundError: The dead-letter channel does not exist.
    """

    def __init__(
        self, client: Client, channel_name: str, plan: ReplayPlan, retry: RetryPolicy, progress: ReplayProgress
    ) -> None:
        info = client.admin.get_channel(channel_name)
        self._channel: Channel = client.channel(channel_name)
        self._plan = plan
        self._progress = progress
        self._targets = Targets(client, info.channel_id, retry, progress, keep_headers=plan.keep_headers)
        self._end_sequence = info.gauges.next_sequence
        self._batch_events = min(BATCH_EVENTS, info.config.transaction_capacity)
        self._refused: dict[int, str] = {}
        """The reasons of refused letters, by their sequence."""
        self.report = ReplayReport(held_elsewhere=info.gauges.taken_events)
        """What the replay has done so far."""

    def survey(self) -> None:
        """Counts what would return to which channel, and takes nothing."""
        for outcome, _ in self._outcomes(0, self._end_sequence):
            if outcome.target:
                self.report.replayed[outcome.target] += 1
            else:
                self._count_staying(outcome)

    def run(self) -> None:
        """Returns the letters.

        Raises:
            ReplayError: Too many letters are refused, or other clients keep changing the queue.
            MillraceError: The server does not respond, or refuses for longer than the retry time; letters that have
                returned so far stay there, and the rest is where it was.
        """
        fruitless_count = 0
        while fruitless_count < FRUITLESS_PASSES_MAX:
            before = self.report.replayed_count
            try:
                with ParkedEvents(self._channel) as parked:
                    self._pass(parked)
            except (QueueChangedError, LeaseExpiredError, TxnNotFoundError):
                fruitless_count = fruitless_count + 1 if self.report.replayed_count == before else 0
            else:
                self._count_left()
                return
        raise ReplayError(
            f"other clients keep taking from {self._channel.name} or returning events to it; try again when they have "
            "ended"
        )

    def _count_left(self) -> None:
        for outcome, _ in self._outcomes(0, self._end_sequence):
            self._count_staying(outcome._replace(reason=_RETURNED) if outcome.target else outcome)

    def _count_staying(self, outcome: _EventOutcome) -> None:
        if outcome.reason:
            self.report.leave(outcome.reason)
        else:
            self.report.skipped += 1

    def _pass(self, parked: ParkedEvents) -> None:
        position = 0
        while position < self._end_sequence:
            page = _Page(self._read(position), parked)
            if not page.runs:
                return
            try:
                self._take_batch(page)
            except _RefusedError as error:
                # All of them are back. Those that may return do so when the queue has been read again.
                self._remember(error.refusals)
                parked.forget()
                position = page.first_taken
            else:
                position = page.position

    def _read(self, position: int) -> list[_Run]:
        """Reads the next events, up to one batch of letters that return, without taking them."""
        runs: list[_Run] = []
        returning_count = 0
        for outcome, sequence in self._outcomes(position, _PAGE_EVENTS):
            returns = bool(outcome.target)
            if runs and runs[-1].returns == returns:
                runs[-1] = runs[-1]._replace(event_count=runs[-1].event_count + 1, last_sequence=sequence)
            else:
                runs.append(_Run(returns, 1, sequence, sequence))
            returning_count += returns
            if returning_count >= self._batch_events:
                break
        return runs

    def _outcomes(self, position: int, count_max: int) -> Iterator[tuple[_EventOutcome, int]]:
        """Yields the outcome of each event from a sequence on, with its sequence."""
        if position >= self._end_sequence:
            return
        for batch in self._channel.peek(from_sequence=position, max_events=count_max):
            for sequence, event in enumerate(batch, batch.first_sequence):
                if sequence >= self._end_sequence:
                    return
                yield self._outcome_of(event), sequence

    def _outcome_of(self, event: Event) -> _EventOutcome:
        letter = letter_of(event)
        if letter is None or not self._plan.selection.includes(letter):
            return _EventOutcome()
        if letter.sequence in self._refused:
            return _EventOutcome(reason=self._refused[letter.sequence])
        target = self._plan.target or letter.origin
        if not target:
            return _EventOutcome(reason=_NO_ORIGIN)
        if target == self._channel.name:
            return _EventOutcome(reason=f"they came from {target} itself; name another channel with --to")
        if not self._targets.exists(target):
            return _EventOutcome(reason=gone_reason(target))
        return _EventOutcome(target)

    def _take_batch(self, page: "_Page") -> None:
        """Takes a batch of letters, and returns them to their channels."""
        with self._channel.transaction() as txn:
            lease = LeaseKeeper(txn)

            def before_try() -> None:
                lease.renew_if_due()
                page.parked.renew_if_due()

            batches = page.take(txn, self._batch_events)
            letters = self._letters_by_target(batches)
            refusals = [
                refusal
                for target, its_letters in letters.items()
                for refusal in self._targets.store(target, its_letters, before_try)
            ]
            if refusals:
                raise _RefusedError(refusals)
        if batches:
            self.report.replayed.update({target: len(its_letters) for target, its_letters in letters.items()})
            self._progress.committed(sum(map(len, batches)), sum(map(_body_bytes, batches)))

    def _letters_by_target(self, batches: Sequence[Batch]) -> dict[str, list[DeadLetter]]:
        """Groups taken letters by their channel, in order; raises QueueChangedError if one must stay."""
        letters: dict[str, list[DeadLetter]] = {}
        for batch in batches:
            for event in batch:
                outcome = self._outcome_of(event)
                letter = DeadLetter(event)
                if not outcome.target or letter.sequence >= self._end_sequence:
                    raise QueueChangedError
                letters.setdefault(outcome.target, []).append(letter)
        return letters

    def _remember(self, refusals: Sequence[Refusal]) -> None:
        self._refused.update({refusal.letter.sequence: refusal.reason for refusal in refusals})
        if len(self._refused) > REFUSED_MAX:
            raise ReplayError(
                f"more than {REFUSED_MAX:,} events are refused, such as {refusals[-1].letter.sequence:,}: "
                f"{refusals[-1].reason}"
            )


def _body_bytes(batch: Batch) -> int:
    return len(batch.columns.bodies)
