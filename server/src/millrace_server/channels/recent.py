"""What was written or read last, kept in memory as long as there is room."""

import threading
from collections import deque
from dataclasses import dataclass, field

from millrace_server.channels.batches import StoredColumns

WRITTEN_BYTES_MAX = 2 << 20
"""Bytes of columns that were just written. With 32 MiB requests went through memory that was in no cache of the
processor's, and writing was a sixth slower. What is a little older is read back out of the system's memory."""

READ_BYTES_MAX = 32 << 20
"""Bytes of columns that were read back: what is read ahead for several readers at once is there when they want it."""


class RecentColumns:
    """Columns that lie in a log, in memory too until newer ones take their room.

    A consumer that keeps up finds here what was just written, and the disk is never read.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._columns: deque[StoredColumns] = deque()
        self._bytes = 0
        # A channel that is being read back may have to read columns, on a thread of its own.
        self._lock = threading.Lock()

    def add(self, stored: StoredColumns) -> None:
        """Lets columns stay for a while, those least recently added go for it."""
        with self._lock:
            self._columns.append(stored)
            self._bytes += stored.raw_bytes
            while self._bytes > self.bytes_max:
                oldest = self._columns.popleft()
                self._bytes -= oldest.raw_bytes
                oldest.forget()


@dataclass(frozen=True)
class RecentMemory:
    """What all file channels of a server keep in memory beside their logs."""

    written: RecentColumns = field(default_factory=lambda: RecentColumns(WRITTEN_BYTES_MAX))
    read: RecentColumns = field(default_factory=lambda: RecentColumns(READ_BYTES_MAX))
