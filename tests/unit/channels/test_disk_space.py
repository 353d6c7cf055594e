import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace_server.channels.disk_space import FREE_BYTES_SECONDS, REFUSAL_SECONDS, DiskAccount, DiskSpace
from millrace_server.errors import DiskFullError
from millrace_server.wal.disk import OsDisk
from tests.fake_clock import FakeClock

LEFT, RIGHT, CHECKPOINTS = Path("left"), Path("right"), Path("checkpoints")


class SmallDisks(OsDisk):
    """Disks with this much free space, which count the queries."""

    def __init__(self, **free_bytes: int) -> None:
        self.free = {Path(name): count for name, count in free_bytes.items()}
        self.looks = 0

    def free_bytes(self, directory: Path) -> int:
        self.looks += 1
        if directory not in self.free:
            raise OSError(errno.ENOENT, "no such directory")
        return self.free[directory]


def accounts_on(disk: SmallDisks, clock: Callable[[], float] | None = None) -> Callable[[Path], DiskAccount]:
    """Makes the account of each directory, whose disks are all separate."""
    return lambda _: DiskAccount(disk, clock or FakeClock())


def small_space(disk: SmallDisks, min_free_bytes: int, *data_dirs: Path) -> DiskSpace:
    """The space of a channel that leaves this much free."""
    space = DiskSpace(accounts_on(disk), data_dirs or [LEFT], FakeClock())
    space.min_free_bytes = min_free_bytes
    return space


def test_reserve_counts_what_is_put_between_two_measurements() -> None:
    """The disk is not queried for each commit; only writes of other programs in the meantime are missed."""
    disk = SmallDisks(left=1000)
    space = small_space(disk, 100)
    space.reserve(600)
    space.reserve(300)
    with pytest.raises(
        DiskFullError,
        match="has 100 bytes free; a put of 1 bytes would leave less than min_free_bytes, 100; takes are still",
    ) as refused:
        space.reserve(1)
    assert refused.value.retry_delay_seconds == 1
    # Refused bytes were not spent.
    space.min_free_bytes = 0
    space.reserve(100)
    assert disk.looks == 1
    space.settle(1000)
    space.measure()
    space.reserve(600)
    assert disk.looks == 2


def test_reserve_counts_what_is_in_flight_during_a_measurement() -> None:
    """Such a put may reach the disk after the disk was asked; once it has ended, the next measurement shows it."""
    disk = SmallDisks(left=1000)
    space = small_space(disk, 100)
    space.reserve(600)
    space.measure()
    with pytest.raises(DiskFullError, match="has 400 bytes free"):
        space.reserve(301)
    disk.free[LEFT] = 400
    space.note_stored(600)
    space.measure()
    space.reserve(300)


def test_reserve_below_the_minimum_is_refused() -> None:
    """A channel opens on such a disk, and refuses puts."""
    with pytest.raises(DiskFullError):
        small_space(SmallDisks(left=99), 100).reserve(0)


def test_reserve_on_several_disks_goes_by_the_fullest() -> None:
    """Segments use the disks in turn; the disk of the checkpoints, which are small, does not count."""
    disk = SmallDisks(left=1000, right=500, checkpoints=1)
    space = DiskSpace(accounts_on(disk), [LEFT, RIGHT], FakeClock(), CHECKPOINTS)
    with pytest.raises(DiskFullError):
        space.reserve(501)
    disk.free[RIGHT] = 2000
    space.measure()
    space.reserve(501)
    assert space.directories == {LEFT: 1000, RIGHT: 2000, CHECKPOINTS: 1}


def test_measurement_counts_for_a_while() -> None:
    """A busy channel measures a few times in a second."""
    clock = FakeClock()
    space = DiskSpace(accounts_on(SmallDisks(left=1000), clock), [LEFT], clock)
    assert not space.is_outdated
    clock.now += FREE_BYTES_SECONDS
    assert space.is_outdated
    space.measure()
    assert not space.is_outdated


def test_shortage_lasts_until_the_largest_put_would_pass() -> None:
    """So it does not end and begin again where small puts pass and large ones do not."""
    disk = SmallDisks(left=500)
    space = small_space(disk, 100)
    for byte_count in (600, 450):
        with pytest.raises(DiskFullError):
            space.reserve(byte_count)
    for free_bytes, lacks_space in ((699, True), (700, False)):
        disk.free[LEFT] = free_bytes
        space.measure()
        assert (space.is_short, space.lacks_space) == (True, lacks_space)
    space.end_shortage()
    assert not space.is_short


