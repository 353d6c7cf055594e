"""Calls on a channel, each with the response that the account expects."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from millrace_server.channels.channel import Channel
from millrace_server.channels.config import ChannelConfig
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.stamps import Stamp
from millrace_server.channels.transaction import Transaction
from tests.channel_events import numbered, stored
from tests.fuzz.channel_account import Account, ExpectedTxn, Look, RefusedError

Loans = list[tuple[Transaction, ExpectedTxn]]


class Call(ABC):
    """A call that is made on the channel, and whose response the account predicts."""

    line: ClassVar[str] = ""
    """The queue in which it may wait: `takers`, `space`, or none."""

    is_first: ClassVar[bool] = False
    """Whether it waits before all others."""

    txn_ids: Sequence[str] = ()
    """Transactions whose leases the call renews."""

    def begin(self, account: Account) -> None:  # noqa: B027 - most calls have nothing to do here
        """The effect of the call's arrival, which is not repeated while it waits."""

    @abstractmethod
    async def make(self, channel: Channel) -> Any:
        """Makes the call on the channel."""

    @abstractmethod
    def look(self, account: Account) -> Look:
        """The expected response. Calls that never wait take effect at once."""

    def wait_seconds(self, account: Account) -> float:
        """The time for which it may wait."""
        return account.limits.keep_alive_seconds


@dataclass(eq=False)
class Begin(Call):
    txn_id: str
    lease: float

    def __post_init__(self) -> None:
        self.txn_ids = [self.txn_id]

    async def make(self, channel: Channel) -> tuple[str, float]:
        return channel.transactions.begin(self.txn_id, self.lease)

    def look(self, account: Account) -> Look:
        return Look(account.begin(self.txn_id, self.lease))


@dataclass(eq=False)
class Put(Call):
    txn_id: str
    bodies: Sequence[bytes]
    first_part: int
    offset: int | None

    def __post_init__(self) -> None:
        self.txn_ids = [self.txn_id]

    async def make(self, channel: Channel) -> int:
        parts = [self.bodies[: self.first_part], self.bodies[self.first_part :]]
        return channel.transactions.put(self.txn_id, [stored(*part) for part in parts if part], self.offset)

    def look(self, account: Account) -> Look:
        return Look(account.put(self.txn_id, self.bodies, self.offset))


@dataclass(eq=False)
class Take(Call):
    line = "takers"
    txn_id: str
    events_max: int
    bytes_max: int
    wait: float | None
    offset: int | None

    def __post_init__(self) -> None:
        self.txn_ids = [self.txn_id]

    async def make(self, channel: Channel) -> tuple[list[tuple[int, bytes]], int]:
        limits = TakeLimits(events_max=self.events_max, body_bytes_max=self.bytes_max)
        batches, take_count = await channel.transactions.take(self.txn_id, limits, self.wait, self.offset)
        return numbered(batches), take_count

    def look(self, account: Account) -> Look:
        return account.look_take(self.txn_id, self.events_max, self.bytes_max, self.offset)

    def wait_seconds(self, account: Account) -> float:
        return super().wait_seconds(account) if self.wait is None else self.wait


@dataclass(eq=False)
class Commit(Call):
    line = "space"
    ids: Sequence[str]
    stamp: Stamp | None

    def __post_init__(self) -> None:
        self.txn_ids = self.ids if len(set(self.ids)) == len(self.ids) else ()

    async def make(self, channel: Channel) -> Any:
        return await channel.transactions.commit(self.ids, self.stamp)

    def look(self, account: Account) -> Look:
        return account.look_commit(self.ids, self.stamp)


@dataclass(eq=False)
class Append(Call):
    line = "space"
    bodies: Sequence[bytes]
    stamp: Stamp | None
    refused: RefusedError | None = field(default=None, init=False)

    def begin(self, account: Account) -> None:
        try:
            account.refuse_append(self.bodies)
        except RefusedError as refused:
            self.refused = refused

    async def make(self, channel: Channel) -> Any:
        return await channel.appends.append([stored(*self.bodies)], self.stamp)

    def look(self, account: Account) -> Look:
        if self.refused:
            raise self.refused
        return account.look_append(self.bodies, self.stamp)


@dataclass(eq=False)
class Rollback(Call):
    txn_id: str

    async def make(self, channel: Channel) -> None:
        channel.transactions.rollback(self.txn_id)

    def look(self, account: Account) -> Look:
        account.rollback(self.txn_id)
        return Look(None)


@dataclass(eq=False)
class EndTransaction(Rollback):
    """The same by an operator."""

    async def make(self, channel: Channel) -> None:
        channel.end_transaction(self.txn_id)


