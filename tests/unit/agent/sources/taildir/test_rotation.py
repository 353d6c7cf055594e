"""Files that are renamed, copied, truncated, rewritten and deleted. Numbers are those of Flume's issues."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace_server.agent.sources.taildir import file_scheduler as scheduler
from millrace_server.agent.sources.taildir.copies import HOLD_SECONDS
from millrace_server.agent.sources.taildir.discovery import FoundFile, PathPatterns
from millrace_server.agent.sources.taildir.file_scheduler import DELETED_CLOSE_SECONDS
from millrace_server.agent.sources.taildir.register import FileRegister
from tests.unit.agent.sources.taildir.tailing import Tailing, append, config_of, numbered

IDLE_SECONDS = 60.0
LONG_SECONDS = IDLE_SECONDS + 5

one_or_both_names = pytest.mark.parametrize("pattern", ["app.log", "app.log*"])


def open_below(directory: Path) -> list[str]:
    """The files below a directory that this process has open, deleted ones too."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:
            # The descriptor that listed the others.
            continue
        if target.startswith(f"{directory}/"):
            found.append(target)
    return found


def tailed(tmp_path: Path, paths: Path, seconds: float = 5) -> Tailing:
    """A source that has followed files for some time."""
    tailing = Tailing(tmp_path, config_of(paths))
    tailing.run(seconds)
    return tailing


def rename(log: Path, name: str = "app.log.1") -> Path:
    return log.rename(log.with_name(name))


def write_older_and_newer(log: Path) -> Path:
    """Forty lines: the first half in a file that is written before the log. Returns that file."""
    older = log.with_name("app.log.1")
    append(older, *numbered(0, 20))
    append(log, *numbered(20, 40))
    os.utime(older, (60, 60))
    return older


def copy_and_cut(log: Path, name: str = "app.log.1") -> Path:
    copy = log.with_name(name)
    shutil.copy(log, copy)
    os.truncate(log, 0)
    return copy


@one_or_both_names
def test_run_on_a_renamed_file_reads_its_rest_and_nothing_again(
    tmp_path: Path, logs: Path, log: Path, pattern: str
) -> None:
    """Rotation by renaming repeats and loses nothing, whether the new name matches or not (3094, 3219, 3233, 3342)."""
    append(log, *numbered(0, 10))
    tailing = tailed(tmp_path, logs / pattern)
    append(log, *numbered(10, 20))
    rotated = rename(log)
    append(log, *numbered(30, 40))
    append(rotated, *numbered(20, 25))
    tailing.run(5)
    # The writer has not noticed the rename yet.
    append(rotated, *numbered(25, 30))
    tailing.run(LONG_SECONDS)
    assert tailing.bodies_by_file == [numbered(0, 30), numbered(30, 40)]
    assert {event.path for event in tailing.channels[0].events} == {str(log)}


@one_or_both_names
def test_start_after_files_were_renamed_reads_their_rests_and_nothing_again(
    tmp_path: Path, logs: Path, log: Path, pattern: str
) -> None:
    """A file that was renamed while it was not read, even twice, is found by its inode (130, 336)."""
    append(log, *numbered(0, 10))
    tailing = tailed(tmp_path, logs / pattern)
    tailing.crash()
    append(log, *numbered(10, 20))
    rename(log, "app.log.2")
    append(log, *numbered(20, 30))
    rename(log)
    append(log, *numbered(30, 40))
    tailing.start()
    tailing.run(5)
    # The file between them never had a matching name.
    lost = [] if pattern == "app.log*" else numbered(20, 30)
    assert sorted(tailing.bodies) == [body for body in numbered(0, 40) if body not in lost]
    assert tailing.bodies_by_file[0] == numbered(0, 20)


def test_run_on_a_file_renamed_long_after_its_last_line_reads_what_comes_late(
    tmp_path: Path, logs: Path, log: Path
) -> None:
    """A file that was closed because it was idle is opened again after a rename, since its writer may not know yet."""
    append(log, *numbered(0, 10))
    tailing = tailed(tmp_path, log, LONG_SECONDS)
    assert open_below(logs) == []
    rotated = rename(log)
    tailing.run(5)
    append(rotated, *numbered(10, 20))
    tailing.run(5)
    assert tailing.bodies == numbered(0, 20)


