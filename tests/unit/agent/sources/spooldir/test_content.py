import gzip
import os
import random
from pathlib import Path

import pytest
import zstandard

from millrace_server.agent.sources.spooldir import content as content_module
from millrace_server.agent.sources.spooldir.content import BadFileError, Content, FileGoneError, SpoolFile
from tests.spool import locate, opened, put

TEXT = b"".join(b"%d\n" % number for number in range(200_000))
COMPRESSED = {
    "a": TEXT,
    "a.gz": gzip.compress(TEXT),
    "a.zst": zstandard.compress(TEXT),
    "a.ZSTD": zstandard.compress(TEXT),
}


def read_all(content: Content, size: int = 100_003) -> bytes:
    chunks = []
    while chunk := content.read(size):
        chunks.append(chunk)
        assert len(chunk) == size or not content.read(1)
    return b"".join(chunks)


@pytest.mark.parametrize("name", COMPRESSED)
def test_read_of_a_file_by_its_name_returns_its_content(tmp_path: Path, name: str) -> None:
    """The suffix determines the compression; every read is full except the last one."""
    file = opened(put(tmp_path, name, COMPRESSED[name]))
    content = Content(file)
    assert content.head == TEXT[:4]
    assert read_all(content) == TEXT
    assert content.position == len(TEXT)
    file.close()


@pytest.mark.parametrize("name", COMPRESSED)
@pytest.mark.parametrize("position", [0, 2, 4, 5, 500_000, len(TEXT), len(TEXT) + 5])
def test_skip_to_a_position_continues_there(tmp_path: Path, name: str, position: int) -> None:
    """This works with and without compression, within the first bytes, in the middle and at the end."""
    file = opened(put(tmp_path, name, COMPRESSED[name]))
    content = Content(file)
    content.skip_to(position)
    assert read_all(content) == TEXT[position:]
    file.close()


@pytest.mark.parametrize("name", ["a", "a.gz", "a.zst"])
def test_read_of_an_empty_file_ends_at_once(tmp_path: Path, name: str) -> None:
    """An empty file is not an error."""
    file = opened(put(tmp_path, name))
    assert Content(file).read(100) == b""
    file.close()


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_read_of_several_members_returns_all_of_them(tmp_path: Path, compress: object) -> None:
    """Compressed files may be concatenated; empty members are skipped."""
    assert callable(compress)
    name = "a.gz" if compress is gzip.compress else "a.zst"
    file = opened(put(tmp_path, name, compress(b"one\n") + compress(b"") + compress(b"two\n")))
    assert Content(file).read(100) == b"one\ntwo\n"
    file.close()


