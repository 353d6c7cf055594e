from pathlib import Path
from typing import Any

import pytest

from millrace_server.agent.sources.spooldir.source import FileArchiver
from millrace_server.agent.supervision import ComponentError
from tests.spool import locate, names_in, put, spool_config


def disposal_on(directory: Path, **settings: Any) -> FileArchiver:
    return FileArchiver(spool_config(directory, **settings))


def test_finish_by_renaming_adds_the_suffix(tmp_path: Path) -> None:
    """The file stays in its directory, under a new name."""
    path = put(tmp_path, "sub/a", b"x")
    disposal_on(tmp_path, done={"type": "rename", "suffix": ".done"}).complete(locate(path))
    assert names_in(tmp_path) == ["sub/a.done"]
    assert (tmp_path / "sub/a.done").read_bytes() == b"x"


def test_finish_by_deleting_leaves_nothing(tmp_path: Path) -> None:
    """The channels have stored its content."""
    disposal_on(tmp_path, done={"type": "delete"}).complete(locate(put(tmp_path, "a")))
    assert names_in(tmp_path) == []


def test_finish_by_moving_keeps_the_directories(tmp_path: Path) -> None:
    """Two files of one name in two directories stay apart."""
    spool, archive = tmp_path / "spool", tmp_path / "archive"
    archiver = disposal_on(spool, done={"type": "move", "directory": str(archive)})
    for name in ("a", "sub/a"):
        archiver.complete(locate(put(spool, name, name.encode())))
    assert names_in(tmp_path) == ["archive/a", "archive/sub/a"]
    assert (archive / "sub/a").read_bytes() == b"sub/a"


@pytest.mark.parametrize("done", ["rename", "move"])
def test_finish_of_repeated_names_overwrites_none(tmp_path: Path, done: str) -> None:
    """A file of the same name may arrive every day; each one is kept, and none is read again."""
    spool = tmp_path / "spool"
    target = tmp_path / "archive" if done == "move" else spool
    chosen = {"type": done, **({"directory": str(target)} if done == "move" else {})}
    archiver = disposal_on(spool, done=chosen)
    for number in range(5):
        archiver.complete(locate(put(spool, "a", b"%d" % number)))
    assert sorted(path.read_bytes() for path in target.iterdir()) == [b"0", b"1", b"2", b"3", b"4"]
    suffix = ".COMPLETED" if done == "rename" else ""
    assert (target / f"a{suffix}").read_bytes() == b"0"
    assert all(path.name.endswith(suffix) for path in target.iterdir())


@pytest.mark.parametrize("done", ["rename", "delete"])
def test_finish_of_a_name_that_another_file_has_now_leaves_it(tmp_path: Path, done: str) -> None:
    """A new file of the same name waits for its turn; a missing file needs nothing."""
    path = put(tmp_path, "a", b"old")
    found = locate(path)
    kept = path.rename(tmp_path / "elsewhere")
    put(tmp_path, "a", b"new")
    archiver = disposal_on(tmp_path, done={"type": done})
    archiver.complete(found)
    assert names_in(tmp_path) == ["a", "elsewhere"]
    kept.unlink()
    path.unlink()
    archiver.complete(found)
    assert names_in(tmp_path) == []


def test_quarantine_of_a_bad_file_puts_the_reason_beside_it(tmp_path: Path) -> None:
    """The whole file is kept, with the reason in a file next to it."""
    path = put(tmp_path, "sub/a", b"x")
    moved = disposal_on(tmp_path).quarantine(locate(path), "it is bad\n")
    assert moved == tmp_path / "quarantine/sub/a"
    assert names_in(tmp_path) == ["quarantine/sub/a", "quarantine/sub/a.reason"]
    assert (tmp_path / "quarantine/sub/a.reason").read_text() == "it is bad\n"


def test_quarantine_of_repeated_names_overwrites_none(tmp_path: Path) -> None:
    """Neither a file nor a reason is overwritten, nor a file with the name of a reason."""
    archiver = disposal_on(tmp_path, quarantine_directory=str(tmp_path / "bad"))
    for name in ("a.reason", "a", "a"):
        archiver.quarantine(locate(put(tmp_path, name, b"content")), f"{name} is bad")
    contents = sorted(path.read_text() for path in (tmp_path / "bad").iterdir())
    assert contents == ["a is bad", "a is bad", "a.reason is bad", "content", "content", "content"]


def test_quarantine_that_cannot_be_written_to_renames_the_file_where_it_is(tmp_path: Path) -> None:
    """A bad file is not read again in any case."""
    (tmp_path / "quarantine").write_text("a file is in the way of the directory")
    moved = disposal_on(tmp_path).quarantine(locate(put(tmp_path, "a", b"x")), "it is bad")
    assert moved == tmp_path / "a.QUARANTINED"
    assert names_in(tmp_path) == ["a.QUARANTINED", "a.QUARANTINED.reason", "quarantine"]


def test_rename_that_fails_leaves_no_name_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reserved name is removed."""
    path = put(tmp_path, "a", b"x")

    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(1, "Operation not permitted", str(self))

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PermissionError):
        disposal_on(tmp_path).complete(locate(path))
    assert names_in(tmp_path) == ["a"]


def test_check_directories_where_files_can_be_taken_away_leaves_no_trace(tmp_path: Path) -> None:
    """The directory for completed files is created."""
    archive = tmp_path / "deep/archive"
    (tmp_path / "spool").mkdir()
    disposal_on(tmp_path / "spool", done={"type": "move", "directory": str(archive)}).check_directories()
    assert archive.is_dir()
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_check_directories_where_there_is_no_directory_reports_it(tmp_path: Path) -> None:
    """The directory is not created: after a typing error the source would wait without end."""
    with pytest.raises(ComponentError) as caught:
        disposal_on(tmp_path / "nowhere").check_directories()
    assert (
        str(caught.value) == f"there is no directory {tmp_path}/nowhere; create it, or name another one in `directory`"
    )


def test_check_directories_where_nothing_may_be_written_names_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check touches no other file."""

    def refuse(self: Path, **_how: object) -> None:
        raise OSError(30, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(ComponentError) as caught:
        disposal_on(tmp_path).check_directories()
    assert str(caught.value) == f"{tmp_path} cannot be written to: Read-only file system"


def test_check_directories_where_files_cannot_be_moved_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check precedes the first read; the target may be on another filesystem."""

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(18, "Invalid cross-device link", str(self))

    monkeypatch.setattr(Path, "rename", refuse)
    archive = {"type": "move", "directory": str(tmp_path / "archive")}
    (tmp_path / "spool").mkdir()
    with pytest.raises(ComponentError, match=r"done files cannot be moved from .* to .*: Invalid cross-device link"):
        disposal_on(tmp_path / "spool", done=archive).check_directories()
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_finish_of_a_name_that_is_as_long_as_names_may_be_reports_the_error(tmp_path: Path) -> None:
    """The suffix would make the name too long."""
    path = put(tmp_path, "a" * 250)
    with pytest.raises(OSError, match="File name too long"):
        disposal_on(tmp_path).complete(locate(path))
    assert names_in(tmp_path) == [path.name]