def test_run_on_a_file_that_grows_while_it_is_closed_reads_what_was_added(
    tmp_path: Path, logs: Path, log: Path
) -> None:
    """Closing an idle file loses nothing (3083)."""
    append(log, *numbered(0, 10))
    tailing = tailed(tmp_path, log, LONG_SECONDS)
    assert open_below(logs) == []
    append(log, *numbered(10, 20))
    tailing.run(5)
    assert tailing.bodies == numbered(0, 20)


def test_run_on_a_file_moved_away_and_back_reads_nothing_again(tmp_path: Path, logs: Path, log: Path) -> None:
    """A file is recognized after a long time elsewhere (3216)."""
    append(log, *numbered(0, 10))
    tailing = tailed(tmp_path, log)
    away = log.rename(tmp_path / "away")
    tailing.run(LONG_SECONDS)
    assert list(tailing.files) == []
    append(away, *numbered(10, 20))
    tailing.stop()
    tailing.start()
    tailing.run(5)
    away.rename(log)
    tailing.run(5)
    assert tailing.bodies == numbered(0, 20)


def test_run_on_many_rotated_files_leaves_none_open_nor_tailed(tmp_path: Path, logs: Path, log: Path) -> None:
    """Files that were renamed or deleted are finally closed and cost nothing more (3341, 59)."""
    tailing = Tailing(tmp_path, config_of(logs / "app.log"))
    for number in range(20):
        append(log, *numbered(number * 10, number * 10 + 10))
        tailing.run(1)
        rename(log, f"app.log.{number}")
        tailing.run(1)
        if number % 2:
            (logs / f"app.log.{number}").unlink()
    tailing.run(LONG_SECONDS)
    assert tailing.bodies == numbered(0, 200)
    assert open_below(logs) == []
    assert list(tailing.files) == []


def test_run_on_a_deleted_file_reads_it_to_its_end_and_closes_it(tmp_path: Path, logs: Path, log: Path) -> None:
    """The unread rest of a deleted file is read, including its last line; then its disk space is freed."""
    append(log, *numbered(0, 10))
    tailing = tailed(tmp_path, logs / "*.log", 1)
    with log.open("ab") as writer:
        writer.write(b"\n".join(numbered(10, 20)))
        log.unlink()
    tailing.run(1)
    assert tailing.bodies == numbered(0, 19)
    assert open_below(logs) != []
    tailing.run(DELETED_CLOSE_SECONDS + 1)
    assert tailing.bodies == numbered(0, 20)
    assert open_below(logs) == []


def test_run_on_a_new_file_with_an_old_files_inode_reads_all_of_it(tmp_path: Path, logs: Path, log: Path) -> None:
    """A reused inode is another file, even if that has the same beginning and is longer."""
    head = b"#Fields: date time request status"
    append(log, head, *numbered(0, 10))
    tailing = tailed(tmp_path, log, 1)
    tailing.stop()
    with log.open("wb") as new_file:
        new_file.write(head + b"\n" + b"".join(body + b"\n" for body in numbered(50, 90)))
    tailing.start()
    tailing.run(5)
    assert tailing.bodies_by_file == [[head, *numbered(0, 10)], [head, *numbered(50, 90)]]


@pytest.mark.parametrize("count", [1, 10, 500], ids=["shorter", "as long", "longer"])
@pytest.mark.parametrize("is_running", [True, False], ids=["running", "down"])
def test_run_on_a_file_cut_short_reads_what_is_new_once(
    tmp_path: Path, log: Path, count: int, *, is_running: bool
) -> None:
    """A truncated file is noticed, even if it has grown beyond its old size meanwhile (3320)."""
    append(log, *numbered(0, 10))
    tailing = tailed(tmp_path, log)
    if not is_running:
        tailing.crash()
    os.truncate(log, 0)
    append(log, *numbered(100, 100 + count))
    if not is_running:
        tailing.start()
    tailing.run(5)
    append(log, b"more")
    tailing.run(5)
    assert tailing.bodies_by_file == [numbered(0, 10), [*numbered(100, 100 + count), b"more"]]


