"""What one batch costs a real server, as `python -m tests.simulation.calibration` measured it."""

import json
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
    """Processor time of the server that stores it."""
    client_seconds: float
    """Processor time of the client that sends it."""
    consume_seconds: float
    """Processor time of the server that delivers it and removes it."""
    sync_seconds: float
    """A write of nothing but a sync: what a write costs, however small."""
    byte_seconds: float
    """What each byte adds to a write."""
    trip_seconds: float
    """What a lone call waits for beyond both processors and the disk."""
    restart_seconds: float
    """From the signal to stop until the server serves again."""

    def write_seconds(self, batch_count: int) -> float:
        """How long a write and sync of so many batches takes."""
        return self.sync_seconds + batch_count * self.batch_bytes * self.byte_seconds

    def with_disk_gain(self, gain: float) -> Self:
        """The same costs with writes that take a fraction of the time: those of several logs, which overlap."""
        return replace(self, sync_seconds=self.sync_seconds / gain, byte_seconds=self.byte_seconds / gain)

    def save(self) -> None:
        MEASURED.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def measured(cls) -> Self:
        """The figures of the last calibration."""
        return cls(**json.loads(MEASURED.read_text(encoding="utf-8")))
