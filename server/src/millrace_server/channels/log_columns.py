"""Reading columns back from a channel's log."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from millrace.wire_format import Buffer
from millrace_server.channels.batches import StoredBatch, StoredColumns
from millrace_server.errors import ChannelCorruptError, MillraceError, SequenceGoneError
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.payload_codec import KeyMissingError
from millrace_server.wal.records import Location
from millrace_server.wal.segments import LogCorruptError

WRITTEN_BYTES_MAX = 2 << 20
"""Bytes of columns that were just written. With 32 MiB requests went through memory that was in no cache of the
processor's, and writing was a sixth slower. What is a little older is read back out of the system's memory."""

READ_BYTES_MAX = 32 << 20
"""Bytes of columns that were read back: what is read ahead for several readers at once is there when they want it."""


class RecentColumns:
    """A first-in, first-out cache of columns that are in a log: a consumer that keeps up never reads the disk."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._columns: deque[StoredColumns] = deque()
        self._bytes = 0
        # A channel that is being read back may have to read columns, on a thread of its own.
        self._lock = threading.Lock()

    def add(self, stored: StoredColumns) -> None:
        with self._lock:
            self._columns.append(stored)
            self._bytes += stored.raw_bytes
            while self._bytes > self.bytes_max:
                oldest = self._columns.popleft()
                self._bytes -= oldest.raw_bytes
                oldest.forget()


@dataclass(frozen=True)
class RecentMemory:
    """The caches that all file channels of a server share."""

    written: RecentColumns = field(default_factory=lambda: RecentColumns(WRITTEN_BYTES_MAX))
    read: RecentColumns = field(default_factory=lambda: RecentColumns(READ_BYTES_MAX))


class LogColumns:
    """Reads columns from one log, and caches them.

    Attributes:
        damage: The first damage that reading has found, in a sentence for the server's log, also passed to `on_damage`.
        first_segment_id: The oldest segment when the channel was opened.
    """

    def __init__(self, log: WriteAheadLog, recent: RecentMemory) -> None:
        self._log = log
        self._recent = recent
        self.damage = ""
        self.on_damage: Callable[[str], None] = lambda _: None
        self.first_segment_id = 0

    def add(self, stored: StoredColumns) -> None:
        self._recent.written.add(stored)

    def read(self, stored: StoredColumns) -> Buffer:
        """Returns the serialized columns; blocks on the disk."""
        assert stored.location is not None
        try:
            raw = self._log.read(stored.location)
        except (LogCorruptError, KeyMissingError, OSError) as error:
            raise self._failed(error, [stored.location]) from error
        self._keep(stored, raw)
        return raw

    async def load(self, batches: Iterable[StoredBatch]) -> None:
        """Reads batches into memory, neighbours together, without blocking the event loop.

        Raises:
            ChannelCorruptError: One of them differs from what was written.
            SequenceGoneError: The log has dropped one of them since it was consumed.
        """
        wanted = {id(batch.window.stored): batch.window.stored for batch in batches}
        missing = [stored for stored in wanted.values() if not stored.is_in_memory]
        if not missing:
            return
        locations = [stored.location for stored in missing if stored.location is not None]
        try:
            payloads = self._log.read_run(locations, cached_only=True)
            if payloads is None:
                payloads = await asyncio.to_thread(self._log.read_run, locations)
        except (LogCorruptError, KeyMissingError, OSError) as error:
            raise self._failed(error, locations) from error
        assert payloads is not None, "only what is cached may be missing"
        for stored, raw in zip(missing, payloads, strict=True):
            self._keep(stored, raw)

    def _keep(self, stored: StoredColumns, raw: Buffer) -> None:
        stored.remember(raw)
        self._recent.read.add(stored)

    def _failed(self, error: Exception, locations: Sequence[Location]) -> MillraceError:
        oldest = min(location.segment_id for location in locations)
        if self.first_segment_id <= oldest < self._log.first_segment_id:
            # PeekEvents holds no segments back: they are removed even while it still reads their events.
            return SequenceGoneError("the events were consumed meanwhile, and their segment was removed")
        if not self.damage:
            self.damage = str(error)
            self.on_damage(self.damage)
        return ChannelCorruptError(
            "stored events cannot be read back as they were written; the server's log tells where, and "
            "`millraced log verify` how much is concerned"
        )
