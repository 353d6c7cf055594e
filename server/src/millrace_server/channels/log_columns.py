"""Reading columns back from a channel's log."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from millrace.columns import HEADER_KEYS_MAX
from millrace.wire_format import Buffer
from millrace_server.channels.batches import StoredBatch, StoredColumns
from millrace_server.channels.queue import RUN_EVENTS_MAX
from millrace_server.channels.runs import merged
from millrace_server.errors import ChannelCorruptError, ChannelLogFailedError, MillraceError, SequenceGoneError
from millrace_server.wal.interfaces import Log
from millrace_server.wal.payload_codec import KeyMissingError
from millrace_server.wal.records import Location
from millrace_server.wal.segments import LogCorruptError

WRITTEN_BYTES_MAX = 2 << 20
"""Bytes of columns that were just written. With 32 MiB requests went through memory that was in no cache of the
processor's, and writing was a sixth slower. What is a little older is read back out of the system's memory."""

READ_BYTES_MAX = 32 << 20
"""Bytes of columns that were read back: what is read ahead for several readers at once is there when they want it."""

_RECORDS_AT_ONCE_MAX = 2 * RUN_EVENTS_MAX
"""Records that the event loop reads itself where none waits for the disk: merging more takes too long."""


def read_columns(log: Log, wanted: Sequence[StoredColumns], *, cached_only: bool = False) -> list[Buffer]:
    """Reads the serialized columns back, neighbours together; fewer than wanted if `cached_only` and the disk has them.

    Raises:
        KeyMissingError: Some are encrypted with a key that was not given.
        LogCorruptError: Some are damaged, or their segment was removed.
    """
    single = [stored.location for stored in wanted if stored.record_count == 1 and stored.location is not None]
    payloads = log.read_run(single, cached_only=cached_only)
    if payloads is None:
        return []
    if len(single) == len(wanted):
        return payloads
    raws: list[Buffer] = []
    others = iter(payloads)
    for stored in wanted:
        if stored.record_count == 1:
            raws.append(next(others))
            continue
        assert stored.location is not None, "a run is in a log"
        puts = log.read_puts(stored.location, cached_only=cached_only)
        if puts is None:
            return []
        if len(puts) != stored.record_count:
            raise LogCorruptError(
                f"segment {stored.location.segment_id}: after byte {stored.location.position} there are {len(puts)} "
                f"PUT records of {stored.record_count}"
            )
        raw, key_count = merged(puts)
        # Until now the sum of its records. First: another thread may ask how large the batch is.
        stored.raw_bytes = len(raw)
        stored.is_batch = key_count <= HEADER_KEYS_MAX
        raws.append(raw)
    return raws


class RecentColumns:
    """A first-in, first-out cache of columns that are in a log: a consumer that keeps up never reads the disk."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._columns: deque[StoredColumns] = deque()
        self._bytes = 0
        # A channel that is being read back may have to read columns, on its own thread.
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


_LOCKED = (
    "stored events cannot be decrypted: a key is missing, or a different key was given for it; see the server's log"
)
_DAMAGED = (
    "stored events cannot be read back as they were written; the server's log says where, and `millraced log verify` "
    "how much is affected"
)


class LogColumns:
    """Reads columns from one log, and caches them.

    Attributes:
        fault: Why the first events could not be read that cannot be; `on_damage` gets the cause, for the server's log.
        refuse_reading: Raises where the log may be another server's by now, which removes from it what it has consumed.
        first_segment_id: The oldest segment when the channel was opened.
    """

    def __init__(self, log: Log, recent: RecentMemory) -> None:
        self._log = log
        self._recent = recent
        self.fault: MillraceError | None = None
        self.first_segment_id = 0
        self.leave_channel()

    def leave_channel(self) -> None:
        """Forgets the channel, once its log is closed: what is cached of it may outlive it for long."""
        self.on_damage: Callable[[str], None] = lambda _: None
        self.refuse_reading: Callable[[], None] = lambda: None

    def add(self, stored: StoredColumns) -> None:
        self._recent.written.add(stored)

    def read(self, stored: StoredColumns) -> Buffer:
        """Returns the serialized columns; blocks on the disk."""
        assert stored.location is not None
        try:
            [raw] = read_columns(self._log, [stored])
        except (LogCorruptError, KeyMissingError, OSError) as error:
            raise self._failed(error, [stored.location]) from error
        self._keep(stored, raw)
        return raw

    async def load(self, batches: Iterable[StoredBatch]) -> None:
        """Reads batches into memory, neighbours together, without blocking the event loop.

        Raises:
            ChannelCorruptError: One of them differs from what was written.
            ChannelLogFailedError: One of them is encrypted with a key that was not given.
            SequenceGoneError: The log has dropped one of them since it was consumed.
        """
        wanted = {id(batch.window.stored): batch.window.stored for batch in batches}
        missing = [stored for stored in wanted.values() if not stored.is_in_memory]
        if not missing:
            return
        locations = [stored.location for stored in missing if stored.location is not None]
        try:
            is_little = sum([stored.record_count for stored in missing]) <= _RECORDS_AT_ONCE_MAX
            raws = read_columns(self._log, missing, cached_only=True) if is_little else []
            if len(raws) < len(missing):
                raws = await asyncio.to_thread(read_columns, self._log, missing)
        except (LogCorruptError, KeyMissingError, OSError) as error:
            raise self._failed(error, locations) from error
        for stored, raw in zip(missing, raws, strict=True):
            self._keep(stored, raw)

    def _keep(self, stored: StoredColumns, raw: Buffer) -> None:
        stored.remember(raw)
        self._recent.read.add(stored)

    def _failed(self, error: Exception, locations: Sequence[Location]) -> MillraceError:
        oldest = min(location.segment_id for location in locations)
        if self.first_segment_id <= oldest < self._log.first_segment_id:
            # PeekEvents holds no segments back: they are removed even while it still reads their events.
            return SequenceGoneError("the events have been consumed in the meantime, and their segment was removed")
        try:
            self.refuse_reading()
        except MillraceError as refusal:
            return refusal
        fault = ChannelLogFailedError(_LOCKED) if isinstance(error, KeyMissingError) else ChannelCorruptError(_DAMAGED)
        if self.fault is None:
            self.fault = fault
            self.on_damage(str(error))
        return fault
