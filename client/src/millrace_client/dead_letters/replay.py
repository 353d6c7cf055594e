"""A replay: dead letters go back to the channels that they came from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace_client.channel import Channel
from millrace_client.client import Client
from millrace_client.dead_letters.account import ReplayAccount
from millrace_client.dead_letters.holding import DisturbedError, Holding, LeaseKeeper
from millrace_client.dead_letters.letters import DeadLetter, LetterChoice, letter_of
from millrace_client.dead_letters.targets import Refusal, ReplayPatience, ReplayProgress, Targets, gone_reason
from millrace_client.errors import LeaseExpiredError, TxnNotFoundError
from millrace_client.events import Batch, Event
from millrace_client.transaction import Transaction

BATCH_EVENTS = 1_000
"""Most dead letters that are taken at once."""

BATCH_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of their bodies."""

REFUSED_MAX = 100_000
"""Letters that channels may refuse before a replay ends: it must remember each of them."""

FRUITLESS_PASSES_MAX = 10
"""So often a replay that is disturbed begins anew without any progress."""

_PAGE_EVENTS = 10_000
_RETURNED = "others held them while this ran; run the command again"
_NO_ORIGIN = "they do not tell which channel they were meant for; name one with --to"


class ReplayError(Exception):
    """Returned when a replay cannot go on; says why in a sentence."""


@dataclass(frozen=True, kw_only=True)
class ReplayPlan:
    """What is to go back, and where to."""

    choice: LetterChoice = field(default_factory=LetterChoice)
    """Which letters."""
    target: str | None = None
    """Where they go; None: each to the channel that it came from, or was meant for."""
    keep_headers: bool = False
    """Whether what tells of the rejection stays with the event."""


class _Fate(NamedTuple):
    """What is to become of an event."""

    target: str = ""
    """Where it goes; empty: it stays."""
    reason: str = ""
    """Why it stays although it is meant."""


class _Run(NamedTuple):
    """Neighbours in the queue that go together, or stay together."""

    is_going: bool
    event_count: int
    first_sequence: int
    last_sequence: int


class _Work:
    """What was seen of the queue, to be taken in one transaction as far as it goes; what stays is held meanwhile.

    Attributes:
        runs: What was seen.
        holding: What holds those that stay.
        position: Where to go on when this is done.
        first_taken: The oldest sequence that was taken.
    """

    def __init__(self, runs: list[_Run], holding: Holding) -> None:
        self.runs = runs
        self.holding = holding
        self.position = 0
        self.first_taken = 0

    def take(self, txn: Transaction, events_max: int) -> list[Batch]:
        """Takes letters that go, up to a batch of them.

        Raises:
            DisturbedError: The queue is not as it was seen.
        """
        taken: list[Batch] = []
        events_left, bytes_left = events_max, BATCH_BYTES_MAX
        for run in self.runs:
            if not run.is_going:
                self.holding.pass_by(run.event_count, run.last_sequence)
                self.position = run.last_sequence + 1
                continue
            self.holding.hold()
            count_left = run.event_count
            while count_left > 0:
                if events_left <= 0 or bytes_left <= 0:
                    return taken
                wanted = min(count_left, events_left)
                batches = txn.take(max_events=wanted, max_bytes=bytes_left, wait_seconds=0)
                if not batches:
                    # Somebody else has taken them.
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
    """Rolls a batch back of which some letters must stay."""

    def __init__(self, refusals: list[Refusal]) -> None:
        super().__init__()
        self.refusals = refusals