@pytest.mark.parametrize("name", ["a.gz", "a.zst"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "garbage", "garbage behind"])
def test_read_of_broken_compression_reports_it(tmp_path: Path, name: str, damage: str) -> None:
    """A truncated compressed file is not taken for a complete one."""
    whole = COMPRESSED[name]
    if damage == "flipped":
        # Random bytes do not compress, so each compressed byte belongs to the content.
        whole = (gzip if name == "a.gz" else zstandard).compress(random.Random(3).randbytes(10_000))
    broken = {
        "truncated": whole[: len(whole) // 2],
        "flipped": whole[:5_000] + bytes([whole[5_000] ^ 1]) + whole[5_001:],
        "garbage": b"no compression at all\n" * 10,
        "garbage behind": whole + b"garbage",
    }[damage]
    if (name, damage) == ("a.zst", "flipped"):
        compressor = zstandard.ZstdCompressor(write_checksum=True)
        whole = compressor.compress(random.Random(3).randbytes(10_000))
        broken = whole[:5_000] + bytes([whole[5_000] ^ 1]) + whole[5_001:]
    file = opened(put(tmp_path, name, broken))
    with pytest.raises(BadFileError, match="it is truncated or not valid"):
        read_all(Content(file))
    file.close()


def test_read_of_a_bomb_keeps_little_in_memory(tmp_path: Path) -> None:
    """A small file with a huge content is unpacked step by step."""
    bomb = zstandard.compress(bytes(100 << 20), level=1)
    assert len(bomb) < 20_000
    file = opened(put(tmp_path, "a.zst", bomb))
    content = Content(file)
    assert content.read(1 << 20) == bytes(1 << 20)
    stream = content._stream
    assert isinstance(stream, content_module._Zstd)
    assert len(stream._content) <= 32 << 20
    file.close()


@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_read_of_a_file_that_grows_reports_it(tmp_path: Path, name: str) -> None:
    """Files in a spool directory must not change any more."""
    path = put(tmp_path, name, COMPRESSED[name])
    file = opened(path)
    content = Content(file)
    content.read(10)
    with path.open("ab") as writer:
        writer.write(b"more\n")
    with pytest.raises(BadFileError, match="it was changed while it was read: it had"):
        read_all(content)
    file.close()


def test_read_of_a_file_that_is_written_to_in_place_reports_it(tmp_path: Path) -> None:
    """The change is detected even if the size stays."""
    # Long ago, since two writes within one tick of the file system's clock have the same time.
    path = put(tmp_path, "a", TEXT, modified_seconds=1.0)
    file = opened(path)
    with path.open("r+b") as writer:
        writer.write(b"x")
    with pytest.raises(BadFileError, match="it was written to while it was read"):
        Content(file)
    file.close()


def test_read_of_a_file_whose_name_goes_reads_on(tmp_path: Path) -> None:
    """An open file can be read to its end even if it is deleted or replaced."""
    path = put(tmp_path, "a", TEXT)
    file = opened(path)
    path.unlink()
    assert read_all(Content(file)) == TEXT
    file.close()


def _make_it_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _make_it_a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def _make_it_another(path: Path) -> None:
    put(path.parent, path.name, b"y\n")


def _remove(path: Path) -> None:
    path.unlink()


def _lengthen(path: Path) -> None:
    path.write_bytes(b"longer\n")


@pytest.mark.parametrize("change", [_make_it_a_pipe, _make_it_a_link, _make_it_another, _remove, _lengthen])
def test_open_of_what_is_not_as_it_was_found_refuses(tmp_path: Path, change: object) -> None:
    """A file may change between the scan and the opening; the new content must settle first."""
    assert callable(change)
    found = locate(put(tmp_path, "a", b"x\n"))
    change(found.path)
    with pytest.raises((FileGoneError, OSError)) as refused:
        SpoolFile.open(found)
    assert refused.type is FileGoneError or change is _make_it_a_pipe


def test_open_of_a_file_that_may_not_be_read_calls_it_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry would not help."""
    found = locate(put(tmp_path, "a", b"x\n"))

    def refuse(path: object, flags: int) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(BadFileError, match="it cannot be read: Permission denied"):
        SpoolFile.open(found)


def _producer_id(path: Path, kind: str = "lines") -> str:
    file = opened(path)
    try:
        return file.producer_id(kind)
    finally:
        file.close()


def test_producer_id_of_one_file_stays_under_any_name(tmp_path: Path) -> None:
    """Channels recognize a file however often it is opened or renamed."""
    path = put(tmp_path, "a", b"x\n")
    before = _producer_id(path)
    assert _producer_id(path) == before
    assert len(before) <= 128


def test_producer_id_of_other_files_differs(tmp_path: Path) -> None:
    """Any difference in content, name, time or format makes another producer, as does a second copy of the file."""
    first = put(tmp_path, "a", b"x\n", modified_seconds=1.0)
    ids = [_producer_id(first), _producer_id(first, "blob")]
    ids.append(_producer_id(put(tmp_path, "b", b"x\n", modified_seconds=1.0)))
    for content, seconds in [(b"y\n", 1.0), (b"x\n", 2.0), (b"x\n", 1.0)]:
        changed_ns = first.stat().st_ctime_ns
        # The inode is free now; a filesystem may give it to the next file.
        first.unlink()
        first = put(tmp_path, "a", content, modified_seconds=seconds)
        while first.stat().st_ctime_ns <= changed_ns:
            os.utime(first, (seconds, seconds))
        ids.append(_producer_id(first))
    assert len(set(ids)) == len(ids)
