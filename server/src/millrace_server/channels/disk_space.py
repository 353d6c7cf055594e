"""The free space of disks, or streams, and what of it puts may use."""

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from millrace_server.errors import DiskFullError

FREE_BYTES_SECONDS = 0.1
"""How long a measurement of the free space counts; written bytes are subtracted in the meantime."""

DISK_RETRY_DELAY_SECONDS = 1.0

REFUSAL_SECONDS = 60.0
"""How long a put that the disk had no space for counts while others are stored: its caller may have given up."""


class Medium(NamedTuple):
    """What keeps a channel's log, in the words of messages."""

    name: str
    """What has space, or none."""
    keeper: str
    """What responds, or does not."""
    remedy: str
    """What makes space, besides taking events out."""

    @property
    def silence(self) -> str:
        """Says that it does not respond."""
        return f"the {self.keeper} does not respond; commits wait for it"


DISK = Medium("disk", "disk", "free space on the disk")
STREAM = Medium("stream", "engine", "raise stream_bytes_max")


class FreeSpace(Protocol):
    """What shows how much a disk, or a stream, still takes."""

    def free_bytes(self, directory: Path) -> int:
        """Returns the free bytes; may block."""


class DiskAccount:
    """The free space of one file system, and what the channels on it are given of it.

    It is measured on threads, since a disk that does not respond would hold up the event loop. Until then the last
    measurement counts, less the bytes of puts that were in flight then or came later, and of what was allocated since.

    Attributes:
        measured_bytes: The free bytes as last measured.
        outdated_at: When that no longer counts as new.
        given_bytes: Bytes of all puts; changed on the event loop only.
        settled_bytes: Bytes of those that have ended; the next measurement shows how.
    """

    def __init__(self, disk: FreeSpace, clock: Callable[[], float]) -> None:
        self._disk = disk
        self._clock = clock
        self.given_bytes = self.settled_bytes = 0
        # One log allocates at a time, so that no two are given the same space; it changes these two: bytes that logs
        # have been allowed to allocate ahead, and those of allocations that have ended.
        self._allocating = threading.Lock()
        self._ahead_bytes = self._allocated_bytes = 0
        self.measured_bytes = self._limit_bytes = 0  # The limit of all that is given or allocated, ever.
        self.outdated_at = -math.inf

    @property
    def free_bytes(self) -> int:
        """The free bytes, less what the measurement may not have seen of puts and allocations."""
        return self._limit_bytes - self.given_bytes - self._ahead_bytes

    def measure(self, directory: Path) -> None:
        """Measures the free space in a directory of the file system; blocks on the disk. Any thread may call it."""
        # Before the disk is asked: what is written in the meantime counts twice until the next time, rather than not at
        # all.
        outdated_at, seen_bytes = self._clock() + FREE_BYTES_SECONDS, self.settled_bytes + self._allocated_bytes
        self.measured_bytes = free_bytes = self._disk.free_bytes(directory)
        # In one assignment: the event loop finds the one or the other.
        self._limit_bytes = free_bytes + seen_bytes
        self.outdated_at = outdated_at

    @contextmanager
    def allocating(self, directory: Path, byte_count: int, min_free_bytes: int) -> Iterator[bool]:
        """Yields whether a log may allocate this much ahead in the context; blocks on the disk.

        Any thread may call it. While another log allocates, none may: its file grows with its next write instead.

        Raises:
            OSError: The disk does not tell how much is free.
        """
        if not self._allocating.acquire(blocking=False):
            yield False
            return
        try:
            in_flight_bytes = self.given_bytes - self.settled_bytes
            is_allowed = self._disk.free_bytes(directory) - in_flight_bytes - byte_count >= min_free_bytes
            self._ahead_bytes += byte_count * is_allowed
            yield is_allowed
        finally:
            self._allocated_bytes = self._ahead_bytes
            self._allocating.release()
        if is_allowed:
            # At once: what is put into the space would count twice until the next measurement.
            self.measure(directory)