@dataclass(eq=False)
class Renew(Call):
    txn_id: str

    def __post_init__(self) -> None:
        self.txn_ids = [self.txn_id]

    async def make(self, channel: Channel) -> float:
        return channel.transactions.renew(self.txn_id)

    def look(self, account: Account) -> Look:
        return Look(account.find_open(self.txn_id).lease)


@dataclass(eq=False)
class Lend(Call):
    line = "takers"
    events_max: int
    deliveries: Loans
    delivery: Transaction | None = field(default=None, init=False)

    async def make(self, channel: Channel) -> list[tuple[int, bytes]]:
        self.delivery = await channel.deliveries.deliver(TakeLimits(events_max=self.events_max))
        return numbered(self.delivery.takes)

    def look(self, account: Account) -> Look:
        look = account.look_lend(self.events_max)

        def deliver() -> None:
            look.effect()
            assert self.delivery is not None
            self.deliveries.append((self.delivery, account.deliveries[-1]))

        return Look(look.outcome, deliver, is_wait=look.is_wait, in_turn=True)

    def wait_seconds(self, account: Account) -> float:
        return 1e9


@dataclass(eq=False)
class EndLoan(Call):
    delivery: Transaction
    expected: ExpectedTxn
    is_settled: bool

    async def make(self, channel: Channel) -> None:
        if not self.is_settled:
            channel.deliveries.nack(self.delivery)
        elif (settling := channel.deliveries.settle(self.delivery)) is not None:
            await settling

    def look(self, account: Account) -> Look:
        if self.is_settled:
            account.settle(self.expected)
        else:
            account.nack(self.expected)
        return Look(None)


@dataclass(eq=False)
class Update(Call):
    line = "space"
    is_first = True
    limits: ChannelConfig

    async def make(self, channel: Channel) -> bool:
        return not await channel.update(self.limits)

    def look(self, account: Account) -> Look:
        return account.look_update(self.limits)


@dataclass(eq=False)
class Purge(Call):
    async def make(self, channel: Channel) -> int:
        return await channel.purge()

    def look(self, account: Account) -> Look:
        return Look(account.purge())


@dataclass(eq=False)
class Claim(Call):
    reader_id: str
    lease: float
    takeover: bool

    async def make(self, channel: Channel) -> int:
        return (await channel.claim(self.reader_id, self.lease, takeover=self.takeover)).epoch

    def look(self, account: Account) -> Look:
        return Look(account.grant(self.reader_id, self.lease, takeover=self.takeover))


@dataclass(eq=False)
class Read(Call):
    reader_id: str
    epoch: int | None
    from_sequence: int
    to_sequence: int

    async def make(self, channel: Channel) -> list[tuple[int, bytes]]:
        batches = channel.claims.read(self.reader_id, self.epoch, self.from_sequence, self.to_sequence)
        return numbered([batch async for batch in batches])

    def look(self, account: Account) -> Look:
        return Look(account.read(self.reader_id, self.epoch, self.from_sequence, self.to_sequence))


@dataclass(eq=False)
class Acknowledge(Call):
    reader_id: str
    epoch: int | None
    through_sequence: int

    async def make(self, channel: Channel) -> int:
        return await channel.claims.acknowledge(self.reader_id, self.epoch, self.through_sequence)

    def look(self, account: Account) -> Look:
        return Look(account.acknowledge(self.reader_id, self.epoch, self.through_sequence))


@dataclass(eq=False)
class Release(Call):
    reader_id: str
    epoch: int | None

    async def make(self, channel: Channel) -> None:
        await channel.claims.release(self.reader_id, self.epoch)

    def look(self, account: Account) -> Look:
        account.release(self.reader_id, self.epoch)
        return Look(None)


@dataclass(eq=False)
class Revoke(Call):
    epoch: int | None

    async def make(self, channel: Channel) -> None:
        await channel.claims.revoke(self.epoch)

    def look(self, account: Account) -> Look:
        account.revoke(self.epoch)
        return Look(None)


@dataclass(eq=False)
class Forget(Call):
    producer_id: str

    async def make(self, channel: Channel) -> None:
        await channel.forget_producer(self.producer_id)

    def look(self, account: Account) -> Look:
        account.forget(self.producer_id)
        return Look(None)


@dataclass(eq=False)
class Cancel(Call):
    task: "asyncio.Task[None]"

    async def make(self, channel: Channel) -> None:
        self.task.cancel()

    def look(self, account: Account) -> Look:
        return Look(None)
