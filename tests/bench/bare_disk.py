"""Bare loops on the disk: the cost of storing the same bytes without RPC.

Each batch takes its checksum, one write and one sync. `append_synced` writes into preallocated space as the log does,
or lets the file grow with each write.
"""

import os
from pathlib import Path

from zlib_ng.zlib_ng import crc32

from millrace_server.wal.writer import PREALLOCATE_BYTES_MAX, PREALLOCATE_BYTES_MIN


def append_synced(path: Path, batch: bytes, count: int, *, sets_aside: bool) -> None:
    """Appends a batch repeatedly, with a sync after each.

    Args:
        path: The file, which is created, and removed in the end.
        batch: The bytes to append.
        count: The number of appends.
        sets_aside: Whether space is preallocated ahead of the writes.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    position = reserved = 0
    try:
        for _ in range(count):
            crc32(batch)
            if sets_aside and position + len(batch) > reserved:
                ahead = min(PREALLOCATE_BYTES_MAX, max(PREALLOCATE_BYTES_MIN, position))
                length = position + len(batch) - reserved + ahead
                os.posix_fallocate(descriptor, reserved, length)
                reserved += length
            position += os.pwrite(descriptor, batch, position)
            os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
        path.unlink()
