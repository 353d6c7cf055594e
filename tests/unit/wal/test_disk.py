import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from millrace_server.wal.disk import OsDisk

DISK = OsDisk()


def test_write_of_many_pieces_puts_them_one_after_the_other(tmp_path: Path) -> None:
    """More pieces than one system call accepts are written completely and in order."""
    file = DISK.create(tmp_path / "file")
    pieces = [b"%d," % number for number in range(3000)]
    file.write([b"head", b""], 0)
    file.write(pieces, 4)
    assert file.read(1 << 20, 0) == b"head" + b"".join(pieces)
    assert file.size() == 4 + len(b"".join(pieces))


def test_write_when_the_system_writes_a_part_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short write is continued."""
    pwrite = os.pwrite

    def short_pwritev(descriptor: int, pieces: Sequence[bytes], offset: int) -> int:
        return pwrite(descriptor, b"".join(pieces)[:5], offset)

    def short_pwrite(descriptor: int, written: bytes, offset: int) -> int:
        return pwrite(descriptor, written[:3], offset)

    monkeypatch.setattr(os, "pwritev", short_pwritev)
    monkeypatch.setattr(os, "pwrite", short_pwrite)
    file = DISK.create(tmp_path / "file")
    file.write([b"one, ", b"two, ", b"three"], 2)
    assert file.read(100, 0) == b"\0\0one, two, three"


def test_written_end_passes_over_preallocated_space_that_was_read(tmp_path: Path) -> None:
    """What was written is known to a block; a file system that does not tell it says that all of the file was."""
    file = DISK.create(tmp_path / "file")
    assert file.written_end() == 0
    file.reserve(0, 1 << 20)
    file.write([b"x" * 5_000], 0)
    assert file.read(1 << 20, 0)
    assert file.written_end() in {8_192, 1 << 20}


def test_written_end_where_the_system_has_no_such_call_is_the_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than was written, never less."""
    file = DISK.create(tmp_path / "file")
    file.write([b"x" * 5_000], 0)
    monkeypatch.delattr(os, "SEEK_DATA")
    assert file.written_end() == 5_000


def test_write_when_the_system_writes_nothing_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that makes no progress ends with an error, not in a loop."""

    def write_nothing(_descriptor: int, _written: object, _offset: int) -> int:
        return 0

    monkeypatch.setattr(os, "pwritev", write_nothing)
    monkeypatch.setattr(os, "pwrite", write_nothing)
    with pytest.raises(OSError, match="accepted no bytes") as raised:
        DISK.create(tmp_path / "file").write([b"something"], 0)
    assert raised.value.errno == errno.EIO


def test_read_when_the_system_reads_a_part_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short read is continued until the end of the file."""
    pread = os.pread
    file = DISK.create(tmp_path / "file")
    file.write([b"0123456789"], 0)
    monkeypatch.setattr(os, "pread", lambda descriptor, length, offset: pread(descriptor, min(length, 3), offset))
    assert file.read(8, 1) == b"12345678"
    assert file.read(8, 5) == b"56789"


def test_read_cached_of_what_was_just_written_gives_it(tmp_path: Path) -> None:
    """Cached bytes are read like others; the call does not wait for bytes that are not cached."""
    file = DISK.create(tmp_path / "file")
    file.write([b"0123456789"], 0)
    assert file.read_cached(8, 1) == b"12345678"
    assert file.read_cached(8, 5) is None