class Replay:
    """Takes dead letters out of a channel and appends each to its own, once.

    Letters are stored before they are taken for good, under a stamp of the dead-letter channel's id and their
    sequences. So one that was interrupted at any point, by whatever, is finished by another one: nothing is lost, and
    nothing is stored twice in a channel. What stays is in its place when this has ended. What comes in meanwhile is
    left for the next replay.

    Args:
        client: The server.
        channel_name: The channel of the dead letters.
        plan: What is to go back, and where to.
        patience: For channels that are full.
        progress: Told as it goes on.

    Raises:
        ChannelNotFoundError: There is no such channel.
    """

    def __init__(
        self, client: Client, channel_name: str, plan: ReplayPlan, patience: ReplayPatience, progress: ReplayProgress
    ) -> None:
        info = client.admin.get_channel(channel_name)
        self._channel: Channel = client.channel(channel_name)
        self._plan = plan
        self._progress = progress
        self._targets = Targets(client, info.channel_id, patience, progress, keep_headers=plan.keep_headers)
        self._end_sequence = info.gauges.next_sequence
        self._batch_events = min(BATCH_EVENTS, info.config.transaction_capacity)
        self._refused: dict[int, str] = {}
        """Why a letter stays that its channel has refused, by its sequence."""
        self.account = ReplayAccount(held_elsewhere=info.gauges.taken_events)
        """What it has done so far."""

    def survey(self) -> None:
        """Counts what would go where, and takes nothing."""
        for fate, _ in self._fates(0, self._end_sequence):
            if fate.target:
                self.account.replayed[fate.target] += 1
            else:
                self._count_staying(fate)

    def run(self) -> None:
        """Takes the letters back.

        Raises:
            ReplayError: Too many letters are refused, or others take from the channel all the time.
            MillraceError: The server does not answer, or refuses for longer than the patience; what has gone back so
                far stands, and the rest is where it was.
        """
        fruitless_count = 0
        while fruitless_count < FRUITLESS_PASSES_MAX:
            before = self.account.replayed_count
            try:
                with Holding(self._channel) as holding:
                    self._pass(holding)
            except (DisturbedError, LeaseExpiredError, TxnNotFoundError):
                fruitless_count = fruitless_count + 1 if self.account.replayed_count == before else 0
            else:
                self._count_left()
                return
        raise ReplayError(
            f"others take from {self._channel.name} or return events to it all the time; try again when they have ended"
        )

    def _count_left(self) -> None:
        for fate, _ in self._fates(0, self._end_sequence):
            self._count_staying(fate._replace(reason=_RETURNED) if fate.target else fate)

    def _count_staying(self, fate: _Fate) -> None:
        if fate.reason:
            self.account.leave(fate.reason)
        else:
            self.account.passed_over += 1

    def _pass(self, holding: Holding) -> None:
        position = 0
        while position < self._end_sequence:
            work = _Work(self._look(position), holding)
            if not work.runs:
                return
            try:
                self._take_batch(work)
            except _RefusedError as error:
                # All of them are back. Those that may go do so when it has been looked at again.
                self._remember(error.refusals)
                holding.forget()
                position = work.first_taken
            else:
                position = work.position

    def _look(self, position: int) -> list[_Run]:
        """The next events, up to a batch of those that go, without taking them; none where there are no more."""
        runs: list[_Run] = []
        going_count = 0
        for fate, sequence in self._fates(position, _PAGE_EVENTS):
            is_going = bool(fate.target)
            if runs and runs[-1].is_going == is_going:
                runs[-1] = runs[-1]._replace(event_count=runs[-1].event_count + 1, last_sequence=sequence)
            else:
                runs.append(_Run(is_going, 1, sequence, sequence))
            going_count += is_going
            if going_count >= self._batch_events:
                break
        return runs

    def _fates(self, position: int, count_max: int) -> Iterator[tuple[_Fate, int]]:
        """What is to become of the events from a sequence on, each with its sequence."""
        if position >= self._end_sequence:
            return
        for batch in self._channel.peek(from_sequence=position, max_events=count_max):
            for sequence, event in enumerate(batch, batch.first_sequence):
                if sequence >= self._end_sequence:
                    return
                yield self._fate_of(event), sequence

    def _fate_of(self, event: Event) -> _Fate:
        letter = letter_of(event)
        if letter is None or not self._plan.choice.has(letter):
            return _Fate()
        if letter.sequence in self._refused:
            return _Fate(reason=self._refused[letter.sequence])
        target = self._plan.target or letter.origin
        if not target:
            return _Fate(reason=_NO_ORIGIN)
        if target == self._channel.name:
            return _Fate(reason=f"they came from {target} itself; name another channel with --to")
        if not self._targets.is_there(target):
            return _Fate(reason=gone_reason(target))
        return _Fate(target)

    def _take_batch(self, work: "_Work") -> None:
        """Takes as many letters as make a batch out of what was seen, and brings them back."""
        with self._channel.transaction() as txn:
            lease = LeaseKeeper(txn)

            def before_try() -> None:
                lease.renew_if_due()
                work.holding.renew_if_due()

            batches = work.take(txn, self._batch_events)
            letters = self._letters_by_target(batches)
            refusals = [
                refusal
                for target, its_letters in letters.items()
                for refusal in self._targets.store(target, its_letters, before_try)
            ]
            if refusals:
                raise _RefusedError(refusals)
        if batches:
            self.account.replayed.update({target: len(its_letters) for target, its_letters in letters.items()})
            self._progress.committed(sum(map(len, batches)), sum(map(_body_bytes, batches)))

    def _letters_by_target(self, batches: Sequence[Batch]) -> dict[str, list[DeadLetter]]:
        """What was taken, in order, by where it goes.

        Raises:
            DisturbedError: There is something among it that must stay.
        """
        letters: dict[str, list[DeadLetter]] = {}
        for batch in batches:
            for event in batch:
                fate = self._fate_of(event)
                letter = DeadLetter(event)
                if not fate.target or letter.sequence >= self._end_sequence:
                    raise DisturbedError
                letters.setdefault(fate.target, []).append(letter)
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
