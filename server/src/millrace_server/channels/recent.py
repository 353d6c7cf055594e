"""What was written or read last, kept in memory as long as there is room."""

import threading
from collections import deque

from millrace_server.channels.batches import StoredColumns

RECENT_BYTES_MAX = 32 << 20
"""Bytes of columns that all file channels of a server keep in memory beside their logs."""


class RecentColumns:
    """Columns that lie in a log, in memory too until newer ones take their room.

    A consumer that keeps up finds here what was just written, and the disk is never read.
    """

    def __init__(self, bytes_max: int = RECENT_BYTES_MAX) -> None:
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
