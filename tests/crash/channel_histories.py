"""Histories of a file channel on a simulated disk, with all states in which a crash may leave it.

A `Story` makes calls on a channel, compares their responses with an account, and records the channel's state after each
change. After a crash the channel is in one of these states, no earlier than the last one acknowledged as durable: so
nothing acknowledged is lost, each change happens as a whole, and the order is kept.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from millrace_server.channels.config import FileChannelConfig
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import MillraceError
from tests.channel_events import check_accounts
from tests.fuzz import channel_calls as calls
from tests.fuzz.channel_account import Account, RefusedError
from tests.simulated_channels import DATA, Held, SimulatedChannel, held_on, open_simulated_channel, small_limits
from tests.simulated_disk import SimulatedDisk
from tests.virtual_clock import WallClock
from tests.waiting import until

_CHANGING_CALLS = {"create", "rename", "unlink", "write", "reserve", "truncate", "sync", "sync_directory"}
_CONTINUE_PROBABILITY = 0.2
_ENDED_MAX = 10_000
CLOCK = WallClock(1_790_000_000_000_000)
"""Moves on with each step of a story."""

LASTING_CALLS = (
    *(calls.Append, calls.Commit, calls.Purge, calls.Acknowledge, calls.Claim, calls.EndLoan),
    *(calls.Revoke, calls.Forget),
)
"""Calls whose effect is on the disk once they have returned."""


def account_of(held: Held, config: FileChannelConfig) -> Account:
    """The expected state of a channel that was just opened with this content."""
    account = Account(config, (), _ENDED_MAX, held.epoch)
    account.restore(held.events, held.next_sequence, held.stamps, held.ended, held.claim)
    account.times = {sequence: time for (sequence, _), time in zip(held.events, held.times, strict=True)}
    account.clock = lambda: CLOCK.micros
    return account


def held_by(account: Account) -> Held:
    """The expected state that must be durable."""
    events = tuple(sorted(account.held))
    return Held(
        events,
        account.next_sequence,
        {producer_id: frozenset(numbers) for producer_id, numbers in account.stamps.items()},
        {txn_id: (txn.state, txn.receipt) for txn_id, txn in account.ended.items()},
        (account.claim.reader_id, account.claim.epoch) if account.claim else None,
        account.epoch,
        tuple(account.times[sequence] for sequence, _ in events),
    )


@dataclass(frozen=True, slots=True)
class Allowed:
    """The states in which a channel may be found after a power cut and after a kill."""

    after_cut: Sequence[Held]
    after_kill: Sequence[Held]


@dataclass(frozen=True, slots=True)
class Moment:
    """A disk right before a change, and the states in which the channel may be found on it."""

    change: str
    disk: SimulatedDisk
    allowed: Allowed
    config: FileChannelConfig

    def on(self, change: str, disk: SimulatedDisk) -> "Moment":
        """Returns the same expectation for another disk."""
        return replace(self, change=change, disk=disk)


class Recording:
    """Records a copy of the disk at each change from now on."""

    def __init__(self, disk: SimulatedDisk, keep: Callable[[str, SimulatedDisk], Moment]) -> None:
        self._disk = disk
        self._keep = keep
        self.moments: list[Moment] = []
        disk.before_call = self._before_call

    def end(self) -> list[Moment]:
        """Stops, and returns all moments including this one."""
        self._disk.before_call = lambda _kind, _name: None
        self.moments.append(self._keep("end", self._disk.copy()))
        return self.moments

    def _before_call(self, kind: str, name: str) -> None:
        if kind in _CHANGING_CALLS:
            self.moments.append(self._keep(f"{kind} of {name}", self._disk.copy()))


class Story:
    """One channel during several server processes.

    Args:
        disk: The disk of the channel.
        held: The channel's state on the disk.
        config: The configuration with which it is opened.
    """

    def __init__(self, disk: SimulatedDisk, held: Held | None = None, config: FileChannelConfig | None = None) -> None:
        held = held or Held.nothing()
        self.disk = disk
        self.config = config or small_limits()
        self.account = account_of(held, self.config)
        self.states = [held]
        self.responded = 0
        """Index of the last state that got a response."""
        self.synced = 0
        """Index of the last state that must be on the disk."""
        self.deliveries: calls.Loans = []
        self.number = 0
        self.opened: SimulatedChannel

    async def open(self) -> None:
        """Opens the channel, and checks its state."""
        self.opened = await open_simulated_channel(self.disk, self.config)
        self.opened.channel._contents.clock = CLOCK
        held = Held.by(self.opened.channel)
        assert held == self.states[-1], f"found {held}, and it must be {self.states[-1]}"
        check_accounts(self.opened.channel)
        # The opening has synced the recovered state.
        self.responded = self.synced = len(self.states) - 1

    def allowed(self) -> Allowed:
        """The states in which the channel may be found after a crash now."""
        return Allowed(self.states[self.synced :], self.states[self.responded :])

    def moment(self, change: str, disk: SimulatedDisk) -> Moment:
        """This moment, on a copy of the disk."""
        return Moment(change, disk, self.allowed(), self.config)

    async def do(self, *together: calls.Call) -> list[Any]:
        """Makes calls at the same time, and compares their results with the expected ones; returns the results.

        None of them may depend on what another one changes.
        """
        expected, lasting = self.expect(together)
        tasks = [asyncio.ensure_future(call.make(self.opened.channel)) for call in together]
        await asyncio.wait(tasks)
        outcomes = [outcome_of(task) for task in tasks]
        assert outcomes == expected, f"{together} returned {outcomes}, and should have returned {expected}"
        self.have_lasted(lasting)
        return outcomes

    def expect(self, together: Sequence[calls.Call]) -> tuple[list[Any], int]:
        """Makes calls on the expected account.

        Returns:
            Their responses; and the index of the last state that must be durable by then, 0 if there is none.
        """
        expected, lasting = [], 0
        for call in together:
            expected.append(self._expect(call))
            index = self._note()
            lasting = index if isinstance(call, LASTING_CALLS) and index else lasting
        return expected, lasting

    def _expect(self, call: calls.Call) -> Any:
        try:
            call.begin(self.account)
            look = call.look(self.account)
        except RefusedError as refused:
            return refused.kind
        if isinstance(call, calls.Lend):
            # The account gets the delivery once the channel has made it.
            self.account.look_lend(call.events_max).effect()
        elif not look.is_wait:
            look.effect()
        return look.outcome

    def _note(self) -> int:
        """Records the expected state if it has changed, and returns its index; otherwise 0."""
        held = held_by(self.account)
        if held == self.states[-1]:
            return 0
        self.states.append(held)
        return len(self.states) - 1

    def have_lasted(self, index: int) -> None:
        """Records that all calls up to a state have returned."""
        self.responded = max(self.responded, index)
        if self.config.fsync == "commit":
            self.synced = self.responded

    async def deliver(self, events_max: int) -> None:
        """A delivery."""
        deliver = calls.Lend(events_max, [])
        await self.do(deliver)
        if deliver.delivery is not None:
            self.deliveries.append((deliver.delivery, self.account.deliveries[-1]))

    async def expire(self, age_micros: int) -> None:
        """Removes what is older, as the channel's retention does: the oldest first, in one commit or several."""
        expired = self.account.expired(CLOCK.micros - age_micros)
        for event in expired:
            self.account.queue.remove(event)
            self._note()
        retention = self.opened.channel._core.retention
        # Half a microsecond more, since seconds are rounded down.
        retention.enforce((age_micros + 0.5) / 1_000_000)
        retention._check()
        assert not expired or retention._is_removing or retention._loading, "left to a later check"
        # What is being removed is held until that is durable.
        await until(lambda: retention._loading is None and Held.by(self.opened.channel) == self.states[-1])
        assert not retention._is_removing
        retention.stop()
        if expired:
            self.have_lasted(len(self.states) - 1)

    async def checkpoint(self) -> None:
        """Writes a checkpoint."""
        count = len(self.opened.disk.calls)
        await self.opened.checkpoint()
        if len(self.opened.disk.calls) > count:
            self.responded = self.synced = len(self.states) - 1

    def mark(self) -> None:
        """Makes the log mark its end."""
        self.opened.mark()

    async def stop(self) -> None:
        """Closes the channel as a server that stops does."""
        await self.opened.close()
        self.responded = self.synced = len(self.states) - 1
        self._forget_what_was_open()

    def kill(self) -> None:
        """Kills the process; everything that it wrote remains."""
        self.opened.abandon()
        self._forget_what_was_open()

    def _forget_what_was_open(self) -> None:
        self.account.restart()
        self.deliveries = []

    def use(self, config: FileChannelConfig) -> None:
        """The configuration from the next opening on."""
        self.config = self.account.limits = config


