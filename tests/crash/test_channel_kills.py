"""SIGKILL under load: acknowledged events are there once; removed events do not return."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from tests.crash.kill_account import KillAccount
from tests.crash.killed_server import AGING, CHANNELS, CallRefusedError, KilledServer
from tests.rpc import NO_WAIT, Stream, columns, events, rows_of, seconds

_KILLS_IN_THE_SUITE = 4
_KILLS_IN_A_ROUND = 50
_ROUNDS = 20
_RESPONSES_MAX = 150
_IN_VAIN_PROBABILITY = 0.3
_ACK_PROBABILITY = 0.8
_GONE = {"TXN_NOT_FOUND", "LEASE_EXPIRED"}
_FULL = {"CHANNEL_FULL", "BYTES_FULL"}


class Worker:
    """A caller that uses a channel until the end.

    Args:
        server: The server.
        channel: The channel's name.
        name: The unique name of the worker.
        chance: Determines the calls.
    """

    def __init__(self, server: KilledServer, channel: str, name: str, chance: random.Random) -> None:
        self.server = server
        self.channel = channel
        self.name = name
        self.chance = chance
        self.number = 0

    @property
    def account(self) -> KillAccount:
        return self.server.accounts[self.channel]

    async def run(self) -> None:
        """Makes calls until the end."""
        while not self.server.ending.is_set():
            await self.step()

    async def step(self) -> None:
        """Makes the next call."""
        raise NotImplementedError

    def bodies(self) -> list[bytes]:
        """New bodies, which are added to the account."""
        first, self.number = self.number, self.number + self.chance.randint(1, 40)
        size = self.chance.choice([0, 100, 600])
        made = [b"%s:%d:" % (self.name.encode(), number) + bytes(size) for number in range(first, self.number)]
        self.account.sends(made)
        return made

    def payload(self, bodies: Sequence[bytes]) -> dict[str, Any]:
        """Events in rows or in columns."""
        return {"columns": columns(*bodies)} if self.chance.random() < 0.7 else {"events": events(*bodies)}


class Producer(Worker):
    """Appends, each event with its number; sometimes repeatedly."""

    async def step(self) -> None:
        first, bodies = self.number, self.bodies()
        stamp = event_pb2.ProducerStamp(producer_id=self.name, first_sequence=first, last_sequence=self.number - 1)
        request = pb.AppendRequest(channel=self.channel, stamp=stamp, **self.payload(bodies))
        response = await self._append(request)
        self.account.stores(bodies, response.first_sequence)
        if self.chance.random() < 0.2:
            repeat = await self._append(request)
            assert (repeat.first_sequence, repeat.deduplicated) == (0, True)

    async def _append(self, request: pb.AppendRequest) -> pb.AppendResponse:
        while True:
            try:
                response: pb.AppendResponse = await self.server.call("Append", request)
            except CallRefusedError as refused:
                refused.must_be(_FULL)
            else:
                return response


class StreamProducer(Producer):
    """The same through AppendStream, with several requests in progress."""

    async def step(self) -> None:
        requests = []
        for _ in range(self.chance.randint(1, 6)):
            first, bodies = self.number, self.bodies()
            stamp = event_pb2.ProducerStamp(producer_id=self.name, first_sequence=first, last_sequence=self.number - 1)
            requests.append((bodies, pb.AppendStreamRequest(channel=self.channel, stamp=stamp, **self.payload(bodies))))
        while requests:
            rpc = await self.server.rpc()
            stream = Stream(rpc.channels.AppendStream(timeout=30.0))
            try:
                for _, request in requests:
                    await stream.send(request)
                await stream.half_close()
                while requests and (response := await stream.receive()) is not None:
                    if response.HasField("error"):
                        # Later requests must not overtake it when it is sent again.
                        break
                    bodies, _ = requests.pop(0)
                    self.account.stores(bodies, response.first_sequence)
                    self.server.count_response()
                stream.cancel()
            except Exception as error:  # noqa: BLE001 - gRPC's own, or ours, which are raised again
                await self.server.endure_broken(error)


class Txn:
    """A worker's transaction with its content."""

    def __init__(self, txn_id: str) -> None:
        self.txn_id = txn_id
        self.puts: list[bytes] = []
        self.takes: list[bytes] = []


