import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millrace_server.files import SharedSyncs, make_directories, write_atomically


def test_write_atomically_replaces_the_content(tmp_path: Path) -> None:
    """The file has the new content, and no other file remains."""
    path = tmp_path / "file"
    write_atomically(path, b"a longer old content")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_write_atomically_makes_files_that_only_the_owner_reads(tmp_path: Path) -> None:
    """Files are private to the server's user, unless a mode is given."""
    write_atomically(tmp_path / "mine", b"")
    write_atomically(tmp_path / "ours", b"", mode=0o644)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("mine", "ours")] == [0o600, 0o644]


def test_write_atomically_when_a_crash_left_a_temporary_file_overwrites_it(tmp_path: Path) -> None:
    """A leftover file, or a link in its place, neither prevents the write nor adds to it."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"untouched")
    (tmp_path / "file.tmp").symlink_to(elsewhere)
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert elsewhere.read_bytes() == b"untouched"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_write_atomically_when_the_disk_fails_keeps_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A failing fsync or rename raises, and the old content stays."""
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*_arguments: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os if call == "fsync" else Path, call, fail)
    with pytest.raises(OSError, match="Input/output error"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_write_atomically_syncs_content_then_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is durable before the rename, and the name before the call returns."""
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def traced_fsync(descriptor: int) -> None:
        is_directory = Path(f"/proc/self/fd/{descriptor}").resolve() == tmp_path.resolve()
        steps.append("fsync directory" if is_directory else "fsync file")
        fsync(descriptor)

    def traced_replace(path: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(Path, "replace", traced_replace)
    write_atomically(tmp_path / "file", b"new")
    assert steps == ["fsync file", "rename", "fsync directory"]


def test_make_directories_makes_what_is_missing(tmp_path: Path) -> None:
    """Parent directories are created too, and an existing one is not changed."""
    make_directories(tmp_path / "a" / "b")
    make_directories(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_shared_syncs_of_calls_that_wait_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls during an fsync share the next one, since that one may have missed their changes."""
    begun, may_end = threading.Semaphore(0), threading.Semaphore(0)

    def fsync(_descriptor: int) -> None:
        begun.release()
        assert may_end.acquire(timeout=30)

    monkeypatch.setattr(os, "fsync", fsync)
    syncs = SharedSyncs()
    with ThreadPoolExecutor(8) as callers:
        first = callers.submit(syncs.sync_directory, tmp_path)
        assert begun.acquire(timeout=30)
        others = [callers.submit(syncs.sync_directory, tmp_path) for _ in range(7)]
        may_end.release()
        first.result(30)
        assert begun.acquire(timeout=30)
        assert not any(other.done() for other in others)
        # More for those that came only now.
        may_end.release(len(others))
        for other in others:
            other.result(30)


def test_shared_syncs_after_one_that_failed_sync_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call takes the failure of another for its own success."""
    syncs = SharedSyncs()

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            syncs.sync_directory(tmp_path)
    syncs.sync_directory(tmp_path)
