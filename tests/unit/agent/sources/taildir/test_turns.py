import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from millrace_server.agent.sources.taildir import tailed_file, turns
from tests.unit.agent.sources.taildir.tailing import Tailing, append, config_of, numbered

MIB = 1024 * 1024


def open_count(tailing: Tailing) -> int:
    return sum(file.is_open for file in tailing.files)


def test_next_portion_of_a_huge_file_leaves_others_their_turns(
    tmp_path: Path, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much there is to be read of one file, each other one waits for one block of it (3101)."""
    monkeypatch.setattr(tailed_file, "BLOCK_BYTES", 4096)
    append(logs / "a_huge.log", *numbered(0, 20_000))
    for number in range(5):
        append(logs / f"small_{number}.log", b"small")
    tailing = Tailing(tmp_path, config_of(logs / "*.log"))
    for _ in range(6):
        tailing.step()
    assert tailing.bodies.count(b"small") == 5
    append(logs / "small_0.log", b"small")
    tailing.now += 1
    for _ in range(3):
        tailing.step()
    assert tailing.bodies.count(b"small") == 6
    tailing.run()
    assert len(tailing.bodies) == 20_000 + 6


def test_next_portion_without_anything_to_read_waits(tmp_path: Path, log: Path) -> None:
    """Where nothing happens, looking is done twice a second and no more."""
    append(log, b"line")
    tailing = Tailing(tmp_path, config_of(log))
    tailing.run(10)
    looks = 0
    for _ in range(100):
        assert not tailing.step()
        waits = tailing.wait_seconds
        tailing.now += waits
        looks += 1
        assert waits >= 0.4
    assert looks == 100


def test_next_portion_where_looking_is_slow_looks_more_seldom(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With very many files, or slow disks, looking takes a hundredth of the time at most."""
    append(log, b"line")
    tailing = Tailing(tmp_path, config_of(log))
    tailing.run(10)
    scan = type(tailing.register).scan

    def slow_scan(register: object, now: float) -> None:
        scan(register, now)  # type: ignore[arg-type] # it is one
        tailing.now += 0.1

    monkeypatch.setattr(type(tailing.register), "scan", slow_scan)
    began = tailing.now
    scans = 0
    while tailing.now < began + 1_000:
        before = tailing.now
        tailing.step()
        scans += tailing.now > before
        tailing.now += tailing.wait_seconds
    assert 90 <= scans <= 110


@pytest.mark.parametrize("files_open_max", [1, 3])
def test_next_portion_with_more_files_than_may_be_open_reads_all(
    tmp_path: Path, logs: Path, files_open_max: int
) -> None:
    """Files are closed for one another, those that were read longest ago first; none is left out."""
    tailing = Tailing(tmp_path, config_of(logs / "*", files_open_max=files_open_max))
    for round_number in range(3):
        for number in range(10):
            append(logs / f"{number}.log", *(b"%d %d %d" % (number, round_number, index) for index in range(3)))
        tailing.run(2)
        assert open_count(tailing) == files_open_max
    assert len(tailing.bodies) == 90
    for bodies in tailing.bodies_by_file:
        assert bodies == sorted(bodies)
        assert len(bodies) == 9


def test_next_portion_never_closes_a_deleted_file_for_another(
    tmp_path: Path, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that nothing leads to any more is read to its end before its handle serves another one."""
    monkeypatch.setattr(tailed_file, "BLOCK_BYTES", 4096)
    append(logs / "gone.log", *numbered(0, 500))
    append(logs / "other.log", b"other")
    tailing = Tailing(tmp_path, config_of(logs / "*", files_open_max=1))
    tailing.step()
    (logs / "gone.log").unlink()
    tailing.run(20)
    assert tailing.bodies == [*numbered(0, 500), b"other"]


def test_next_portion_of_a_last_line_without_end_waits_for_the_rest(tmp_path: Path, log: Path) -> None:
    """Without further settings a line is never sent in halves, however slowly it is written."""
    tailing = Tailing(tmp_path, config_of(log))
    for part in (b"one\ntw", b"o", b" and", b" more\nthr"):
        with log.open("ab") as writer:
            writer.write(part)
        tailing.run(1_000)
    assert tailing.bodies == [b"one", b"two and more"]


def test_next_portion_of_a_last_line_without_end_sends_it_after_its_time(tmp_path: Path, log: Path) -> None:
    """Where a time is set, the line goes on then, and what comes after it is an event of its own."""
    log.write_bytes(b"one\ntwo")
    tailing = Tailing(tmp_path, config_of(log, unfinished_line_seconds=10.0))
    tailing.run(8)
    assert tailing.bodies == [b"one"]
    tailing.run(4)
    assert tailing.bodies == [b"one", b"two"]
    append(log, b" more", b"three")
    tailing.crash()
    tailing.start()
    tailing.run(12)
    assert tailing.bodies == [b"one", b"two", b" more", b"three"]


def test_next_portion_of_a_silent_event_sends_it_after_its_time(tmp_path: Path, log: Path) -> None:
    """An event of several lines waits for further ones as long as is set, while other files are busy too."""
    busy = log.with_name("busy.log")
    config = config_of(log, busy, multiline={"pattern": "^[^ ]", "timeout_seconds": 5.0})
    append(log, b"begin", b" 1")
    tailing = Tailing(tmp_path, config)
    for number in range(4):
        append(busy, b"busy %d" % number)
        tailing.run(1)
    append(log, b" 2")
    tailing.run(4)
    assert b"begin\n 1\n 2" not in tailing.bodies
    tailing.run(2)
    assert b"begin\n 1\n 2" in tailing.bodies


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("split", [b"a", b"x" * MIB, b"x" * MIB, b"x" * (MIB // 2), b"b"]),
        ("truncate", [b"a", b"x" * MIB, b"b"]),
        ("drop", [b"a", b"b"]),
    ],
)
def test_next_portion_of_a_very_long_line_follows_the_policy(
    tmp_path: Path, log: Path, policy: str, expected: list[bytes]
) -> None:
    """A line of many blocks is handled as is set, told once, and done once: also after a crash in the midst of it."""
    append(log, b"a", b"x" * (5 * MIB // 2), b"b")
    with capture_logs() as told:
        tailing = Tailing(tmp_path, config_of(log, long_lines=policy))
        for _ in range(4):
            tailing.step()
            tailing.crash()
            tailing.start()
        tailing.run(5)
    assert tailing.bodies == expected
    reasons = {each["reason"] for each in told}
    assert reasons == {f"it has lines longer than line_bytes_max, {MIB}: {policy}"}
    [(first, last)] = tailing.channels[0].ledger.intervals_of(tailing.channels[0].events[0].producer_id)
    assert (first, last) == (0, log.stat().st_size - 1)


def test_next_portion_of_a_file_that_is_not_text_leaves_the_others_alone(tmp_path: Path, logs: Path, log: Path) -> None:
    """Where broken text is not allowed, its file is read up to it and set aside, until it is another file."""
    bad = logs / "bad.log"
    append(bad, b"good", b"b\xe4d", b"never")
    append(log, b"one")
    config = config_of(logs / "*.log", decode_errors="fail")
    with capture_logs() as told:
        tailing = Tailing(tmp_path, config)
        tailing.run(5)
        append(bad, b"neither")
        append(log, b"two")
        tailing.run(100)
        tailing.stop()
        tailing.start()
        tailing.run(5)
    assert sorted(tailing.bodies) == [b"good", b"one", b"two"]
    assert {each["file"] for each in told} == {str(bad)}
    assert "the line at byte 5 is not in utf-8" in told[0]["reason"]
    assert len(told) == 2, "once for each run"
    bad.write_bytes(b"better now\n")
    tailing.run(5)
    assert open_count(tailing) == 2
    append(bad, b"b\xe4d")
    tailing.run(5)
    append(bad, b"more")
    tailing.run(5)
    assert tailing.bodies[-1] == b"better now"
    assert open_count(tailing) == 1
    bad.rename(logs / "bad.txt")
    tailing.run(2)
    assert [file.path for file in tailing.files] == [str(log)]


def test_next_portion_of_a_file_that_cannot_be_read_leaves_the_others_alone(
    tmp_path: Path, logs: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that may not be opened is told once, and read once it may be."""
    append(log, *numbered(0, 3))
    append(logs / "secret.log", b"secret")
    opened = os.open

    def refuse(path: str, flags: int, *arguments: Any) -> int:
        if str(path).endswith("secret.log"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return opened(path, flags, *arguments)

    with monkeypatch.context() as patches, capture_logs() as told:
        patches.setattr(os, "open", refuse)
        tailing = Tailing(tmp_path, config_of(logs / "*"))
        tailing.run(30)
        assert tailing.bodies == numbered(0, 3)
        assert [(each["file"], each["reason"]) for each in told] == [(str(logs / "secret.log"), "Permission denied")]
    tailing.run(2)
    assert tailing.bodies == [*numbered(0, 3), b"secret"]


def test_next_portion_of_a_file_whose_disk_fails_goes_on_once_it_works(
    tmp_path: Path, logs: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that fails ends neither the source nor the file."""
    append(log, *numbered(0, 3))
    append(logs / "other.log", b"other")
    tailing = Tailing(tmp_path, config_of(logs / "*"))
    tailing.run(2)
    read = os.pread

    def fail(descriptor: int, count: int, offset: int) -> bytes:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == log:
            raise OSError(errno.EIO, "Input/output error")
        return read(descriptor, count, offset)

    with monkeypatch.context() as patches, capture_logs() as told:
        patches.setattr(os, "pread", fail)
        append(log, *numbered(3, 6))
        append(logs / "other.log", b"more")
        tailing.run(20)
        assert tailing.bodies == [*numbered(0, 3), b"other", b"more"]
        assert [each["reason"] for each in told] == ["Input/output error"]
    tailing.run(2)
    assert tailing.bodies[-3:] == numbered(3, 6)


def test_next_portion_with_many_unfinished_lines_forgets_some_and_reads_them_again(
    tmp_path: Path, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits in memory is bounded over all files; a line that was let go of is read again when its file grows."""
    monkeypatch.setattr(turns, "WAITING_BYTES_MAX", 1_000)
    config = config_of(logs / "*", unfinished_line_seconds=100.0)
    tailing = Tailing(tmp_path, config)
    for number in range(10):
        (logs / f"{number}.log").write_bytes(b"%d" % number * 300)
    tailing.run(5)
    assert sum(file.waiting_bytes for file in tailing.files) <= 1_000
    for number in range(0, 10, 2):
        append(logs / f"{number}.log", b" end")
    tailing.run(5)
    assert sorted(tailing.bodies) == [b"%d" % number * 300 + b" end" for number in range(0, 10, 2)]
    tailing.run(200)
    assert sorted(tailing.bodies)[5:] != []
    assert len(tailing.bodies) == 10


def test_next_portion_of_a_silent_file_with_an_unfinished_line_keeps_it_open(tmp_path: Path, log: Path) -> None:
    """A last line that waits is not lost when its file is deleted at last; without one a silent file is closed."""
    other = log.with_name("other.log")
    log.write_bytes(b"one\ntwo")
    append(other, b"whole")
    tailing = Tailing(tmp_path, config_of(log, other, idle_close_seconds=10.0))
    tailing.run(100)
    assert [file.path for file in tailing.files if file.is_open] == [str(log)]
    log.unlink()
    tailing.run(100)
    assert tailing.bodies == [b"one", b"whole", b"two"]
    assert open_count(tailing) == 0


def test_next_portion_of_what_is_no_file_reads_nothing(tmp_path: Path, logs: Path, log: Path) -> None:
    """Directories, pipes and sockets that match are left alone, and opening them holds up nobody."""
    (logs / "directory.log").mkdir()
    os.mkfifo(logs / "pipe.log")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(logs / "socket.log"))
        append(log, b"line")
        tailing = Tailing(tmp_path, config_of(logs / "*.log"))
        tailing.run(5)
    assert tailing.bodies == [b"line"]


def test_next_portion_through_links_reads_each_file_once(tmp_path: Path, logs: Path, log: Path) -> None:
    """A file with several names is one file; a link that is turned is followed, the old file read to its end."""
    first, second = logs / "first", logs / "second"
    append(first, *numbered(0, 10))
    log.symlink_to(first)
    (logs / "hard.log").hardlink_to(first)
    tailing = Tailing(tmp_path, config_of(logs / "*.log", logs / "first"))
    tailing.run(5)
    assert tailing.bodies == numbered(0, 10)
    append(second, *numbered(20, 30))
    (logs / "next").symlink_to(second)
    (logs / "next").rename(log)
    append(first, *numbered(10, 20))
    tailing.run(5)
    assert tailing.bodies_by_file == [numbered(0, 20), numbered(20, 30)]


def test_next_portion_through_a_link_that_was_turned_while_nobody_read_finds_the_old_file(
    tmp_path: Path, logs: Path, log: Path
) -> None:
    """Where links lead into another directory, a file that was renamed there is found again there."""
    real = tmp_path / "real"
    real.mkdir()
    append(real / "0.log", *numbered(0, 10))
    log.symlink_to(real / "0.log")
    tailing = Tailing(tmp_path, config_of(logs / "*.log"))
    tailing.run(5)
    tailing.crash()
    append(real / "0.log", *numbered(10, 20))
    (real / "0.log").rename(real / "0.log.rotated")
    append(real / "0.log", *numbered(20, 30))
    tailing.start()
    tailing.run(5)
    assert tailing.bodies_by_file == [numbered(0, 20), numbered(20, 30)]


def test_next_portion_of_a_file_whose_name_is_not_text_reads_it(tmp_path: Path, logs: Path) -> None:
    """A name is bytes; positions keep it as it is."""
    path = Path(os.fsdecode(os.fsencode(logs) + b"/caf\xe9.log"))
    append(path, *numbered(0, 3))
    tailing = Tailing(tmp_path, config_of(logs / "*.log"))
    tailing.run(5)
    tailing.stop()
    append(path, *numbered(3, 6))
    tailing.start()
    tailing.run(5)
    assert tailing.bodies == numbered(0, 6)


def test_next_portion_of_a_file_read_in_blocks_loses_nothing_between_them(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a block ends makes no difference."""
    monkeypatch.setattr(tailed_file, "BLOCK_BYTES", 7)
    append(log, *numbered(0, 200))
    tailing = Tailing(tmp_path, config_of(log))
    tailing.run(5)
    assert tailing.bodies == numbered(0, 200)


def test_run_before_any_file_is_there_finds_it_once_it_is(tmp_path: Path, logs: Path, log: Path) -> None:
    """A source may begin before its files, and before their directories."""
    tailing = Tailing(tmp_path, config_of(logs / "later" / "*.log", log))
    tailing.run(5)
    log.touch()
    tailing.run(5)
    append(log, b"one")
    (logs / "later").mkdir()
    append(logs / "later" / "app.log", b"two")
    tailing.run(5)
    assert sorted(tailing.bodies) == [b"one", b"two"]


def test_run_for_the_first_time_may_skip_what_is_there(tmp_path: Path, logs: Path, log: Path) -> None:
    """Files that are there at first are read from the line on that is not finished; later ones from their beginning."""
    append(log, *numbered(0, 10))
    with log.open("ab") as writer:
        writer.write(b"unfin")
    empty = logs / "empty.log"
    empty.touch()
    tailing = Tailing(tmp_path, config_of(logs / "*", skip_to_end=True))
    tailing.run(5)
    append(log, b"ished", *numbered(10, 20))
    append(empty, b"was empty")
    append(logs / "later.log", b"later")
    tailing.run(5)
    assert b"later" in tailing.bodies
    tailing.crash()
    tailing.start()
    append(logs / "latest.log", b"latest")
    tailing.run(5)
    assert sorted(tailing.bodies) == sorted([b"unfinished", *numbered(10, 20), b"was empty", b"later", b"latest"])


def test_run_for_the_first_time_without_files_skips_none_later(tmp_path: Path, log: Path) -> None:
    """That nothing was there is remembered, too."""
    config = config_of(log, skip_to_end=True)
    tailing = Tailing(tmp_path, config)
    tailing.run(5)
    tailing.crash()
    append(log, *numbered(0, 10))
    tailing.start()
    tailing.run(5)
    assert tailing.bodies == numbered(0, 10)
