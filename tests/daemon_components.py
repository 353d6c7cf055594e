"""Components of agents for tests of real daemons, configured as `tests.daemon_components:...`."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.events import EventTable
from millrace_server.agent.sinks.sink import BatchSink
from millrace_server.channels.batches import StoredBatch

_LOOK_SECONDS = 0.02


class CountingSource:
    """Writes `count` numbered events, then waits; records its end in the file `ended` beside it."""

    def __init__(self, place: Any, *, count: int = 0, ended: str = "") -> None:
        self._name = place.name
        self._count = count
        self._ended = Path(ended) if ended else None

    async def run(self, writer: ChannelWriter) -> None:
        writer.report_running()
        for number in range(self._count):
            await writer.deliver(EventTable([b"%s-%d" % (self._name.encode(), number)]), writer.next_stamp(1))
        try:
            await asyncio.Event().wait()
        finally:
            if self._ended is not None:
                self._ended.touch()


class SlowSink(BatchSink):
    """Appends bodies to a file slowly, a line each; waits while the file `gate` does not exist."""

    def __init__(self, _place: Any, *, path: str, seconds: float = 0.0, gate: str = "") -> None:
        self._path = Path(path)
        self._seconds = seconds
        self._gate = Path(gate) if gate else None

    async def write(self, batches: Sequence[StoredBatch]) -> None:
        await asyncio.to_thread(self._write, [body for batch in batches for _, body in batch.window.rows()])

    def _write(self, bodies: Sequence[bytes]) -> None:
        while self._gate is not None and not self._gate.exists():
            time.sleep(_LOOK_SECONDS)
        time.sleep(self._seconds)
        with self._path.open("ab") as file:
            file.writelines(body + b"\n" for body in bodies)
