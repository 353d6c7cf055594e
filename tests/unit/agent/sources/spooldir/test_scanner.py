import os
import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from millrace_server.agent.sources.spooldir import scanner as looking
from millrace_server.agent.sources.spooldir.scanner import DirectoryScanner
from millrace_server.agent.supervision import ComponentError
from tests.fake_clock import FakeClock
from tests.spool import put, spool_config

LONG_AGO = 1_000_000_000.0


class Counter:
    """Counts how often directories are listed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._scandir = os.scandir
        monkeypatch.setattr(os, "scandir", self._count)

    def _count(self, path: Path) -> Any:
        self.count += 1
        return self._scandir(path)


def lookout_on(directory: Path, clock: FakeClock | None = None, **settings: Any) -> DirectoryScanner:
    return DirectoryScanner(spool_config(directory, **settings), clock or FakeClock())


def names(scanner: DirectoryScanner) -> list[str]:
    return [found.path.name for found in scanner.scan()]


def age(directory: Path) -> None:
    """Makes a directory seem unchanged for long."""
    os.utime(directory, (LONG_AGO, LONG_AGO))


@pytest.mark.parametrize(
    ("order", "expected"), [("oldest", ["b", "c", "a"]), ("youngest", ["a", "c", "b"]), ("name", ["a", "b", "c"])]
)
def test_scan_with_several_files_puts_them_in_order(tmp_path: Path, order: str, expected: list[str]) -> None:
    """The order is that of the modification times, or of the paths."""
    for name, seconds in [("a", 30.0), ("b", 10.0), ("c", 20.0)]:
        put(tmp_path, name, modified_seconds=LONG_AGO + seconds)
    assert names(lookout_on(tmp_path, order=order)) == expected


def test_scan_with_files_of_one_time_goes_by_their_paths(tmp_path: Path) -> None:
    """Several files of the same time are sorted too."""
    for name in "cab":
        put(tmp_path, name, modified_seconds=LONG_AGO)
    assert names(lookout_on(tmp_path)) == ["a", "b", "c"]


def test_scan_with_patterns_takes_what_is_included_and_not_excluded(tmp_path: Path) -> None:
    """Patterns without a slash apply to names, others to paths."""
    for name in ("a.log", "b.log.tmp", "c.txt", "sub/d.log", "other/e.log", ".hidden.log"):
        put(tmp_path, name)
    assert names(lookout_on(tmp_path, include=["*.log"], recursive=True)) == ["a.log", "d.log", "e.log"]
    assert names(lookout_on(tmp_path, include=["sub/*"], recursive=True)) == ["d.log"]
    assert names(lookout_on(tmp_path, exclude=["*.tmp", "sub/*"], recursive=True)) == ["a.log", "c.txt", "e.log"]
    assert names(lookout_on(tmp_path, include=["*.log"])) == ["a.log"]


def test_scan_at_what_the_source_has_named_leaves_it_out(tmp_path: Path) -> None:
    """Completed and bad files, and the reasons of the latter, are ignored wherever they are."""
    moved = {"type": "move", "directory": str(tmp_path / "archive")}
    for name in ("a.COMPLETED", "b.QUARANTINED", "b.QUARANTINED.reason", "quarantine/c", "archive/d", "e.reason"):
        put(tmp_path, name)
    assert names(lookout_on(tmp_path, recursive=True)) == ["d", "e.reason"]
    assert names(lookout_on(tmp_path, recursive=True, done=moved)) == ["a.COMPLETED", "e.reason"]


def test_scan_at_other_things_than_files_leaves_them_out(tmp_path: Path) -> None:
    """A symbolic link may lead to a file that only the daemon may read; a pipe may never end."""
    secret = put(tmp_path, "elsewhere/secret", b"secret\n")
    spool = tmp_path / "spool"
    put(spool, "good")
    (spool / "link").symlink_to(secret)
    (spool / "linked").symlink_to(secret.parent)
    os.mkfifo(spool / "pipe")
    assert names(lookout_on(spool, recursive=True)) == ["good"]


def test_scan_at_a_file_that_grows_waits_until_it_has_settled(tmp_path: Path) -> None:
    """Only a file that was unchanged for the whole time is read, whatever its modification time is."""
    clock = FakeClock()
    scanner = lookout_on(tmp_path, clock, settle_seconds=2.0)
    path = put(tmp_path, "a", b"1\n", modified_seconds=LONG_AGO)
    assert names(scanner) == []
    clock.now += 1.9
    with path.open("ab") as file:
        file.write(b"2\n")
    os.utime(path, (LONG_AGO, LONG_AGO))
    assert names(scanner) == []
    clock.now += 1.9
    assert names(scanner) == []
    assert scanner.pause_seconds == 0.05
    clock.now += 0.2
    assert names(scanner) == ["a"]


def test_scan_of_a_file_that_another_replaces_waits_again(tmp_path: Path) -> None:
    """A new file under the name, even with the same size and time, must settle again."""
    clock = FakeClock()
    scanner = lookout_on(tmp_path, clock, settle_seconds=2.0)
    put(tmp_path, "a", b"1\n", modified_seconds=LONG_AGO)
    assert names(scanner) == []
    clock.now += 1.0
    put(tmp_path, "a", b"2\n", modified_seconds=LONG_AGO)
    assert names(scanner) == []
    clock.now += 1.5
    assert names(scanner) == []


def test_scan_while_nothing_happens_lists_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with a hundred thousand completed files costs one system call per scan."""
    put(tmp_path, "sub/a.COMPLETED")
    for directory in (tmp_path / "sub", tmp_path):
        age(directory)
    lists = Counter(monkeypatch)
    clock = FakeClock()
    scanner = lookout_on(tmp_path, clock, recursive=True)
    for _ in range(50):
        assert names(scanner) == []
        clock.now += 1.0
    assert lists.count == 2


