"""Random histories of a spillable channel on a simulated disk, and the states that a crash at any moment may leave.

Events in memory are lost without a trace. For events in the log the rules of a file channel hold:
what was acknowledged is durable, what was removed stays away, and an unfinished call takes effect as a whole or not at
all.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from millrace_server.channels.channel import Channel
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.stamps import Stamp
from tests.channel_events import append, begin, check_accounts, numbered, stored, take
from tests.simulated_channels import DATA, Held, SimulatedChannel, open_simulated_channel, small_spillable_limits
from tests.simulated_disk import SimulatedDisk
from tests.spillable_channels import check_share, in_memory

_CHANGING_CALLS = {"create", "rename", "unlink", "write", "truncate", "sync", "sync_directory"}
_CONFIG = small_spillable_limits(memory_capacity=4, segment_bytes_max=900)


@dataclass(frozen=True)
class Stamped:
    """The producer's numbers that a successful commit has stored."""

    numbers: frozenset[int]
    sequences: frozenset[int]


@dataclass(frozen=True)
class Facts:
    """The state of a channel, with its pending calls."""

    in_log: dict[int, bytes] = field(default_factory=dict)
    in_memory: dict[int, bytes] = field(default_factory=dict)
    removed: frozenset[int] = frozenset()
    """Sequences that have left the log, or memory, permanently."""
    next_sequence: int = 1
    stamped: tuple[Stamped, ...] = ()
    removing: frozenset[int] = frozenset()
    putting: tuple[bytes, ...] = ()
    putting_numbers: frozenset[int] = frozenset()
    is_stopping: bool = False
    """Whether the events in memory are being written to the log."""

    def check(self, found: Held) -> None:
        """Asserts that a channel may be found in this state after a crash."""
        events = dict(found.events)
        required = self.in_log.keys() - self.removing
        assert {sequence: events.get(sequence) for sequence in required} == {
            sequence: self.in_log[sequence] for sequence in required
        }
        assert not events.keys() & self.removed
        known = {**self.in_log, **(self.in_memory if self.is_stopping else {})}
        new = {sequence: body for sequence, body in events.items() if sequence not in known}
        assert all(known[sequence] == events[sequence] for sequence in events.keys() & known.keys())
        assert tuple(body for _, body in sorted(new.items())) in {(), self.putting}
        assert all(sequence >= self.next_sequence for sequence in new)
        assert found.next_sequence >= self.next_sequence
        self._check_stamps(events, found.stamps.get("p", frozenset()))

    def _check_stamps(self, events: dict[int, bytes], accepted: frozenset[int]) -> None:
        for one in self.stamped:
            lost = one.sequences - events.keys() - self.removed - self.removing
            if lost:
                assert not accepted & one.numbers, f"{lost} are lost; {sorted(accepted)} are said to be stored"
            elif one.sequences and self.in_log.keys() >= one.sequences:
                assert accepted >= one.numbers, f"{one} is in the log; {sorted(accepted)} are said to be stored"
        ever = frozenset().union(*(one.numbers for one in self.stamped))
        assert accepted <= ever | self.putting_numbers


@dataclass(frozen=True)
class Moment:
    """A disk right before a change, and the state of the channel."""

    change: str
    disk: SimulatedDisk
    facts: Facts