def outcome_of(task: "asyncio.Future[Any]") -> Any:
    """The result of a call: a value, or the type of an error."""
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, MillraceError):
        return type(error)
    raise error


@dataclass
class Steps:
    """Chooses the next step of a history at random."""

    story: Story
    chance: random.Random
    configs: Sequence[FileChannelConfig]
    is_plain: bool = False
    """Whether there is a single process, which reads only with takes."""
    _steps: list[Callable[[], Any]] = field(init=False)

    def __post_init__(self) -> None:
        usual = [self.append, self.append, self.transact, self.transact, self.take, self.take, self.end, self.end]
        rare = [self.together, self.together, self.story.checkpoint, self._mark, self._empty]
        others = [] if self.is_plain else [self.deliver, self.read, self._forget, self._expire, self._restart]
        self._steps = [*usual * 2, *rare, *others]

    async def go(self, count: int) -> None:
        """Performs a number of steps."""
        for _ in range(count):
            CLOCK.micros += 1
            await self.chance.choice(self._steps)()

    def bodies(self, count_max: int = 4) -> list[bytes]:
        """Distinct bodies."""
        self.story.number += 1
        size = self.chance.choice([0, 20, 150, 150, 2500])
        count = self.chance.randint(1, count_max)
        return [b"%d.%d " % (self.story.number, index) + bytes(self.chance.randint(0, size)) for index in range(count)]

    def stamp(self, count: int) -> Stamp | None:
        """A stamp for each event, or for all of them, perhaps one that repeats another; or none."""
        # If calls may be refused, the response to one with a repeated stamp depends on which of the others were.
        if self.is_plain or self.chance.random() < 0.5:
            return None
        span = self.chance.choice([max(count, 1), max(count, 1), self.chance.randint(1, 4)])
        first = self.chance.randint(0, 40)
        return Stamp(self.chance.choice(["p", "q"]), first, first + span - 1)

    def call_append(self) -> calls.Append:
        bodies = self.bodies()
        return calls.Append(bodies, self.stamp(len(bodies)))

    async def append(self) -> None:
        await self.story.do(self.call_append())

    def opened(self) -> list[str]:
        return list(self.story.account.open)

    async def begin(self) -> str:
        self.story.number += 1
        txn_id = f"t{self.story.number}"
        await self.story.do(calls.Begin(txn_id, 3600.0))
        return txn_id

    async def transact(self) -> None:
        """Puts into a transaction, in one call or two."""
        opened = self.opened()
        txn_id = self.chance.choice(opened) if opened and self.chance.random() < 0.5 else await self.begin()
        await self.story.do(calls.Put(txn_id, self.bodies(), self.chance.randint(0, 2), None))

    async def take(self) -> None:
        opened = self.opened()
        txn_id = self.chance.choice(opened) if opened and self.chance.random() < 0.7 else await self.begin()
        await self.story.do(calls.Take(txn_id, self.chance.choice([0, 1, 2, 5]), 0, 0.0, None))

    def call_commit(self, opened: Sequence[str]) -> calls.Commit:
        txn_ids = self.chance.sample(opened, self.chance.randint(1, min(3, len(opened))))
        count = sum(len(self.story.account.open[txn_id].puts) for txn_id in txn_ids)
        return calls.Commit(txn_ids, self.stamp(count))

    async def end(self) -> None:
        """Ends transactions, or queries the outcome of some again."""
        opened, ended = self.opened(), self.story.account.ended
        way = self.chance.random()
        if opened and way < 0.7:
            await self.story.do(self.call_commit(opened))
        elif opened and way < 0.85:
            await self.story.do(calls.Rollback(self.chance.choice(opened)))
        elif ended:
            await self.story.do(calls.Commit([self.chance.choice(list(ended))], None))

    async def together(self) -> None:
        """Appends, commits and rollbacks at the same time."""
        waiting: list[calls.Call] = [self.call_append() for _ in range(self.chance.randint(1, 4))]
        opened = self.opened()
        self.chance.shuffle(opened)
        # Without any, the appends share a record.
        for txn_id in opened[: self.chance.choice([0, 3])]:
            ends = [calls.Rollback(txn_id), self.call_commit([txn_id]), self.call_commit([txn_id])]
            waiting.insert(self.chance.randint(0, len(waiting)), self.chance.choice(ends))
        await self.story.do(*waiting)

    async def deliver(self) -> None:
        """Takes a delivery, and may acknowledge or return an earlier one."""
        if self.story.account.queue and not self.story.account.claim:
            await self.story.deliver(self.chance.choice([0, 1, 3]))
        if self.story.deliveries and self.chance.random() < 0.8:
            delivery, expected = self.story.deliveries.pop(self.chance.randrange(len(self.story.deliveries)))
            await self.story.do(calls.EndLoan(delivery, expected, self.chance.random() < 0.7))

    async def read(self) -> None:
        """Claims the channel, acknowledges some events, and usually releases the claim."""
        reader_id = self.chance.choice(["r", "s"])
        [outcome] = await self.story.do(calls.Claim(reader_id, 3600.0, self.chance.random() < 0.3))
        if isinstance(outcome, int):
            first = self.story.account.first_sequence
            # From the first event ever, too, which is gone once anything has been consumed or has expired.
            await self.story.do(calls.Read(reader_id, outcome, self.chance.choice([0, 1]), 0))
            through = first + self.chance.randint(0, 3)
            await self.story.do(calls.Acknowledge(reader_id, None, through))
            if (way := self.chance.random()) < 0.8:
                await self.story.do(calls.Release(reader_id, None) if way < 0.6 else calls.Revoke(outcome))

    async def _forget(self) -> None:
        """Forgets a producer."""
        await self.story.do(calls.Forget(self.chance.choice(["p", "q"])))

    async def _empty(self) -> None:
        """Purges the channel now and then; without open transactions, its log then begins anew."""
        if self.chance.random() < 0.3:
            for txn_id in self.opened() if self.chance.random() < 0.5 else ():
                await self.story.do(calls.Rollback(txn_id))
            await self.story.do(calls.Purge())
            await self.story.checkpoint()

    async def _expire(self) -> None:
        """Keeps events for some steps only; what is taken expires in a later step, if it has come back."""
        await self.story.expire(self.chance.choice([0, 2, 5, 10]))

    async def _mark(self) -> None:
        self.story.mark()

    async def _restart(self) -> None:
        """Stops or kills the process; the next one opens the channel, perhaps with another configuration."""
        if self.chance.random() < 0.5:
            await self.story.stop()
        else:
            self.story.kill()
        self.story.use(self.chance.choice(self.configs))
        await self.story.open()