def test_scan_after_something_came_finds_it_wherever_it_is(tmp_path: Path) -> None:
    """A new file changes its directory's time, and a new directory that of its parent."""
    put(tmp_path, "sub/a.COMPLETED")
    for directory in (tmp_path / "sub", tmp_path):
        age(directory)
    scanner = lookout_on(tmp_path, recursive=True)
    assert names(scanner) == []
    put(tmp_path, "sub/b")
    assert names(scanner) == ["b"]
    put(tmp_path, "new/c")
    assert sorted(names(scanner)) == ["b", "c"]


def test_scan_soon_after_a_change_lists_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that arrives within the resolution of the directory's time is found."""
    # In the future, so that it remains recent.
    moment = time.time() + 3_600.0
    os.utime(tmp_path, (moment, moment))
    scanner = lookout_on(tmp_path)
    assert names(scanner) == []
    put(tmp_path, "a")
    os.utime(tmp_path, (moment, moment))
    assert names(scanner) == ["a"]


def test_scan_at_a_directory_whose_time_never_changes_lists_it_now_and_then(tmp_path: Path) -> None:
    """Some network filesystems update directory times late, or never."""
    age(tmp_path)
    clock = FakeClock()
    scanner = lookout_on(tmp_path, clock)
    assert names(scanner) == []
    put(tmp_path, "a")
    age(tmp_path)
    assert names(scanner) == []
    clock.now += 60.0
    assert names(scanner) == ["a"]


def test_scan_at_more_files_than_are_kept_finds_all_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded number of names is kept in memory: the first ones of the order."""
    monkeypatch.setattr(looking, "FILES_MAX", 3)
    for name in "edcba":
        put(tmp_path, name, modified_seconds=LONG_AGO)
    age(tmp_path)
    scanner = lookout_on(tmp_path)
    taken = []
    while found := names(scanner):
        assert len(found) <= 3
        taken += found
        for name in found:
            (tmp_path / name).unlink()
        age(tmp_path)
    assert taken == ["a", "b", "c", "d", "e"]


def test_scan_at_a_directory_below_that_cannot_be_read_reports_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other directories are scanned all the same."""
    put(tmp_path, "a")
    put(tmp_path, "locked/b")
    scandir = os.scandir

    def refuse(path: Path) -> Any:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    scanner = lookout_on(tmp_path, recursive=True)
    with capture_logs() as log:
        assert names(scanner) == ["a"]
        assert names(scanner) == ["a"]
    assert [(entry["event"], entry["reason"]) for entry in log] == [("a directory cannot be read", "Permission denied")]


def test_scan_into_a_directory_that_is_not_there_raises(tmp_path: Path) -> None:
    """The source does not wait for files in a directory that does not exist."""
    with pytest.raises(ComponentError, match=r"cannot be read: No such file or directory$"):
        lookout_on(tmp_path / "nowhere").scan()


def test_pause_after_a_look_that_took_long_is_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scans take at most a tenth of the time, however large the directory is."""
    clock = FakeClock()
    scanner = lookout_on(tmp_path, clock)
    scandir = os.scandir

    def slow(path: Path) -> Any:
        clock.now += 2.0
        return scandir(path)

    monkeypatch.setattr(os, "scandir", slow)
    scanner.scan()
    assert scanner.pause_seconds == 18.0
