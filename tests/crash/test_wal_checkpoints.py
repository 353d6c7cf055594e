"""Crashes, errors and damage while checkpoints are written and read."""

import errno
import random
import zlib
from contextlib import suppress

import pytest

from millrace_server.wal.checkpoints import NEWEST, PREVIOUS, Checkpoint, CheckpointFiles
from millrace_server.wal.format import UnknownVersionError
from millrace_server.wal.payload_codec import KeyMissingError, PayloadCodec
from millrace_server.wal.records import LogPosition
from tests.log_histories import CHANNEL_ID, CODECS, DATA, PLAIN, Account, Recording
from tests.simulated_disk import SimulatedDisk

_CHANGING_KINDS = ["list", "unlink", "create", "write", "sync", "rename", "open_directory", "sync_directory"]
_VERSION_OFFSET = 8
_FLAGS_OFFSET = 10
_POSITION_OFFSET = 40
_CHECKSUM_OFFSET = 60


def _files_on(disk: SimulatedDisk, *, keeps_previous: bool = True) -> CheckpointFiles:
    return CheckpointFiles(disk, DATA, CHANNEL_ID, keeps_previous=keeps_previous)


def _checkpoint(number: int) -> Checkpoint:
    return Checkpoint(LogPosition(number, 64 + number, number), b"state %d" % number * 100)


def _numbers(disk: SimulatedDisk) -> list[int]:
    """The numbers of the valid checkpoints, the newest first; checks that they are complete."""
    valid_checkpoints = list(_files_on(disk).valid_checkpoints())
    assert valid_checkpoints == [_checkpoint(checkpoint.position.segment_id) for checkpoint in valid_checkpoints]
    return [checkpoint.position.segment_id for checkpoint in valid_checkpoints]


def _with_checkpoints(count: int) -> SimulatedDisk:
    disk = SimulatedDisk([DATA])
    for number in range(1, count + 1):
        _files_on(disk).write(_checkpoint(number))
    return disk


@pytest.mark.parametrize("keeps_previous", [True, False])
def test_write_when_crashed_at_any_change_leaves_the_one_before_or_the_new_one(
    *, keeps_previous: bool, chance: random.Random
) -> None:
    """After a crash during the write of a checkpoint, the newest valid one is that one or the one before."""
    disk = SimulatedDisk([DATA], chance.randrange(1 << 32))
    for number in range(1, 5):
        recording = Recording(disk, Account)
        _files_on(disk, keeps_previous=keeps_previous).write(_checkpoint(number))
        *moments, last = recording.end()
        for moment in moments:
            for crashed in [moment.disk.copy(), *(moment.disk.crashed(chance.randrange(1 << 32)) for _ in range(20))]:
                assert _numbers(crashed)[:1] in ([[number - 1], [number]] if number > 1 else [[], [1]])
                # Remaining temporary files do not disturb the next write.
                _files_on(crashed).write(_checkpoint(9))
                assert _numbers(crashed.crashed(chance.randrange(1 << 32)))[0] == 9
        assert _numbers(last.disk.crashed(chance.randrange(1 << 32)))[0] == number


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC, errno.EMFILE], ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", _CHANGING_KINDS)
def test_write_with_any_call_failing_keeps_a_good_one(kind: str, error_number: int, chance: random.Random) -> None:
    """An error in a checkpoint's write is raised, a valid one stays, and the next write succeeds."""
    for nth in range(1, 4):
        disk = _with_checkpoints(3)
        disk.set_content(DATA / "checkpoint.new", b"left by a crash")
        disk.fail(kind, nth, error_number)
        with suppress(OSError):
            _files_on(disk).write(_checkpoint(4))
        for crashed in (disk.copy(), disk.crashed(chance.randrange(1 << 32))):
            assert _numbers(crashed)[0] in {3, 4}
        disk.heal()
        _files_on(disk).write(_checkpoint(5))
        assert _numbers(disk.crashed(chance.randrange(1 << 32)))[0] == 5


def test_write_on_a_full_disk_leaves_no_part_of_it() -> None:
    """The space of an incomplete checkpoint is freed."""
    disk = _with_checkpoints(1)
    disk.capacity_bytes = 1000
    free_bytes = disk.free_bytes(DATA)
    with pytest.raises(OSError, match="No space left on device"):
        _files_on(disk).write(_checkpoint(2))
    assert disk.free_bytes(DATA) == free_bytes
    assert _numbers(disk) == [1]


