"""What one batch costs a real server, as `python -m tests.simulation.calibration` measured it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

MEASURED = Path(__file__).with_name("costs.json")


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of one batch, each a median over rounds."""

    machine: str
    """Where and when they were measured."""
    batch_events: int
    batch_bytes: int
    """On the wire."""
    disk_bytes: int
    """In the log."""
    append_seconds: float
    """Processor time of the server that stores it, in all threads."""
    stall_seconds: float
    """How long a busy server waits for each batch without using a core, since its threads wait for each other."""
    client_seconds: float
    """Processor time of the client that sends it, in all threads."""
    consume_seconds: float
    """Processor time of the server that delivers it and removes it."""
    sync_seconds: float
    """A write of nothing but a sync: what a write costs, however small."""
    byte_seconds: float
    """What each byte adds to a write."""
    trip_seconds: float
    """What a lone call waits for beyond both processors and the disk."""
    restart_seconds: float
    """A server's processor time from its start until it serves; on a quiet machine that is how long it takes."""

    replicated_seconds: float
    """As `append_seconds`, of a replicated channel."""
    engine_seconds: float
    """What the engine takes to store a group of batches on three nodes, however small."""
    engine_byte_seconds: float
    """What each byte adds to that."""
    handover_seconds: float
    """How long callers of a replicated channel wait while its owner stops, with little in the channel."""
    takeover_seconds: float
    """The same where its owner was killed, without the lease."""
    crowding: Sequence[float]
    """Processor time of a batch where 0, 1 and more other servers are loaded on the same machine, of that without."""
    overlap: Sequence[float]
    """The rate of writes of 1, 2 and more logs together on one disk, of that of one."""

    def write_seconds(self, batch_count: int) -> float:
        """How long a write and sync of so many batches takes."""
        return self.sync_seconds + batch_count * self.batch_bytes * self.byte_seconds

    def among(self, servers: int) -> Self:
        """The costs of one of so many servers on one machine, whose writes overlap."""
        overlap = self.overlap[servers - 1]
        return replace(
            self.slowed(self.crowding[servers - 1]),
            sync_seconds=self.sync_seconds / overlap,
            byte_seconds=self.byte_seconds / overlap,
        )

    def slowed(self, factor: float) -> Self:
        """The same costs where work that takes a second takes this many."""
        return replace(
            self,
            append_seconds=self.append_seconds * factor,
            client_seconds=self.client_seconds * factor,
        )

    def replicated(self) -> Self:
        """The costs of replicated channels, as if there were no other ones."""
        return replace(
            self,
            append_seconds=self.replicated_seconds,
            sync_seconds=self.engine_seconds,
            byte_seconds=self.engine_byte_seconds,
        )

    def save(self) -> None:
        MEASURED.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def measured(cls) -> Self:
        """The figures of the last calibration."""
        return cls(**json.loads(MEASURED.read_text(encoding="utf-8")))
