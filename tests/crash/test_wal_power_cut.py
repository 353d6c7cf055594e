"""Power cuts and kills at every change that a log makes, also while it recovers."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.log_histories import (
    DATA,
    TWO_DIRECTORIES,
    Account,
    Moment,
    Recording,
    RunningLog,
    check_recovery,
    recorded,
    replay,
)
from tests.simulated_disk import SimulatedDisk

pytestmark = pytest.mark.usefixtures("small_logs")

_CUTS_PER_MOMENT = 4
_DISK_STATES_MIN = 10_000


def _first_start(log: RunningLog) -> None:
    log.append(b"state", begins_segment=True)


def _appends(log: RunningLog) -> None:
    log.append(b"state", begins_segment=True)
    for number in range(4):
        log.append(b"one %d" % number, b"two %d" % number)


def _big_records(log: RunningLog) -> None:
    log.append(b"state" * 300, begins_segment=True)
    for number in range(3):
        log.append(bytes([number]) * 3000, b"small", b"")


def _groups(log: RunningLog) -> None:
    log.append(b"state", begins_segment=True)
    for group in range(3):
        with log.together():
            responses = [log.submit(b"%d of group %d" % (number, group) * 20, b"more") for number in range(5)]
        for response in responses:
            response.result()


def _unsynced_appends(log: RunningLog) -> None:
    log.append(b"state", begins_segment=True)
    for number in range(3):
        log.append(b"unsynced %d" % number * 100, needs_sync=False)
    log.append()
    log.append(b"unsynced at last", needs_sync=False)


def _rotations(log: RunningLog) -> None:
    for segment in range(4):
        log.append(b"state %d" % segment * 100, begins_segment=True)
        log.append(b"in segment %d" % segment)
        log.append(b"unsynced in segment %d" % segment, needs_sync=False)


def _rotation_in_a_group(log: RunningLog) -> None:
    log.append(b"state", begins_segment=True)
    with log.together():
        log.submit(b"before")
        log.submit(b"next state", b"with it", begins_segment=True)
        last = log.submit(b"behind" * 200)
    last.result()


def _removals(log: RunningLog) -> None:
    for segment in range(5):
        log.append(b"state %d" % segment, begins_segment=True)
        log.append(b"in segment %d" % segment)
    log.remove_before(4)
    log.append(b"after the removal")


def _full_disk(log: RunningLog) -> None:
    log.append(b"state", begins_segment=True)
    disk = log.log._files.disk
    assert isinstance(disk, SimulatedDisk)
    disk.capacity_bytes = 5000
    for number in range(6):
        log.submit(b"%d" % number * 1000).exception()
    log.submit(b"state" * 300, begins_segment=True).exception()
    disk.capacity_bytes = 1 << 40
    log.append(b"again space")
    log.append(b"next state", begins_segment=True)


HISTORIES = [
    _first_start,
    _appends,
    _big_records,
    _groups,
    _unsynced_appends,
    _rotations,
    _rotation_in_a_group,
    _removals,
    _full_disk,
]


def _anything(chance: random.Random) -> Callable[[RunningLog], None]:
    """A history of large records with few syncs, so that a power cut may leave much or little of it."""

    def history(log: RunningLog) -> None:
        log.append(b"state", begins_segment=True)
        for step in range(30):
            payloads = [bytes([step]) * chance.randrange(5000) for _ in range(chance.randint(1, 5))]
            if chance.random() < 0.1:
                log.append(*payloads, begins_segment=True)
            elif chance.random() < 0.1:
                log.remove_before(max(log.log._segments))
            else:
                log.append(*payloads, needs_sync=chance.random() < 0.2)

    return history


def _check_moment(moment: Moment, directories: Sequence[Path], chance: random.Random, cut_count: int) -> set[int]:
    """Crashes at a moment, this many times; returns the fingerprints of the disks."""
    check_recovery(moment.disk.copy(), moment.account, directories, chance)
    disks = [moment.disk.crashed(chance.randrange(1 << 32)) for _ in range(cut_count)]
    # A kill, a restart, and a power cut during the start.
    killed = Recording(moment.disk.copy(), Account)
    replay(killed._disk, directories)
    disks.append(chance.choice(killed.end()).disk.crashed(chance.randrange(1 << 32)))
    for disk in disks:
        check_recovery(disk.copy(), moment.account, directories, chance)
    return {disk.fingerprint() for disk in disks}


@pytest.mark.parametrize("directories", [(DATA,), TWO_DIRECTORIES], ids=["one directory", "two"])
@pytest.mark.parametrize("history", HISTORIES)
def test_replay_after_a_crash_at_any_change_finds_what_was_acknowledged(
    history: Callable[[RunningLog], None], directories: Sequence[Path], chance: random.Random
) -> None:
    """Acknowledged records are kept, refused ones are not found, and the log opens and continues, in any case."""
    for moment in recorded(SimulatedDisk(directories, chance.randrange(1 << 32)), history, directories):
        _check_moment(moment, directories, chance, _CUTS_PER_MOMENT)


def test_replay_after_a_power_cut_of_long_unsynced_work_finds_what_was_acknowledged(chance: random.Random) -> None:
    """The same with much data lost or torn at once."""
    moments = recorded(SimulatedDisk([DATA], chance.randrange(1 << 32)), _anything(chance))
    for moment in chance.sample(moments, 20):
        _check_moment(moment, [DATA], chance, _CUTS_PER_MOMENT)


@pytest.mark.torture
def test_replay_after_ten_thousand_power_cuts_finds_what_was_acknowledged(chance: random.Random) -> None:
    """Ten recordings give 10,000 distinct disks, and none of them loses anything."""
    fingerprints: set[int] = set()
    moments = [
        moment
        for _recording in range(10)
        for moment in recorded(
            SimulatedDisk(TWO_DIRECTORIES, chance.randrange(1 << 32)), _anything(chance), TWO_DIRECTORIES
        )
    ]
    while len(fingerprints) < _DISK_STATES_MIN:
        fingerprints |= _check_moment(chance.choice(moments), TWO_DIRECTORIES, chance, _CUTS_PER_MOMENT)