def test_read_cached_where_the_disk_must_be_waited_for_gives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If nothing or only a part is cached, the call returns None."""
    file = DISK.create(tmp_path / "file")
    file.write([b"0123456789"], 0)
    preadv = os.preadv

    def part(descriptor: int, buffers: Sequence[bytearray], offset: int, _flags: int) -> int:
        return preadv(descriptor, [memoryview(buffers[0])[:3]], offset)

    def nothing(*_arguments: object) -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    for call in (part, nothing):
        monkeypatch.setattr(os, "preadv", call)
        assert file.read_cached(8, 1) is None
        assert file.read(8, 1) == b"12345678"


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EOPNOTSUPP, ""), NotImplementedError(), ValueError(), AttributeError()],
    ids=lambda error: type(error).__name__,
)
def test_read_cached_where_the_system_cannot_tell_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The call is optional for a file system."""

    def refuse(*_arguments: object) -> int:
        raise error

    monkeypatch.setattr(os, "preadv", refuse)
    file = DISK.create(tmp_path / "file")
    file.write([b"0123456789"], 0)
    assert file.read_cached(8, 1) == b"12345678"


def test_read_cached_when_the_disk_fails_raises(tmp_path: Path) -> None:
    """Other errors are raised."""
    file = DISK.create(tmp_path / "file")
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read_cached(1, 0)


def test_reserve_beyond_the_end_reads_as_zeros(tmp_path: Path) -> None:
    """Preallocated space reads as zeros until it is written, and can be truncated."""
    file = DISK.create(tmp_path / "file")
    file.write([b"content"], 0)
    file.reserve(7, 1000)
    assert file.size() == 1007
    assert file.read(2000, 0) == b"content" + bytes(1000)
    file.truncate(7)
    file.sync()
    assert file.size() == 7


def test_close_of_a_closed_file_does_nothing(tmp_path: Path) -> None:
    """A file closes once, and later calls never use a descriptor that another file got."""
    file = DISK.create(tmp_path / "file")
    file.close()
    other = DISK.create(tmp_path / "other")
    file.close()
    other.write([b"still open"], 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read(1, 0)


def test_file_without_references_closes_itself(tmp_path: Path) -> None:
    """The descriptor is closed."""
    for number in range(3):
        DISK.create(tmp_path / str(number))
    open_paths = []
    for path in Path("/proc/self/fd").iterdir():
        # Other threads may close theirs in the meantime.
        with suppress(FileNotFoundError):
            open_paths.append(path.readlink())
    assert [path for path in open_paths if path.is_relative_to(tmp_path)] == []


def test_create_of_a_file_that_exists_is_refused(tmp_path: Path) -> None:
    """Nothing is overwritten; only the owner can access a new file."""
    path = tmp_path / "file"
    DISK.create(path).write([b"content"], 0)
    with pytest.raises(FileExistsError):
        DISK.create(path)
    assert path.read_bytes() == b"content"
    assert path.stat().st_mode & 0o777 == 0o600


def test_open_for_reading_refuses_writes(tmp_path: Path) -> None:
    """Only files opened for writing can be written."""
    (tmp_path / "file").write_bytes(b"content")
    with pytest.raises(OSError, match="Bad file descriptor"):
        DISK.open(tmp_path / "file").write([b"more"], 0)
    DISK.open(tmp_path / "file", writable=True).write([b"CON"], 0)
    assert (tmp_path / "file").read_bytes() == b"CONtent"


def test_names_that_change_are_listed_so(tmp_path: Path) -> None:
    """A directory lists created and renamed names without removed ones, sorted, and can be synced."""
    for name in ("b", "a", "c"):
        DISK.create(tmp_path / name)
    DISK.rename(tmp_path / "a", tmp_path / "d")
    DISK.unlink(tmp_path / "b")
    assert DISK.list(tmp_path) == ["c", "d"]
    DISK.sync_directory(tmp_path)
    directory = DISK.open_directory(tmp_path)
    directory.sync()
    directory.close()


def test_open_directory_of_a_file_is_refused(tmp_path: Path) -> None:
    """Only directories can be opened for syncing names."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        DISK.open_directory(tmp_path / "file")


def test_free_bytes_of_a_directory_are_those_of_its_file_system(tmp_path: Path) -> None:
    """The space available to users is at most that for root."""
    status = os.statvfs(tmp_path)
    assert 0 < DISK.free_bytes(tmp_path) <= DISK.total_bytes(tmp_path) == status.f_blocks * status.f_frsize