def test_run_on_a_file_cut_short_many_times_to_the_same_beginning_reads_each(tmp_path: Path, log: Path) -> None:
    """Generations of a file with one beginning are different files, whether channels remember them or not."""
    header = b"the same header each time, and not a short one"
    tailing = Tailing(tmp_path, config_of(log), channel_count=2)
    expected = []
    for number in range(5):
        append(log, header, b"line %d" % number)
        expected.append([header, b"line %d" % number])
        tailing.run(3)
        tailing.crash()
        tailing.channels[1].forget()
        tailing.start()
        os.truncate(log, 0)
        tailing.run(3)
    assert tailing.bodies_by_file == expected
    assert [event.body for event in tailing.channels[1].events] == tailing.bodies


@one_or_both_names
@pytest.mark.parametrize("is_running", [True, False], ids=["running", "down"])
def test_run_on_a_file_copied_and_cut_short_reads_the_rest_in_the_copy(
    tmp_path: Path, logs: Path, log: Path, pattern: str, *, is_running: bool
) -> None:
    """What was written before the truncation and not read is in the copy; nothing is read twice."""
    append(log, *numbered(0, 100))
    tailing = tailed(tmp_path, logs / pattern)
    if not is_running:
        tailing.crash()
    append(log, *numbered(100, 200))
    copy_and_cut(log)
    append(log, *numbered(200, 300))
    if not is_running:
        tailing.start()
    tailing.run(5)
    append(log, *numbered(300, 400))
    tailing.run(LONG_SECONDS)
    assert tailing.bodies_by_file == [numbered(0, 200), numbered(200, 400)]


def test_run_between_copying_and_cutting_reads_nothing_twice(tmp_path: Path, logs: Path, log: Path) -> None:
    """A copy that matches the patterns is found before its original is truncated; it waits until that is decided."""
    append(log, *numbered(0, 1000))
    tailing = tailed(tmp_path, logs / "*")
    content = log.read_bytes()
    copy = logs / "app.log.1"
    for start in range(0, len(content), 5_000):
        with copy.open("ab") as writer:
            writer.write(content[start : start + 5_000])
        tailing.run(HOLD_SECONDS - 2)
    os.truncate(log, 0)
    tailing.run(5)
    append(log, *numbered(1000, 1010))
    copy.rename(logs / "app.log.2")
    tailing.run(LONG_SECONDS)
    assert tailing.bodies_by_file == [numbered(0, 1000), numbered(1000, 1010)]


@pytest.mark.parametrize("steps", [1, 100])
@pytest.mark.parametrize("is_seen", [True, False], ids=["seen before", "seen after"])
def test_run_on_lines_written_between_copying_and_cutting_reads_them_and_nothing_twice(
    tmp_path: Path, logs: Path, monkeypatch: pytest.MonkeyPatch, steps: int, *, is_seen: bool
) -> None:
    """A copy that contains less than was read of its original is ignored, found before the truncation or after."""
    log = logs / "app.log"
    monkeypatch.setattr(scheduler, "SCAN_SECONDS", 0.5 if is_seen else 10_000.0)
    append(log, *numbered(0, 100))
    tailing = Tailing(tmp_path, config_of(logs / "*"))
    for number in range(100, 100 + steps):
        append(log, *numbered(number, number + 1))
        tailing.run(0.5)
    shutil.copy(log, logs / "app.log.1")
    for number in range(100 + steps, 110 + steps):
        append(log, *numbered(number, number + 1))
        tailing.run(0.5)
    os.truncate(log, 0)
    append(log, *numbered(500, 510))
    tailing.run(5)
    (logs / "app.log.1").rename(logs / "app.log.2")
    tailing.run(LONG_SECONDS)
    assert tailing.bodies_by_file == [numbered(0, 110 + steps), numbered(500, 510)]


@pytest.mark.parametrize("name", ["app-1.log", "app.log.1"])
def test_run_on_a_new_file_and_its_copy_reads_the_one_that_continues(
    tmp_path: Path, logs: Path, log: Path, name: str
) -> None:
    """If a file and its copy appear together, lines that are added to the file do not wait."""
    tailing = tailed(tmp_path, logs / "*")
    append(log, *numbered(0, 100))
    shutil.copy(log, logs / name)
    append(log, *numbered(100, 110))
    tailing.run(3)
    append(log, *numbered(110, 120))
    tailing.run(3)
    assert tailing.bodies == numbered(0, 120)
    os.truncate(log, 0)
    tailing.run(LONG_SECONDS)
    assert tailing.bodies == numbered(0, 120)