def test_write_on_a_full_disk_takes_the_space_of_the_one_before() -> None:
    """The space of the previous checkpoint may be all that there is. The newest stays until the new one is complete."""
    disk = _with_checkpoints(2)
    disk.capacity_bytes = sum(len(disk.content(path)) for path in disk.paths())
    _files_on(disk).write(_checkpoint(3))
    assert _numbers(disk) == [3, 2]
    disk.capacity_bytes -= 1
    with pytest.raises(OSError, match="No space left on device"):
        _files_on(disk).write(_checkpoint(4))
    assert _numbers(disk) == [3]


def test_write_on_a_full_disk_leaves_the_one_before_where_the_newest_is_damaged() -> None:
    """It is then the only valid one, and the log may already lack what recovery without it needs."""
    disk = _with_checkpoints(2)
    content = bytearray(disk.content(DATA / NEWEST))
    content[-1] ^= 1
    disk.set_content(DATA / NEWEST, content)
    disk.capacity_bytes = sum(len(disk.content(path)) for path in disk.paths())
    with pytest.raises(OSError, match="No space left on device"):
        _files_on(disk).write(_checkpoint(3))
    assert _numbers(disk) == [1]


@pytest.mark.parametrize(("keeps_previous", "kept"), [(True, [3, 2]), (False, [3])])
def test_valid_checkpoints_after_some_writes_are_those_that_are_kept(*, keeps_previous: bool, kept: list[int]) -> None:
    """The newest comes first, and the previous one only if it is kept."""
    disk = SimulatedDisk([DATA])
    for number in range(1, 4):
        _files_on(disk, keeps_previous=keeps_previous).write(_checkpoint(number))
    assert _numbers(disk) == kept