class History:
    """One channel during several server processes."""

    def __init__(self, chance: random.Random) -> None:
        self.disk = SimulatedDisk([DATA], chance.randrange(1 << 32))
        self.moments: list[Moment] = []
        self._chance = chance
        self._facts = Facts()
        self._number = 0
        self._next_number = 0
        self._opened: SimulatedChannel

    @property
    def _channel(self) -> Channel:
        return self._opened.channel

    async def go(self, step_count: int) -> None:
        """Opens the channel, performs a number of random steps, and closes it."""
        self.disk.before_call = self._before_call
        await self._open()
        steps: list[Callable[[], object]] = [
            *[self._append] * 6,
            *[self._consume] * 5,
            *[self._swap] * 2,
            self._deliver,
            self._checkpoint,
            self._stop,
            self._kill,
        ]
        for _ in range(step_count):
            await self._chance.choice(steps)()  # type: ignore[misc] # all of them are coroutines
            self._look()
        await self._stop()
        self.disk.before_call = lambda _kind, _name: None

    def _before_call(self, kind: str, name: str) -> None:
        if kind in _CHANGING_CALLS:
            self.moments.append(Moment(f"{kind} of {name}", self.disk.copy(), self._facts))

    async def _open(self) -> None:
        self._opened = await open_simulated_channel(self.disk, _CONFIG)
        self._facts.check(Held.by(self._channel))
        lost = self._facts.in_memory.keys() - {sequence for sequence, _ in Held.by(self._channel).events}
        gone = self._facts.removed
        self._facts = replace(
            self._facts,
            in_memory={},
            stamped=tuple(one for one in self._facts.stamped if not one.sequences & lost and one.sequences - gone),
        )
        accepted = Held.by(self._channel).stamps.get("p", frozenset())
        # Stamps of events that were consumed from memory since the last checkpoint may be accepted again.
        self._next_number = min([self._next_number, *set(range(self._next_number)) - accepted])
        known = Stamped(accepted, frozenset())
        self._facts = replace(self._facts, stamped=(*self._facts.stamped, known))
        self._look()

    def _look(self) -> None:
        """Records the state of the channel after a step."""
        check_share(self._channel)
        check_accounts(self._channel)
        facts, memory = self._facts, set(in_memory(self._channel))
        held = dict(numbered(sorted(self._channel._contents.held_batches(), key=lambda one: one.first_sequence)))
        left = {*facts.in_log, *facts.in_memory} - held.keys()
        self._facts = Facts(
            in_log={sequence: body for sequence, body in held.items() if sequence not in memory},
            in_memory={sequence: body for sequence, body in held.items() if sequence in memory},
            removed=facts.removed | left,
            next_sequence=self._channel._contents.next_sequence,
            stamped=facts.stamped,
        )

    def _bodies(self) -> tuple[bytes, ...]:
        self._number += 1
        return tuple(
            b"%d.%d " % (self._number, index) + bytes(self._chance.choice([0, 20, 200]))
            for index in range(self._chance.randint(1, 4))
        )

    async def _append(self) -> None:
        bodies = self._bodies()
        stamp = None
        if self._chance.random() < 0.6:
            # Sometimes a part of it is a repeat.
            first = max(self._next_number - self._chance.choice([0, 0, 2]), 0)
            stamp = Stamp("p", first, first + len(bodies) - 1)
        numbers = frozenset(range(stamp.first, stamp.last + 1)) if stamp else frozenset[int]()
        known = list(self._channel._contents.ledger.intervals_of("p"))
        fresh = [number for number in sorted(numbers) if not any(low <= number <= high for low, high in known)]
        putting = tuple(bodies[number - stamp.first] for number in fresh) if stamp else bodies
        self._facts = replace(self._facts, putting=putting, putting_numbers=numbers)
        receipt = await append(self._channel, *bodies, stamp=stamp)
        if stamp:
            self._next_number = max(self._next_number, stamp.last + 1)
            sequences = frozenset(range(receipt.first_sequence, receipt.last_sequence + 1)) - {0}
            self._facts = replace(self._facts, stamped=(*self._facts.stamped, Stamped(frozenset(fresh), sequences)))

    async def _consume(self) -> None:
        txn_id = await self._begin_with_takes()
        await self._channel.transactions.commit([txn_id], None)

    async def _swap(self) -> None:
        txn_id = await self._begin_with_takes()
        bodies = self._bodies()
        self._channel.transactions.put(txn_id, [stored(*bodies)], None)
        if self._chance.random() < 0.3:
            self._channel.transactions.rollback(txn_id)
            return
        self._facts = replace(self._facts, putting=bodies)
        await self._channel.transactions.commit([txn_id], None)

    async def _begin_with_takes(self) -> str:
        txn_id = begin(self._channel)
        await take(self._channel, txn_id, self._chance.randint(1, 6))
        taken = [sequence for sequence, _ in numbered(self._channel.transactions._open[txn_id].takes)]
        self._facts = replace(self._facts, removing=frozenset(taken))
        return txn_id

    async def _deliver(self) -> None:
        if self._channel._contents.queue.event_count:
            delivery = await self._channel.deliveries.deliver(TakeLimits(events_max=self._chance.randint(1, 6)))
            taken = frozenset(sequence for sequence, _ in numbered(delivery.takes))
            self._facts = replace(self._facts, removing=taken)
            if (settling := self._channel.deliveries.settle(delivery)) is not None:
                await settling

    async def _checkpoint(self) -> None:
        await self._opened.checkpoint()

    async def _stop(self) -> None:
        self._facts = replace(self._facts, is_stopping=True)
        await self._opened.close()
        self._facts = replace(
            self._facts, in_log={**self._facts.in_memory, **self._facts.in_log}, in_memory={}, is_stopping=False
        )
        await self._open()

    async def _kill(self) -> None:
        self._opened.abandon()
        # The pending writes of that process do not happen any more.
        self.disk.before_call, before_call = lambda _kind, _name: None, self.disk.before_call
        self.disk = self.disk.copy()
        self.disk.before_call = before_call
        await self._open()


async def check_moment(moment: Moment, chance: random.Random, cut_count: int) -> None:
    """Kills the process at a moment, and cuts the power several times; the same state is found each time."""
    disks = [moment.disk.copy(), *(moment.disk.crashed(chance.randrange(1 << 32)) for _ in range(cut_count))]
    for disk in disks:
        opened = await open_simulated_channel(disk, _CONFIG)
        found = Held.by(opened.channel)
        moment.facts.check(found)
        opened.abandon()
        opened = await open_simulated_channel(disk.crashed(chance.randrange(1 << 32)), _CONFIG)
        again = Held.by(opened.channel)
        assert (again.events, again.stamps, again.ended) == (found.events, found.stamps, found.ended)
        assert again.next_sequence >= found.next_sequence
        opened.abandon()