def test_run_on_a_file_like_one_that_is_deleted_reads_it(tmp_path: Path, logs: Path, log: Path) -> None:
    """A file that is deleted and created again with the same content is new: duplicates are better than a loss."""
    append(log, *numbered(0, 100))
    tailing = tailed(tmp_path, logs / "*")
    append(logs / "again.log", *numbered(0, 100))
    tailing.run(0.5)
    log.unlink()
    tailing.run(LONG_SECONDS)
    assert tailing.bodies_by_file == [numbered(0, 100), numbered(0, 100)]


def test_run_on_a_copy_whose_original_stays_reads_it_after_a_while(tmp_path: Path, logs: Path, log: Path) -> None:
    """A file with the beginning of another one is a file of its own, unless that one is rotated: nothing is lost."""
    append(log, *numbered(0, 100))
    tailing = tailed(tmp_path, logs / "*")
    shutil.copy(log, logs / "other.log")
    tailing.run(HOLD_SECONDS - 2)
    assert len(tailing.bodies_by_file) == 1
    tailing.run(5)
    assert tailing.bodies_by_file == [numbered(0, 100), numbered(0, 100)]


def test_run_on_a_file_that_outgrows_another_reads_it_after_a_while(tmp_path: Path, logs: Path, log: Path) -> None:
    """A file with the beginning of another one that grows beyond it is not a copy, and waits no longer than a copy."""
    append(log, b"# a header that all files have")
    tailing = tailed(tmp_path, logs / "*")
    append(logs / "other.log", b"# a header that all files have")
    for number in range(int(HOLD_SECONDS) + 2):
        append(logs / "other.log", b"line %d" % number)
        tailing.run(1)
    assert len(tailing.bodies) > HOLD_SECONDS


