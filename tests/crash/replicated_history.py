"""Owners of one log in a cluster that is attacked, and the record of what was acknowledged to them."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from examples.jetstream_cluster import JetStreamCluster, Node
from millrace_server.replication.engine import Engine, EngineError
from millrace_server.replication.stream import StreamLimits
from millrace_server.wal.records import LogFailedError
from tests.stream_logs import OwnedLog

LIMITS = StreamLimits(replicas=3, stream_bytes_max=1 << 30)
_CALLERS = 4
_OWNERS_MAX = 4
_CHECKPOINT_SHARE = 0.005
_GIVE_UP_SECONDS = 120.0
_HALT_SECONDS = 12.0


@dataclass
class LogAccount:
    """What was acknowledged to owners, and what each of them found when it took the log over."""

    acknowledged: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """The segment id and position of each record whose commit was acknowledged, in the order of the responses."""
    refused: set[bytes] = field(default_factory=set)
    """Records in whose place another owner's are; what becomes of others that fail is unknown."""
    found: list[bytes] = field(default_factory=list)
    """The whole log as the latest owner found it."""
    takeovers: int = 0

    def acknowledge(self, record: bytes, place: tuple[int, int]) -> None:
        """Notes a response."""
        assert place not in self.acknowledged.values(), f"{record!r} was given a place that another record has"
        self.acknowledged[record] = place

    def take_over(self, view: list[bytes], promised: Sequence[bytes]) -> None:
        """Checks the log as a new owner has it, against what was acknowledged before it began to take over."""
        self.takeovers += 1
        assert len(view) == len(set(view)), "a record is in the log twice"
        assert view[: len(self.found)] == self.found, "the log that an earlier owner had has changed"
        places = {record: index for index, record in enumerate(view)}
        lost = [record for record in promised if record not in places]
        assert not lost, f"{len(lost)} acknowledged records are lost: {lost[:5]}"
        in_order = sorted(promised, key=self.acknowledged.__getitem__)
        assert in_order == sorted(promised, key=places.__getitem__), "the order of the log is not that of the positions"
        returned = self.refused & places.keys()
        assert not returned, f"records that were refused for good are in the log: {sorted(returned)[:5]}"
        self.found = view


class Owners:
    """Servers that own one log after the other; none of them is told that it was overtaken."""

    def __init__(self, engines: Sequence[Engine], name: str, rng: random.Random) -> None:
        self.account = LogAccount()
        self._engines = engines
        self._name = name
        self._rng = rng
        self._epoch = 0
        self._number = 0
        self._is_ending = False
        self._owners: list[tuple[OwnedLog, asyncio.Task[None]]] = []

    async def take_over(self) -> None:
        """Lets another server own the log, checks what it finds, and lets it append from then on."""
        promised = list(self.account.acknowledged)
        async with asyncio.timeout(_GIVE_UP_SECONDS):
            log = await self._opened()
        assert log.chain.epoch > self._epoch
        self._epoch = log.chain.epoch
        before = log.checkpoint.state.split() if log.checkpoint else []
        view = [*before, *log.payloads]
        self.account.take_over(view, promised)
        self._owners.append((log, asyncio.create_task(self._append_all(log, view))))
        if len(self._owners) > _OWNERS_MAX:
            await self._end(*self._owners.pop(0))

    async def _opened(self) -> OwnedLog:
        while True:
            with suppress(EngineError, LogFailedError):
                engine = self._rng.choice(self._engines)
                return await OwnedLog.opened(engine, self._name, limits=LIMITS, sequence_known=self._epoch)
            await asyncio.sleep(0.1)

    async def _append_all(self, log: OwnedLog, view: list[bytes]) -> None:
        """Appends as some callers do, each behind its response, until the owner is overtaken."""
        records = list(view)
        await asyncio.gather(*[self._append(log, records) for _ in range(_CALLERS)])

    async def _append(self, log: OwnedLog, records: list[bytes]) -> None:
        checkpointed = 0
        while not self._is_ending:
            self._number += 1
            record = b"%d" % self._number
            try:
                stored = await log.submit(record)
            except LogFailedError as error:
                if "has appended message" in str(error):
                    self.account.refused.add(record)
                return
            location = stored.locations[0]
            self.account.acknowledge(record, (location.segment_id, location.position))
            # Responses come in the order of the log, so all before this one are in the list.
            records.append(record)
            if self._rng.random() < _CHECKPOINT_SHARE:
                # One that was overtaken writes none, and the engine may not respond.
                with suppress(OSError):
                    await log.write_checkpoint(stored.end, b" ".join(records))
                    await asyncio.to_thread(log.log.remove_before, checkpointed)
                    checkpointed = location.segment_id

    async def end(self) -> None:
        """Ends all owners, of which each but the last must have been overtaken by then."""
        self._is_ending = True
        for owner in self._owners:
            await self._end(*owner)

    async def _end(self, log: OwnedLog, appending: "asyncio.Task[None]") -> None:
        async with asyncio.timeout(_GIVE_UP_SECONDS):
            await appending
        await log.close()


class Faults:
    """What is done to a cluster; each leaves all nodes running."""

    def __init__(self, cluster: JetStreamCluster, stream: str, rng: random.Random) -> None:
        self.kill_count = 0
        self._cluster = cluster
        self._stream = stream
        self._rng = rng

    async def kill(self, node_count: int) -> None:
        """Kills the stream's leader, and further nodes, with SIGKILL, and starts them again a little later."""
        leader = await asyncio.to_thread(self._cluster.leader_of, self._stream)
        others = [node for node in self._cluster.nodes if node is not leader]
        killed = [leader, *self._rng.sample(others, node_count - 1)]
        for node in killed:
            await asyncio.to_thread(node.kill)
        self.kill_count += len(killed)
        await asyncio.sleep(self._rng.random() * 2)
        await asyncio.to_thread(self._cluster.start)

    async def halt(self) -> None:
        """Lets the stream's leader stand still, longer than an election takes."""
        leader: Node = await asyncio.to_thread(self._cluster.leader_of, self._stream)
        leader.halt()
        try:
            await asyncio.sleep(_HALT_SECONDS)
        finally:
            leader.resume()