async def recorded(
    disk: SimulatedDisk,
    chance: random.Random,
    step_count: int,
    configs: Sequence[FileChannelConfig] = (),
    held: Held | None = None,
) -> list[Moment]:
    """All moments of a random history, from the opening of a channel that is new, or has a state, to its closing."""
    configs = configs or [small_limits()]
    story = Story(disk, held, configs[0])
    recording = Recording(disk, story.moment)
    await story.open()
    await Steps(story, chance, configs).go(step_count)
    await story.stop()
    return recording.end()


async def check_moment(moment: Moment, chance: random.Random, cut_count: int) -> set[int]:
    """Crashes at a moment several times; returns the fingerprints of the disks after the power cuts."""
    await check_recovery(moment, moment.disk.copy(), moment.allowed.after_kill, chance)
    cut = [moment.disk.crashed(chance.randrange(1 << 32)) for _ in range(cut_count)]
    # Identical disks need only one check.
    disks = {disk.fingerprint(): disk for disk in cut}
    for disk in disks.values():
        await check_recovery(moment, disk, moment.allowed.after_cut, chance)
    return set(disks)


async def check_recovery(moment: Moment, disk: SimulatedDisk, allowed: Sequence[Held], chance: random.Random) -> None:
    """Opens a channel after a crash and checks its state; so too after a power cut during the opening.

    Args:
        moment: The moment of the crash.
        disk: The disk after the crash.
        allowed: The states that the channel may have.
        chance: Chooses the power cut.
    """
    openings = Recording(disk, moment.on)
    found = await held_on(disk, moment.config)
    assert found in allowed, f"found {found}; allowed are {allowed}"
    *during, behind = openings.end()
    # The state that was reported when the channel was opened must not change.
    assert await held_on(behind.disk.crashed(chance.randrange(1 << 32)), moment.config) == found
    if during:
        again = await held_on(chance.choice(during).disk.crashed(chance.randrange(1 << 32)), moment.config)
        assert again in moment.allowed.after_cut, f"found {again}; allowed are {moment.allowed.after_cut}"
    if chance.random() < _CONTINUE_PROBABILITY:
        await _check_going_on(disk, found, moment.config, chance)


async def _check_going_on(disk: SimulatedDisk, found: Held, config: FileChannelConfig, chance: random.Random) -> None:
    story = Story(disk, found, config)
    # New names must differ from earlier ones.
    story.number = 1_000_000
    await story.open()
    await Steps(story, chance, [config]).go(4)
    moment = story.moment("went on", disk)
    story.opened.abandon()
    found = await held_on(disk.crashed(chance.randrange(1 << 32)), config)
    assert found in moment.allowed.after_cut, f"found {found}; allowed are {moment.allowed.after_cut}"


def new_disk(chance: random.Random, directories: Sequence[Path] = (DATA,)) -> SimulatedDisk:
    """An empty disk."""
    return SimulatedDisk(directories, chance.randrange(1 << 32))