@pytest.mark.parametrize("seconds", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("copy_name", ["app.log.{}", "app-{}.log"])
def test_run_on_a_file_copied_and_cut_short_often_reads_each_line_once(
    tmp_path: Path, logs: Path, log: Path, seconds: float, copy_name: str
) -> None:
    """However fast copies follow each other, and whatever their names, each line is stored once and in order."""
    tailing = tailed(tmp_path, logs / "*")
    for number in range(0, 400, 40):
        append(log, *numbered(number, number + 20))
        tailing.run(seconds)
        append(log, *numbered(number + 20, number + 30))
        shutil.copy(log, logs / copy_name.format(number))
        tailing.run(seconds / 2)
        os.truncate(log, 0)
        append(log, *numbered(number + 30, number + 40))
    tailing.run(LONG_SECONDS)
    assert sorted(tailing.bodies) == numbered(0, 400)
    assert all(bodies == sorted(bodies) for bodies in tailing.bodies_by_file)


@pytest.mark.parametrize("rotate", [rename, copy_and_cut])
def test_run_on_a_file_rotated_while_it_is_seen_first_keeps_the_order_of_its_lines(
    tmp_path: Path, logs: Path, log: Path, monkeypatch: pytest.MonkeyPatch, rotate: Callable[[Path, str], Path]
) -> None:
    """What was written before the rotation comes first, even if the file appeared after the scan of its directory.

    This holds also if the process is paused in between.
    """
    tailing = tailed(tmp_path, logs / "*")
    append(log, *numbered(0, 20))
    stat = Path.stat

    def stat_late(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        rotated = logs / "app-1.log"
        if path == log and not rotated.exists():
            rotate(log, rotated.name)
            append(log, *numbered(20, 40))
        return stat(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", stat_late)
    tailing.run(5)
    assert tailing.bodies == numbered(0, 40)


def test_start_after_several_rotations_reads_the_files_in_the_order_of_writing(
    tmp_path: Path, logs: Path, log: Path
) -> None:
    """The numbers of rotated files have the reverse order: the smallest is the newest."""
    Tailing(tmp_path, config_of(logs / "*")).run(5)
    for minute, name in enumerate(["app.log.10", "app.log.9", "app.log.1", "app.log"]):
        append(logs / name, *numbered(10 * minute, 10 * minute + 10))
        os.utime(logs / name, (60 * minute, 60 * minute))
    tailing = tailed(tmp_path, logs / "*")
    assert tailing.bodies == numbered(0, 40)


def test_run_on_files_renamed_between_finding_and_reading_keeps_the_order_of_writing(
    tmp_path: Path, logs: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was renamed before its turn is searched for: newer files must not be read before it."""
    tailing = tailed(tmp_path, logs / "*")
    older = write_older_and_newer(log)
    scan = FileRegister.scan

    def scan_and_rename(register: FileRegister, now: float) -> None:
        scan(register, now)
        if older.exists():
            older.rename(log.with_name("app.log.2"))

    monkeypatch.setattr(FileRegister, "scan", scan_and_rename)
    tailing.run(5)
    assert tailing.bodies == numbered(0, 40)


def test_run_on_files_renamed_between_finding_and_knowing_keeps_the_order_of_writing(
    tmp_path: Path, logs: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for a file that is renamed before it is read for the first time."""
    tailing = tailed(tmp_path, logs / "*")
    older = write_older_and_newer(log)
    find = PathPatterns.find

    def find_and_rename(patterns: PathPatterns) -> Iterator[FoundFile]:
        yield from list(find(patterns))
        if older.exists():
            older.rename(log.with_name("app.log.2"))

    monkeypatch.setattr(PathPatterns, "find", find_and_rename)
    tailing.run(5)
    assert tailing.bodies == numbered(0, 40)


def test_run_on_a_file_that_begins_differently_waits_for_nothing(tmp_path: Path, logs: Path, log: Path) -> None:
    """Only files that look like copies wait; a common header line alone does not suffice."""
    append(log, b"# a header that all files have", *numbered(0, 100))
    tailing = tailed(tmp_path, logs / "*")
    append(logs / "other.log", b"# a header that all files have", *numbered(200, 300))
    tailing.run(2)
    assert len(tailing.bodies) == 202


def test_run_on_a_file_whose_writer_kept_its_place_skips_the_hole(tmp_path: Path, log: Path) -> None:
    """A writer without O_APPEND leaves a hole when the file is truncated; the hole is not a line."""
    with log.open("wb", buffering=0) as writer:
        writer.write(b"".join(body + b"\n" for body in numbered(0, 5_000)))
        tailing = tailed(tmp_path, log)
        os.truncate(log, 0)
        tailing.run(5)
        for number in range(5_000, 5_010):
            writer.write(b"line %06d of a log\n" % number)
            tailing.run(1)
    assert tailing.bodies_by_file == [numbered(0, 5_000), numbered(5_000, 5_010)]


def test_run_on_a_file_truncated_in_the_middle_reads_it_again(tmp_path: Path, log: Path) -> None:
    """If the end of a file is gone, the rest may have changed too: it is read from its beginning."""
    append(log, *numbered(0, 100))
    tailing = tailed(tmp_path, log)
    os.truncate(log, 10 * len(b"line 000000 of a log\n"))
    tailing.run(5)
    assert tailing.bodies_by_file == [numbered(0, 100), numbered(0, 10)]


def test_run_on_a_file_cut_short_sends_its_unfinished_line(tmp_path: Path, log: Path) -> None:
    """The unfinished last line is an event once it cannot grow any more."""
    append(log, *numbered(0, 3))
    with log.open("ab") as writer:
        writer.write(b"half")
    tailing = tailed(tmp_path, log)
    os.truncate(log, 0)
    append(log, b"next")
    tailing.run(5)
    assert tailing.bodies_by_file == [[*numbered(0, 3), b"half"], [b"next"]]


def test_run_on_a_renamed_file_sends_its_unfinished_line_in_the_end(tmp_path: Path, log: Path) -> None:
    """A last line without an end waits for its writer as long as the file may still grow."""
    append(log, *numbered(0, 3))
    with log.open("ab", buffering=0) as writer:
        writer.write(b"ha")
        tailing = tailed(tmp_path, log)
        rename(log)
        tailing.run(IDLE_SECONDS - 10)
        writer.write(b"lf")
        tailing.run(IDLE_SECONDS - 10)
        assert tailing.bodies == numbered(0, 3)
        tailing.run(20)
    assert tailing.bodies == [*numbered(0, 3), b"half"]