def test_valid_checkpoints_with_any_bit_of_the_newest_flipped_begin_with_the_one_before() -> None:
    """Every flipped bit is detected."""
    disk = _with_checkpoints(2)
    content = bytearray(disk.content(DATA / NEWEST))
    for bit in range(len(content) * 8):
        content[bit // 8] ^= 1 << bit % 8
        disk.set_content(DATA / NEWEST, content)
        content[bit // 8] ^= 1 << bit % 8
        assert _numbers(disk) == [1]


def test_valid_checkpoints_with_the_newest_cut_anywhere_begin_with_the_one_before() -> None:
    """A checkpoint cut at any byte is invalid."""
    disk = _with_checkpoints(2)
    content = disk.content(DATA / NEWEST)
    for length in range(len(content)):
        disk.set_content(DATA / NEWEST, content[:length])
        assert _numbers(disk) == [1]
    disk.set_content(DATA / NEWEST, content + b"\0")
    assert _numbers(disk) == [1]


def test_valid_checkpoints_without_the_newest_begin_with_the_one_before() -> None:
    """Each of the two may be missing, or both."""
    disk = _with_checkpoints(2)
    disk.remove(DATA / NEWEST)
    assert _numbers(disk) == [1]
    disk.remove(DATA / PREVIOUS)
    assert _numbers(disk) == []


@pytest.mark.parametrize("kind", ["open", "size", "read"])
def test_valid_checkpoints_with_the_newest_unreadable_begin_with_the_one_before(kind: str) -> None:
    """A checkpoint that the disk cannot read counts as damaged."""
    disk = _with_checkpoints(2)
    disk.fail(kind, 1, errno.EIO)
    assert _numbers(disk) == [1]


def test_valid_checkpoints_of_another_channel_are_passed_over() -> None:
    """A checkpoint copied from another channel is ignored."""
    disk = SimulatedDisk([DATA])
    CheckpointFiles(disk, DATA, b"another channel!", keeps_previous=True).write(_checkpoint(1))
    assert _numbers(disk) == []


def _with_checksum(content: bytearray) -> bytearray:
    start = _CHECKSUM_OFFSET + 4
    checksum = zlib.crc32(content[start:], zlib.crc32(content[:_CHECKSUM_OFFSET]))
    content[_CHECKSUM_OFFSET:start] = checksum.to_bytes(4, "little")
    return content


@pytest.mark.parametrize("codec", CODECS)
def test_valid_checkpoints_that_were_encoded_are_decoded(codec: PayloadCodec) -> None:
    """A state is decoded unchanged, whatever the codec, and is encoded on the disk."""
    disk = SimulatedDisk([DATA])
    CheckpointFiles(disk, DATA, CHANNEL_ID, keeps_previous=True, codec=codec).write(_checkpoint(1))
    with_keys = CheckpointFiles(disk, DATA, CHANNEL_ID, keeps_previous=True, codec=PLAIN)
    assert list(with_keys.valid_checkpoints()) == [_checkpoint(1)]
    assert (_checkpoint(1).state in disk.content(DATA / NEWEST)) is not codec.is_active


def test_valid_checkpoints_without_the_key_say_which() -> None:
    """A checkpoint whose key is missing is not ignored: the previous one may be much older."""
    disk = SimulatedDisk([DATA])
    CheckpointFiles(disk, DATA, CHANNEL_ID, keeps_previous=True, codec=CODECS[3]).write(_checkpoint(1))
    with pytest.raises(KeyMissingError, match="'new'"):
        _numbers(disk)


def test_valid_checkpoints_that_do_not_open_are_passed_over() -> None:
    """With another key of that name, or at another position, a checkpoint is invalid."""
    disk = SimulatedDisk([DATA])
    for number in (1, 2):
        CheckpointFiles(disk, DATA, CHANNEL_ID, keeps_previous=True, codec=CODECS[3]).write(_checkpoint(number))
    stranger = CheckpointFiles(
        disk,
        DATA,
        CHANNEL_ID,
        keeps_previous=True,
        codec=PayloadCodec(keys={"new": b"another key, of 32 bytes as well"}),
    )
    assert list(stranger.valid_checkpoints()) == []
    content = bytearray(disk.content(DATA / NEWEST))
    content[_POSITION_OFFSET] ^= 1
    disk.set_content(DATA / NEWEST, _with_checksum(content))
    opened = CheckpointFiles(disk, DATA, CHANNEL_ID, keeps_previous=True, codec=PLAIN).valid_checkpoints()
    assert list(opened) == [_checkpoint(1)]


def test_valid_checkpoints_with_unknown_flags_are_refused() -> None:
    """Unknown flags need a later Millrace."""
    disk = _with_checkpoints(2)
    content = bytearray(disk.content(DATA / NEWEST))
    content[_FLAGS_OFFSET] = 4
    disk.set_content(DATA / NEWEST, _with_checksum(content))
    with pytest.raises(UnknownVersionError, match="checkpoint: its flags 4 are not known"):
        _numbers(disk)


def test_write_of_a_state_that_is_too_long_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest checkpoint stays unchanged."""
    disk = _with_checkpoints(1)
    monkeypatch.setattr("millrace_server.wal.checkpoints.PAYLOAD_BYTES_MAX", 699)
    calls = len(disk.calls)
    with pytest.raises(ValueError, match="a checkpoint's state may have 699 bytes; it has 700"):
        _files_on(disk).write(_checkpoint(2))
    assert len(disk.calls) == calls


def test_valid_checkpoints_of_another_version_are_refused() -> None:
    """A checkpoint of a later Millrace is not ignored as damaged; nothing may be written."""
    disk = _with_checkpoints(2)
    content = bytearray(disk.content(DATA / NEWEST))
    content[_VERSION_OFFSET] = 4
    disk.set_content(DATA / NEWEST, _with_checksum(content))
    with pytest.raises(UnknownVersionError, match="checkpoint: its format version is 4; this program knows 1 to 3"):
        _numbers(disk)


@pytest.mark.parametrize("version", [1, 2])
def test_valid_checkpoints_of_earlier_versions_are_read(version: int) -> None:
    """They have the same meaning, without times, and those of version 1 without runs."""
    disk = _with_checkpoints(2)
    content = bytearray(disk.content(DATA / NEWEST))
    content[_VERSION_OFFSET] = version
    disk.set_content(DATA / NEWEST, _with_checksum(content))
    assert _numbers(disk) == [2, 1]


def test_valid_checkpoints_with_another_magic_are_passed_over() -> None:
    """A file with the name and form of a checkpoint but another magic number is ignored."""
    disk = _with_checkpoints(2)
    content = bytearray(disk.content(DATA / NEWEST))
    content[0] ^= 1
    disk.set_content(DATA / NEWEST, _with_checksum(content))
    assert _numbers(disk) == [1]