class Transactor(Worker):
    """Puts and takes in transactions, and commits some of them, rolls back, or abandons."""

    responses: list[tuple[list[str], tuple[int, int, bool]]]

    def __init__(self, server: KilledServer, channel: str, name: str, chance: random.Random) -> None:
        super().__init__(server, channel, name, chance)
        self.responses = []
        self.starts_seen = 0
        self.txn_count = 0

    async def step(self) -> None:
        if self.responses and self.server.starts != self.starts_seen:
            self.starts_seen = self.server.starts
            await self._ask_again()
        txns = []
        try:
            for _ in range(self.chance.choice([1, 1, 2, 3])):
                txns.append(await self._begin())
                await self._fill(txns[-1])
        except CallRefusedError as refused:
            # A restart has ended one; it or their leases end the others too.
            refused.must_be(_GONE)
            self._were_not_committed(txns)
            return
        way = self.chance.random()
        if way < 0.85:
            await self._commit(txns)
        elif way < 0.95:
            await self._roll_back(txns)
        else:
            self._were_not_committed(txns)

    async def _ask_again(self) -> None:
        """A repeat of an acknowledged commit gets the same response, whatever happened to the server."""
        txn_ids, expected = self.chance.choice(self.responses[-20:])
        response = await self.server.call("Commit", pb.CommitRequest(txn_ids=txn_ids))
        assert (response.first_sequence, response.last_sequence, response.deduplicated) == expected

    async def _begin(self) -> Txn:
        self.txn_count += 1
        txn = Txn(f"{self.name}-{self.txn_count}")
        await self.server.call("BeginTxn", pb.BeginTxnRequest(channel=self.channel, txn_id=txn.txn_id))
        return txn

    async def _fill(self, txn: Txn) -> None:
        if self.chance.random() < 0.5:
            puts = self.bodies()
            txn.puts += puts
            await self.server.call("Put", pb.PutRequest(txn_id=txn.txn_id, put_offset=0, **self.payload(puts)))
        if self.chance.random() < 0.8:
            request = pb.TakeRequest(
                txn_id=txn.txn_id,
                max_events=self.chance.randint(1, 100),
                take_offset=0,
                wait=NO_WAIT,
                columns=self.chance.random() < 0.7,
            )
            response = await self.server.call("Take", request)
            txn.takes += self.account.delivers((sequence, body) for sequence, _, body in rows_of(response.batches))

    async def _commit(self, txns: Sequence[Txn]) -> None:
        puts = [body for txn in txns for body in txn.puts]
        takes = [body for txn in txns for body in txn.takes]
        request = pb.CommitRequest(txn_ids=[txn.txn_id for txn in txns])
        self.account.doubts(takes)
        starts = self.server.starts
        try:
            response = await self.server.call("Commit", request)
        except CallRefusedError as refused:
            self.account.keeps(takes)
            if refused.reason in _FULL:
                await self._roll_back(txns)
                return
            refused.must_be(_GONE)
            if starts != self.server.starts:
                self.account.was_not_removed(takes)
            self._were_not_committed(txns)
            return
        assert starts == self.server.starts or not self.account.found.keys() & takes, "committed, and still there"
        self.account.stores(puts, response.first_sequence)
        self.account.removes(takes)
        assert response.last_sequence - response.first_sequence + 1 == len(puts) or not puts
        self.responses.append(
            (list(request.txn_ids), (response.first_sequence, response.last_sequence, response.deduplicated))
        )

    async def _roll_back(self, txns: Sequence[Txn]) -> None:
        for txn in txns:
            try:
                await self.server.call("Rollback", pb.RollbackRequest(txn_id=txn.txn_id))
            except CallRefusedError as refused:
                refused.must_be(_GONE)
        self._were_not_committed(txns)

    def _were_not_committed(self, txns: Sequence[Txn]) -> None:
        for txn in txns:
            self.account.refuses(txn.puts)