def test_shortage_ends_with_a_put_once_none_was_refused_for_a_minute() -> None:
    """A put that is larger than the disk is never stored; a channel that stores all others is not full for ever."""
    disk, clock = SmallDisks(left=500), FakeClock()
    space = DiskSpace(accounts_on(disk, clock), [LEFT], clock)
    with pytest.raises(DiskFullError):
        space.reserve(501)
    for seconds, lacks_space in ((REFUSAL_SECONDS - 1, True), (1, False)):
        clock.now += seconds
        assert space.lacks_space
        space.reserve(1)
        space.note_stored(1)
        assert space.lacks_space is lacks_space


def test_shortage_of_a_disk_that_seems_to_have_space_ends_with_a_put_or_more_space() -> None:
    """A quota is in no measurement: what the disk refused is tried again only where it has more space than then."""
    disk = SmallDisks(left=1000)
    space = small_space(disk, 0)
    for grows in (True, False):
        space.reserve(10)
        space.refuse_written(10)
        disk.free[LEFT] = 900
        space.measure()
        assert space.lacks_space
        if grows:
            disk.free[LEFT] = 910
            space.measure()
        else:
            space.note_stored(10)
        assert not space.lacks_space
        space.end_shortage()


def test_trouble_tells_what_is_free_and_what_is_needed() -> None:
    """Operators see how much to free, from the first refusal until it is known that there is space."""
    disk = SmallDisks(left=500)
    space = small_space(disk, 100)
    assert space.trouble == ""
    with pytest.raises(DiskFullError):
        space.reserve(450)
    assert space.trouble == (
        "the disk has no space for puts: 500 bytes are free, and a put of 450 bytes needs 550 (min_free_bytes is 100); "
        "take events out, or free space on the disk"
    )
    space.is_full = True
    disk.free[LEFT] = 550
    space.measure()
    assert space.trouble
    space.end_shortage()
    assert space.trouble == ""


def test_measure_of_a_directory_that_is_gone_keeps_the_last_measurement() -> None:
    """What cannot be measured is no reason to refuse anything; the next write tells."""
    disk = SmallDisks(left=1000)
    space = small_space(disk, 0)
    del disk.free[LEFT]
    with pytest.raises(OSError, match="no such directory"):
        space.measure()
    assert space.free_bytes == 1000


def test_reserve_counts_what_other_channels_of_the_disk_are_given() -> None:
    """Many channels that put at once leave as much free as one does."""
    disk = SmallDisks(left=1000, right=10_000)
    account = DiskAccount(disk, FakeClock())
    first, second = (DiskSpace(lambda _: account, [LEFT], FakeClock()) for _ in range(2))
    first.min_free_bytes = second.min_free_bytes = 100
    first.reserve(600)
    second.reserve(300)
    for space in (first, second):
        with pytest.raises(DiskFullError, match="has 100 bytes free"):
            space.reserve(1)
    second.note_stored(300)
    disk.free[LEFT] = 700
    # Either of them measures for both; the put in flight is not in it.
    second.measure()
    assert first.free_bytes == second.free_bytes == 100


def test_allocating_leaves_what_puts_leave_and_what_they_are_about_to_write() -> None:
    """Space that a log allocates ahead is not given to puts as well."""
    disk = SmallDisks(left=1000)
    space = small_space(disk, 100)
    space.reserve(300)
    with space.allocating(601) as is_allowed:
        assert not is_allowed
    with space.allocating(600) as is_allowed:
        assert is_allowed
        assert space.free_bytes == 100
        with pytest.raises(DiskFullError):
            space.reserve(1)
        disk.free[LEFT] = 400
    # It was measured at once.
    assert space.free_bytes == 100


def test_allocating_while_another_log_allocates_is_refused() -> None:
    """No two logs are given the same space, and none waits for the other's disk."""
    disk = SmallDisks(left=1000)
    account = DiskAccount(disk, FakeClock())
    first, second = (DiskSpace(lambda _: account, [LEFT], FakeClock()) for _ in range(2))
    with first.allocating(1) as is_first_allowed:
        with second.allocating(1) as is_second_allowed:
            assert (is_first_allowed, is_second_allowed) == (True, False)
        # Measured in the middle of it, it may be in the measurement or not: so it counts.
        first.measure()
        assert first.free_bytes == 999
    with second.allocating(1) as is_allowed:
        assert is_allowed
