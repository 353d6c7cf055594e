"""Whether the disks of a channel have room for puts."""

from collections.abc import Callable, Sequence
from pathlib import Path

from millrace_server.errors import DiskFullError
from millrace_server.wal.disk import Disk

LOOK_SECONDS = 0.1
"""How long what was seen of the disks holds; meanwhile what is written is counted."""

RETRY_DELAY_SECONDS = 1.0


class DiskRoom:
    """Has puts leave some room, so that takes and checkpoints, which free much more, always find a little.

    Args:
        disk: Where the directories are.
        directories: Directories of the channel; the one with the least room counts.
        clock: A monotonic clock in seconds.
    """

    def __init__(self, disk: Disk, directories: Sequence[Path], clock: Callable[[], float]) -> None:
        self._disk = disk
        self._directories = directories
        self._clock = clock
        self._free_bytes = 0
        self._looks_again_at = clock()

    def spend(self, byte_count: int, min_free_bytes: int) -> None:
        """Counts bytes that are to be put.

        Raises:
            DiskFullError: They would leave less than `min_free_bytes`.
        """
        if self._clock() >= self._looks_again_at:
            self._free_bytes = min(map(self._disk.free_bytes, self._directories))
            self._looks_again_at = self._clock() + LOOK_SECONDS
        if self._free_bytes - byte_count < min_free_bytes:
            raise DiskFullError(
                f"the channel's disk has {self._free_bytes} bytes free, puts leave {min_free_bytes}, and this one "
                f"takes {byte_count}; takes go on",
                retry_delay_seconds=RETRY_DELAY_SECONDS,
            )
        self._free_bytes -= byte_count