class StampedCommitter(Worker):
    """Commits transactions under one stamp each, and starts over when the outcome of one is unknown."""

    async def step(self) -> None:
        bodies, number = self.bodies(), self.number
        stamp = event_pb2.ProducerStamp(producer_id=self.name, first_sequence=number, last_sequence=number)
        attempt = 0
        while True:
            attempt += 1
            txn_id = f"{self.name}-{number}-{attempt}"
            try:
                await self.server.call("BeginTxn", pb.BeginTxnRequest(channel=self.channel, txn_id=txn_id))
                await self.server.call("Put", pb.PutRequest(txn_id=txn_id, put_offset=0, **self.payload(bodies)))
                response = await self.server.call("Commit", pb.CommitRequest(txn_ids=[txn_id], stamp=stamp))
            except CallRefusedError as refused:
                refused.must_be(_GONE | _FULL)
            else:
                self.account.stores(bodies, response.first_sequence)
                return


class Consumer(Worker):
    """Consumes a few deliveries and acknowledges most of them, stream after stream."""

    async def step(self) -> None:
        rpc = await self.server.rpc()
        stream = Stream(rpc.channels.Consume(timeout=30.0))
        acked: list[bytes] = []
        starts = self.server.starts
        try:
            start = pb.ConsumeRequest.Start(channel=self.channel, max_events=50, prefetch=3, columns=True)
            await stream.send(pb.ConsumeRequest(start=start))
            left = self.chance.randint(1, 8)
            receiving = asyncio.ensure_future(stream.receive())
            while left and await self._is_in_time(receiving):
                await self._settle(stream, receiving.result(), acked)
                self.server.count_response()
                left -= 1
                receiving = asyncio.ensure_future(stream.receive())
            await stream.half_close()
            while await receiving is not None:
                receiving = asyncio.ensure_future(stream.receive())
        except Exception as error:
            await self.server.endure_broken(error)
            await self.server.rpc()
            if self.server.starts == starts:
                raise
            # Acks get no response; the channel shows which of them arrived.
            self.account.settle_by_channel(acked)
        else:
            self.account.removes(acked)

    async def _is_in_time(self, receiving: "asyncio.Future[Any]") -> bool:
        """Waits for a delivery, or for the end of the test, when none may come."""
        ending = asyncio.ensure_future(self.server.ending.wait())
        await asyncio.wait({receiving, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        return receiving.done()

    async def _settle(self, stream: Stream, delivery: pb.ConsumeResponse, acked: list[bytes]) -> None:
        """Acknowledges a delivery, whose events are doubtful from then on, or leaves it."""
        bodies = self.account.delivers((sequence, body) for sequence, _, body in rows_of(delivery.batches))
        if self.chance.random() < _ACK_PROBABILITY:
            self.account.doubts(bodies)
            acked += bodies
            await stream.send(pb.ConsumeRequest(ack=pb.ConsumeRequest.Ack(delivery_ids=[delivery.delivery_id])))


class Reader(Worker):
    """Claims the channel, reads unacknowledged events, and acknowledges a part."""

    epoch = 0
    channel_id = ""

    async def step(self) -> None:
        claim = await self.server.call(
            "Claim", pb.ClaimRequest(channel=self.channel, reader_id=self.name, lease=seconds(600))
        )
        assert claim.epoch >= self.epoch, "an epoch came back"
        assert self.epoch in {0, claim.epoch}, "a claim that lives was given another epoch"
        assert self.channel_id in {"", claim.channel_id}
        self.epoch, self.channel_id = claim.epoch, claim.channel_id
        end = min(claim.next_sequence, claim.first_sequence + 300)
        if end == claim.first_sequence:
            return
        read = await self._read(claim.first_sequence, end)
        assert [sequence for sequence, _ in read] == list(range(claim.first_sequence, end)), "there are gaps"
        bodies = self.account.delivers(read)
        count = self.chance.randint(1, len(read))
        self.account.doubts(bodies[:count])
        through = read[count - 1][0]
        request = pb.AcknowledgeRequest(
            channel=self.channel, reader_id=self.name, through_sequence=through, epoch=self.epoch
        )
        response = await self.server.call("Acknowledge", request)
        assert response.first_sequence == through + 1
        self.account.removes(bodies[:count])

    async def _read(self, first: int, end: int) -> list[tuple[int, bytes]]:
        request = pb.ReadRequest(
            channel=self.channel,
            reader_id=self.name,
            from_sequence=first,
            to_sequence=end,
            epoch=self.epoch,
            columns=True,
        )
        while True:
            rpc = await self.server.rpc()
            try:
                batches = [response.batch async for response in rpc.channels.Read(request, timeout=30.0)]
            except aio.AioRpcError as error:
                await self.server.endure(error)
            else:
                return [(sequence, body) for sequence, _, body in rows_of(batches)]


def _workers(server: KilledServer, chance: random.Random) -> list[Worker]:
    kinds: list[tuple[type[Worker], str, str]] = [
        (Producer, "work", "p1"),
        (Producer, "work", "p2"),
        (StreamProducer, "work", "p3"),
        (Transactor, "work", "t1"),
        (Transactor, "work", "t2"),
        (Transactor, "work", "t3"),
        (StampedCommitter, "work", "c1"),
        (Consumer, "work", "d1"),
        (Consumer, "work", "d2"),
        (Producer, "read", "p4"),
        (StreamProducer, "read", "p5"),
        (StampedCommitter, "read", "c2"),
        (Reader, "read", "r1"),
        (Producer, AGING, "p6"),
        (Transactor, AGING, "t4"),
        (Consumer, AGING, "d3"),
    ]
    return [kind(server, channel, name, random.Random(chance.random())) for kind, channel, name in kinds]


async def _drain(server: KilledServer, chance: random.Random) -> None:
    """Takes and reads all that is left, and closes the accounts."""
    reader = Reader(server, "read", "r1", chance)
    while server.accounts["read"].stored != server.accounts["read"].removed:
        await reader.step()
    account = server.accounts["work"]
    while account.stored != account.removed:
        begun = await server.call("BeginTxn", pb.BeginTxnRequest(channel="work"))
        response = await server.call("Take", pb.TakeRequest(txn_id=begun.txn_id, wait=seconds(25.0), columns=True))
        bodies = account.delivers((sequence, body) for sequence, _, body in rows_of(response.batches))
        assert bodies, f"lost: {account.stored - account.removed}"
        await server.call("Commit", pb.CommitRequest(txn_ids=[begun.txn_id]))
        account.removes(bodies)
    for name in CHANNELS:
        server.accounts[name].close(await server.next_sequence(name))


async def _kill_often(scratch: Path, chance: random.Random, kill_count: int) -> None:
    server = KilledServer(scratch, chance)
    try:
        async with asyncio.TaskGroup() as tasks:
            for worker in _workers(server, chance):
                tasks.create_task(worker.run())
            for _ in range(kill_count):
                if chance.random() < _IN_VAIN_PROBABILITY:
                    await server.start_in_vain()
                else:
                    await server.start()
                    await server.respond(chance.randint(1, _RESPONSES_MAX))
                    await server.kill()
            server.ending.set()
            await server.start()
        await _drain(server, chance)
        await server.stop()
    finally:
        await server.close()


async def test_kills_under_load_lose_nothing_and_double_nothing(tmp_path: Path, chance: random.Random) -> None:
    """Every acknowledged event is there once, in order, and all other responses hold."""
    await _kill_often(tmp_path, chance, _KILLS_IN_THE_SUITE)


@pytest.mark.torture
@pytest.mark.parametrize("round_number", range(_ROUNDS))
async def test_a_thousand_kills_under_load_lose_nothing_and_double_nothing(
    round_number: int, tmp_path: Path, chance: random.Random
) -> None:
    """The same with a thousand kills."""
    await _kill_often(tmp_path, chance, _KILLS_IN_A_ROUND)
