import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace_server.log_tools.read_only_disk import ReadOnlyDisk, ReadOnlyFile

DATA = Path("data")


def test_read_of_a_block_that_the_disk_has_lost_gives_zeros() -> None:
    """The bytes around the block are returned."""
    content = bytes(range(1, 251)) * 60

    def read(length: int, offset: int) -> bytes:
        if offset < 5000 < offset + length:
            raise OSError(errno.EIO, "Input/output error")
        return content[offset : offset + length]

    found = ReadOnlyFile(read, len(content)).read(len(content), 0)
    assert found == content[:4096] + bytes(4096) + content[8192:]


@pytest.mark.parametrize(
    "change",
    [
        lambda disk: disk.create(DATA / "b"),
        lambda disk: disk.open(DATA / "a", writable=True),
        lambda disk: disk.rename(DATA / "a", DATA / "b"),
        lambda disk: disk.unlink(DATA / "a"),
        lambda disk: disk.open_directory(DATA),
        lambda disk: disk.sync_directory(DATA),
        lambda disk: disk.open(DATA / "a").write([b"x"], 0),
        lambda disk: disk.open(DATA / "a").reserve(0, 1),
        lambda disk: disk.open(DATA / "a").truncate(0),
        lambda disk: disk.open(DATA / "a").sync(),
    ],
)
def test_change_of_anything_is_refused(change: Callable[[ReadOnlyDisk], object]) -> None:
    """A view never changes the disk."""
    with pytest.raises(OSError, match="Read-only file system"):
        change(ReadOnlyDisk({DATA / "a": ReadOnlyFile.of(b"")}))


def test_open_of_a_file_that_is_not_there_says_so() -> None:
    """The error is that of a disk."""
    disk = ReadOnlyDisk({DATA / "a": ReadOnlyFile.of(b"x")})
    assert (disk.list(DATA), disk.free_bytes(DATA)) == (["a"], 0)
    with pytest.raises(FileNotFoundError):
        disk.without([DATA / "a"]).open(DATA / "a")
