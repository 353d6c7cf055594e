"""Bare loops on the disk: what storing the same bytes costs without RPC.

For each batch: its checksum, one write behind the one before, one sync. `append_synced` writes into space that was set
aside as the log does it, or has the file grow with each write.
"""

import os
from pathlib import Path

from zlib_ng.zlib_ng import crc32

from millrace_server.wal.writer import PREALLOCATE_BYTES_MAX, PREALLOCATE_BYTES_MIN


def append_synced(path: Path, batch: bytes, count: int, *, sets_aside: bool) -> None:
    """Appends a batch so many times, and syncs each before the next.

    Args:
        path: The file, which is made, and removed in the end.
        batch: What is appended.
        count: How often.
        sets_aside: Whether the disk sets space aside ahead of the writing.
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
