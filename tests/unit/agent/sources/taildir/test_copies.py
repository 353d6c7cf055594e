import os
import shutil
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from millrace_server.agent.sources.taildir import copies
from millrace_server.agent.sources.taildir.copies import CopyDetector, CopyOrigin, CopyOrigins, find_copy
from millrace_server.agent.sources.taildir.discovery import FoundFile
from millrace_server.agent.sources.taildir.positions import HEAD_BYTES_MAX, FileKey, Fingerprint, opened_file
from tests.unit.agent.sources.taildir.tailing import append, numbered


def origin_of(path: Path, *ends: int, head_bytes: int = HEAD_BYTES_MAX) -> CopyOrigin:
    """A file that was read up to these positions, one after the other."""
    content = path.read_bytes()
    read_fingerprints = [Fingerprint.of(max(end - 64, 0), content[max(end - 64, 0) : end]) for end in ends]
    return CopyOrigin(str(path), Fingerprint.of(0, content[:head_bytes]), read_fingerprints, len(content))


def copied(log: Path, name: str, *, ctime_after: Path | None = None) -> Path:
    """A copy under another name, created after another file."""
    copy = log.with_name(name)
    shutil.copy(log, copy)
    while ctime_after is not None and copy.stat().st_ctime_ns <= ctime_after.stat().st_ctime_ns:
        copy.touch()
    return copy


def test_find_copy_of_a_file_with_several_returns_the_newest(log: Path) -> None:
    """Older copies contain only what was read long ago."""
    append(log, *numbered(0, 100))
    first = copied(log, "app.log.2")
    second = copied(log, "app.log.1", ctime_after=first)
    copy = find_copy(origin_of(log, 500), {FileKey.of(log.stat())})
    assert copy is not None
    assert copy == (str(second), FileKey.of(second.stat()), second.stat().st_size)


def test_find_copy_of_a_file_ignores_other_files(logs: Path, log: Path) -> None:
    """A copy has the same beginning, the same last read bytes, a name that begins alike, and is not tailed."""
    append(log, *numbered(0, 100))
    size = log.stat().st_size
    append(logs / "app.log.other", b"x", *numbered(1, 100))
    append(logs / "app.log.longer", *numbered(0, 60), *numbered(100, 150))
    copied(log, "backup-of-app.log")
    (logs / "app.log.link").symlink_to(log)
    tailed = copied(log, "app.log.1")
    tailed_keys = {FileKey.of(path.stat()) for path in (log, tailed)}
    assert find_copy(origin_of(log, 300, size), tailed_keys) is None
    assert find_copy(origin_of(log, 300, size), {FileKey.of(log.stat())}) is not None


def test_find_copy_of_a_file_of_which_little_is_known_returns_none(logs: Path, log: Path) -> None:
    """A few common bytes are no evidence; nor is a short beginning if nothing would be read of the copy."""
    append(log, *numbered(0, 100))
    keys = {FileKey.of(log.stat())}
    copy = copied(log, "app.log.1")
    assert find_copy(origin_of(log, 15, head_bytes=15), keys) is None
    assert find_copy(origin_of(log, 16, head_bytes=16), keys) is not None
    os.truncate(copy, 1_500)
    assert find_copy(origin_of(log, 1_600, head_bytes=100), keys) is None
    assert find_copy(origin_of(log, 1_400, 1_600, head_bytes=100), keys) is not None
    assert find_copy(origin_of(log, 1_600), keys) is not None


def test_find_copy_in_a_directory_that_is_gone_returns_none(log: Path) -> None:
    """A missing directory is not an error."""
    append(log, *numbered(0, 100))
    origin = origin_of(log, 100)
    assert find_copy(origin._replace(place=str(log.parent / "gone" / "app.log")), set()) is None


def test_holds_of_a_file_that_differs_where_the_other_was_read_is_false(logs: Path, log: Path) -> None:
    """A long common beginning is not enough: a copy must equal the file as far as both were read."""
    append(log, *numbered(0, 200))
    other = logs / "other.log"
    append(other, *numbered(0, 100), *numbered(200, 300))
    origins = CopyOrigins()
    origins.add(origin_of(log, 1_200, log.stat().st_size))
    watch = CopyDetector()
    assert not watch.is_held(FoundFile(str(other), other.stat(), "*"), origins, 0.0)
    os.truncate(other, 1_500)
    assert watch.is_held(FoundFile(str(other), other.stat(), "*"), origins, 0.0)


def test_forget_all_but_what_is_there_forgets_the_rest(log: Path) -> None:
    """Deleted files are forgotten: other files may get their inodes."""
    append(log, *numbered(0, 200))
    copy = find_copy(origin_of(copied(log, "app.log.1"), 1_200), set())
    assert copy is not None
    watch = CopyDetector()
    watch.mark_read(copy)
    assert watch.read_bytes(copy.key) == copy.size
    watch.retain({copy.key})
    assert watch.read_bytes(copy.key) == copy.size
    watch.retain(set())
    assert watch.read_bytes(copy.key) == 0


def test_find_copy_whose_name_is_shifted_in_the_meantime_finds_it_under_the_new_one(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rotation with numbers renames older copies, whose lines would be repeated if they were taken for new files."""
    append(log, *numbered(0, 100))
    first = copied(log, "app.log.1")
    opened: list[str] = []

    def shift_and_open(place: str, key: FileKey) -> AbstractContextManager[int]:
        if not opened:
            first.rename(log.with_name("app.log.2"))
        opened.append(place)
        return opened_file(place, key)

    monkeypatch.setattr(copies, "opened_file", shift_and_open)
    copy = find_copy(origin_of(log, 500), {FileKey.of(log.stat())})
    assert copy is not None
    assert copy.place == str(log.with_name("app.log.2"))
    assert opened == [str(first), copy.place]
