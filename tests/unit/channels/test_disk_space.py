from pathlib import Path

import pytest

from millrace_server.channels.admission import FREE_BYTES_SECONDS, DiskSpace
from millrace_server.errors import DiskFullError
from millrace_server.wal.disk import OsDisk

LEFT, RIGHT = Path("left"), Path("right")


class SmallDisks(OsDisk):
    """Disks with this much free space, which count the queries."""

    def __init__(self, **free_bytes: int) -> None:
        self.free = {Path(name): count for name, count in free_bytes.items()}
        self.looks = 0

    def free_bytes(self, directory: Path) -> int:
        self.looks += 1
        return self.free[directory]


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_spend_counts_what_is_put_between_two_looks() -> None:
    """The disk is not queried for each commit; only writes of other programs in the meantime are missed."""
    disk, clock = SmallDisks(left=1000), Clock()
    room = DiskSpace(disk, [LEFT], clock)
    room.reserve(600, 100)
    room.reserve(300, 100)
    with pytest.raises(
        DiskFullError,
        match="has 100 bytes free; a put of 1 bytes would leave less than min_free_bytes, 100; takes are still",
    ) as refused:
        room.reserve(1, 100)
    assert refused.value.retry_delay_seconds == 1
    assert disk.looks == 1
    # Refused bytes were not spent.
    room.reserve(100, 0)
    clock.seconds += FREE_BYTES_SECONDS
    room.reserve(600, 100)
    assert disk.looks == 2


def test_spend_before_any_measurement_measures_first() -> None:
    """A channel below its minimum opens, and refuses puts."""
    with pytest.raises(DiskFullError):
        DiskSpace(SmallDisks(left=99), [LEFT], Clock()).reserve(0, 100)


def test_spend_on_several_disks_goes_by_the_fullest() -> None:
    """Segments use the disks in turn."""
    disk, clock = SmallDisks(left=1000, right=500), Clock()
    room = DiskSpace(disk, [LEFT, RIGHT], clock)
    with pytest.raises(DiskFullError):
        room.reserve(500, 1)
    disk.free[RIGHT] = 2000
    clock.seconds += FREE_BYTES_SECONDS
    room.reserve(500, 1)