class DiskSpace:
    """Keeps puts from filling the disk, so that takes and checkpoints, which free far more, find some space.

    The data directory with the least space counts. The accounts of its disks are shared with the other channels there.

    Attributes:
        medium: What is called a disk here: it may be a stream.
        min_free_bytes: Bytes that puts leave free.
        checkpoint_trouble: Why no checkpoint has space, in a sentence; empty where it has.
        is_short: A put was refused, and it is not known yet that there is space.
        is_full: What is short could not be freed.
    """

    def __init__(
        self,
        account_of: Callable[[Path], DiskAccount],
        data_dirs: Sequence[Path],
        clock: Callable[[], float],
        checkpoint_dir: Path | None = None,
        *,
        medium: Medium = DISK,
    ) -> None:
        self.medium = medium
        self._accounts = {path: account_of(path) for path in (*data_dirs, checkpoint_dir or data_dirs[0])}
        # Each once, with a directory on its disk.
        self._data_accounts = {self._accounts[path]: path for path in data_dirs}
        self._clock = clock
        self._refused_bytes = 0  # Bytes of the largest put that was refused.
        self._refused_at = -math.inf
        self._refusing_bytes = 0  # Free bytes with which the disk itself refused a put.
        self.min_free_bytes = 0
        self.checkpoint_trouble = ""
        self.is_short = self.is_full = False
        self.measure()

    @property
    def directories(self) -> Mapping[Path, int]:
        """The free bytes of each data directory and of the checkpoint directory, as last measured."""
        return {path: account.measured_bytes for path, account in self._accounts.items()}

    @property
    def free_bytes(self) -> int:
        """Free bytes of the data directory that has the fewest, less what the measurement may not have seen."""
        return min([account.free_bytes for account in self._data_accounts])

    @property
    def is_outdated(self) -> bool:
        # Loops, here and below, since comprehensions over mostly one account take longer, and each put is counted here.
        now = self._clock()
        for account in self._data_accounts:  # noqa: SIM110 - see above
            if now >= account.outdated_at:
                return True
        return False

    @property
    def lacks_space(self) -> bool:
        """Whether there is still too little space for what was refused."""
        return self.is_short and self.free_bytes < self._wanted_bytes

    @property
    def _wanted_bytes(self) -> int:
        # A disk may refuse what it seems to have space for, because of a quota: then it must get more free than it had.
        return max(self.min_free_bytes, self._refusing_bytes) + self._refused_bytes

    @property
    def trouble(self) -> str:
        """What is lacking, and what to do, in a sentence; empty while there is space."""
        # Also while space is being made: who was refused must find the reason here.
        if not (self.is_full or self.lacks_space):
            return self.checkpoint_trouble
        return (
            f"the {self.medium.name} has no space for puts: {max(self.free_bytes, 0)} bytes are free, and a put of "
            f"{self._refused_bytes} bytes needs {self._wanted_bytes} (min_free_bytes is {self.min_free_bytes}); take "
            f"events out, or {self.medium.remedy}"
        )

    def measure(self) -> None:
        """Measures the free space; blocks on the disk. Any thread may call it."""
        for path, account in self._accounts.items():
            account.measure(path)
        self._refusing_bytes = min(self._refusing_bytes, self.free_bytes)

    @contextmanager
    def allocating(self, byte_count: int) -> Iterator[bool]:
        """Yields whether the log may allocate this much ahead in the context; blocks on the disk.

        Any thread may call it.

        Raises:
            OSError: A disk does not tell how much is free.
        """
        with ExitStack() as allocating:
            yield all(
                allocating.enter_context(account.allocating(path, byte_count, self.min_free_bytes))
                for account, path in self._data_accounts.items()
            )

    def reserve(self, byte_count: int) -> None:
        """Counts bytes that puts are about to write; raises DiskFullError where too little space would remain.

        `note_stored` or `settle` must follow.
        """
        self.refuse_above_free(byte_count)
        for account in self._data_accounts:
            account.given_bytes += byte_count

    def settle(self, byte_count: int) -> None:
        """Notes that puts of this many reserved bytes have ended; the next measurement shows how."""
        for account in self._data_accounts:
            account.settled_bytes += byte_count

    def refuse_above_free(self, byte_count: int) -> None:
        """Raises DiskFullError where puts of this many bytes would leave too little space."""
        needed_bytes = self.min_free_bytes + byte_count
        for account in self._data_accounts:
            if account.free_bytes < needed_bytes:
                self._refuse(byte_count)
                raise DiskFullError(
                    f"the channel's {self.medium.name} has {self.free_bytes} bytes free; a put of {byte_count} bytes "
                    f"would leave less than min_free_bytes, {self.min_free_bytes}; takes are still possible",
                    retry_delay_seconds=DISK_RETRY_DELAY_SECONDS,
                )

    def refuse_written(self, byte_count: int) -> None:
        """Notes that the disk itself has refused this much."""
        self._refusing_bytes = max(self.free_bytes, 0)
        self._refuse(byte_count)

    def note_stored(self, byte_count: int) -> None:
        """Notes that the disk has taken puts of this many reserved bytes.

        That ends a shortage if no put was refused for a while.
        """
        self.settle(byte_count)
        self._refusing_bytes = 0
        if self._clock() >= self._refused_at + REFUSAL_SECONDS:
            # It may be larger than the whole disk. Then no space would ever be enough.
            self._refused_bytes = 0

    def _refuse(self, byte_count: int) -> None:
        self._refused_bytes = max(self._refused_bytes, byte_count)
        self._refused_at = self._clock()
        self.is_short = True

    def end_shortage(self) -> None:
        """Notes that there is space for all that was refused."""
        self._refused_bytes = self._refusing_bytes = 0
        self.is_short = self.is_full = False
