"""Files tailed by a real daemon, which is killed while they are written and rotated."""

import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import StartMillraced
from tests.integration.daemon_queries import component_of, stored_bodies, stored_count
from tests.millraced import Millraced
from tests.process_figures import cpu_seconds, resident_bytes
from tests.waiting import wait_until

MIB = 1 << 20
LINES_PER_ROTATION = 1_500
CHANNELS = ("lines", "copies")


def config_of(*paths: Path, channel: str = "file", **settings: str) -> str:
    """Two channels that both get all lines of some files."""
    lines = "\n".join(f"{key} = {value}" for key, value in settings.items())
    limits = "capacity = 10000000\nbyte_capacity = 8589934592\ntransaction_capacity = 10000\n"
    limits += "min_free_bytes = 0" if channel == "file" else ""
    return f"""
        [channels.lines]
        type = "{channel}"
        {limits}
        [channels.copies]
        type = "{channel}"
        {limits}
        [sources.in]
        type = "taildir"
        channels = ["lines", "copies"]
        paths = {[str(path) for path in paths]}
        {lines}
    """


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    directory = tmp_path / "logs"
    directory.mkdir()
    return directory


def rename(log: Path, number: int) -> None:
    log.rename(log.with_name(f"{log.name}.{number}"))


def copy_and_cut(log: Path, number: int) -> None:
    shutil.copy(log, log.with_name(f"{log.name}.{number}"))
    os.truncate(log, 0)


class Writer(threading.Thread):
    """Writes numbered lines to a log until it is ended, and rotates it from time to time.

    Attributes:
        generations: The lines, in one list for each time between two rotations.
    """

    def __init__(self, log: Path, rotate: Callable[[Path, int], None], seed: int) -> None:
        super().__init__()
        self._choice = random.Random(seed)
        self._log = log
        self._rotate = rotate
        self._is_ending = threading.Event()
        self.generations: list[list[bytes]] = []

    def end(self) -> None:
        """Ends the thread, and waits for it."""
        self._is_ending.set()
        self.join()

    def run(self) -> None:
        drawn = self._choice
        number = 0
        while not self._is_ending.is_set():
            lines: list[bytes] = []
            with self._log.open("ab", buffering=0) as file:
                while len(lines) < LINES_PER_ROTATION and not self._is_ending.is_set():
                    count = drawn.randrange(1, 60)
                    some = [b"%08d " % (number + index) + b"x" * drawn.randrange(100) for index in range(count)]
                    text = b"".join(line + b"\n" for line in some)
                    # A line may be written in two parts, as from a full buffer.
                    cut = drawn.randrange(len(text))
                    file.write(text[:cut])
                    self._is_ending.wait(drawn.uniform(0, 0.02))
                    file.write(text[cut:])
                    lines += some
                    number += count
            self.generations.append(lines)
            self._rotate(self._log, len(self.generations))


class Killer:
    """Kills a daemon several times while it tails a log that is written; then lets the next one finish."""

    def __init__(
        self, start_millraced: StartMillraced, log: Path, rotate: Callable[[Path, int], None], seed: int
    ) -> None:
        config = config_of(log.with_name(f"{log.name}*"))
        self._start: Callable[[], Millraced] = lambda: start_millraced(config, log.parent.parent / "data")
        self._writer = Writer(log, rotate, seed)
        self._choice = random.Random(seed)

    def kill(self, times: int) -> None:
        self._writer.start()
        try:
            for _ in range(times):
                server = self._start()
                before = stored_count(server)
                wait_until(lambda: stored_count(server) > before)  # noqa: B023 - of this turn
                time.sleep(self._choice.uniform(0.0, 0.6))
                server.kill()
        finally:
            self._writer.end()

    def check(self) -> None:
        """Lets the next daemon finish, and checks all lines."""
        server = self._start()
        _check(server, self._writer.generations)
        assert server.stop() == 0
        assert server.other_output == []


def _check(server: Millraced, generations: list[list[bytes]]) -> None:
    """Each line must be in each channel once, and those of a file in order."""
    generation_of = {line: number for number, lines in enumerate(generations) for line in lines}
    wait_until(lambda: min(stored_count(server, name) for name in CHANNELS) >= len(generation_of))
    # Duplicates would appear soon.
    time.sleep(1.5)
    for channel in CHANNELS:
        came: dict[int, list[bytes]] = {}
        for body in stored_bodies(server, channel):
            came.setdefault(generation_of[body], []).append(body)
        assert [came[number] for number in sorted(came)] == generations


@pytest.mark.parametrize("rotate", [rename, copy_and_cut])
def test_lines_of_a_log_that_is_rotated_under_kills_come_once_and_in_order(
    start_millraced: StartMillraced, logs: Path, rotate: Callable[[Path, int], None]
) -> None:
    """Despite repeated kills while a log is written and rotated, each line is in each channel once."""
    killer = Killer(start_millraced, logs / "app.log", rotate, seed=1)
    killer.kill(2)
    killer.check()


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rotate", [rename, copy_and_cut])
def test_lines_of_a_log_that_is_rotated_under_many_kills_come_once_and_in_order(
    start_millraced: StartMillraced, logs: Path, rotate: Callable[[Path, int], None], seed: int
) -> None:
    """The same for longer."""
    killer = Killer(start_millraced, logs / "app.log", rotate, seed)
    killer.kill(25)
    killer.check()


class AccessLog:
    """A web server's log, which logrotate rotates while it is written.

    Attributes:
        generations: The lines, in one list for each file or each time between two truncations.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._file = log.open("ab", buffering=0)
        self._number = 0
        self.generations: list[list[bytes]] = [[]]

    def write(self, count: int) -> None:
        """Writes some lines, the last of them in two parts."""
        lines = [_access_line(self._number + index) for index in range(count)]
        text = b"".join(line + b"\n" for line in lines)
        self._file.write(text[:-20])
        self._file.write(text[-20:])
        self._number += count
        self.generations[-1] += lines

    def rename(self) -> None:
        """As logrotate's `create`: the program writes to the renamed file until it is signalled to open the new one."""
        self._log.rename(self._next_name())
        self.write(50)
        self._file.close()
        self._file = self._log.open("ab", buffering=0)
        self.generations.append([])

    def copy_and_cut(self) -> None:
        """As logrotate's `copytruncate`: the writing program does not notice."""
        shutil.copy(self._log, self._next_name())
        os.truncate(self._log, 0)
        self.generations.append([])

    def close(self) -> None:
        self._file.close()

    def _next_name(self) -> Path:
        return self._log.with_name(f"{self._log.name}.{len(self.generations)}")


def _access_line(number: int) -> bytes:
    """A line as Apache writes it; most differ only in their path."""
    client, size = number % 7, number % 5_000
    return (
        f'192.0.2.{client} - - [10/Oct/2026:13:55:{number // 1_000 % 60:02} +0000] "GET /item/{number:07} HTTP/1.1" '
        f'200 {size} "https://example.org/start" "Mozilla/5.0 (X11; Linux x86_64)"'
    ).encode()


def test_lines_of_an_access_log_that_is_rotated_under_load_come_once_and_in_order(
    start_millraced: StartMillraced, tmp_path: Path, logs: Path
) -> None:
    """The log is renamed and copied in turn, as by logrotate, while lines are written without a pause."""
    server = start_millraced(config_of(logs / "access.log*"), tmp_path / "data")
    log = AccessLog(logs / "access.log")
    try:
        for turn in range(8):
            for _ in range(20):
                log.write(150)
                time.sleep(0.01)
            if turn % 2:
                log.copy_and_cut()
            else:
                log.rename()
    finally:
        log.close()
    _check(server, [lines for lines in log.generations if lines])


def test_odd_lines_of_a_file_come_as_they_are(start_millraced: StartMillraced, tmp_path: Path, logs: Path) -> None:
    """Lines of over a mebibyte, broken UTF-8, NULs, empty lines, and an unfinished last line, also after a kill."""
    drawn = random.Random(3)
    lines = [
        b"\xff\xfe broken \xc3",
        b"",
        b"nul \0 in it",
        bytes(drawn.choices(range(32, 256), k=MIB)),
        b"x" * MIB,
        b"carriage \r in it",
        "grün".encode(),
    ]
    long = b"y" * (5 * MIB // 2)
    pieces = [long[:MIB], long[:MIB], long[: MIB // 2]]
    text = b"\n".join([*lines, long, b"windows\r", b"unfinished"])
    (logs / "app.log").write_bytes(text)
    config = config_of(logs / "app.log", unfinished_line_seconds="0.1")
    expected = [*lines, *pieces, b"windows", b"unfinished"]
    server = start_millraced(config, tmp_path / "data")
    wait_until(lambda: stored_count(server) == len(expected))
    server.kill()
    [reported] = [entry for entry in server.log if entry["event"] == "a file has a problem"]
    assert reported["reason"] == "it has lines longer than line_bytes_max, 1048576: split"
    with (logs / "app.log").open("ab") as file:
        file.write(b" no more\n")
    server = start_millraced(config, tmp_path / "data")
    wait_until(lambda: stored_count(server) == len(expected) + 1)
    assert stored_bodies(server) == [*expected, b" no more"]


@pytest.mark.torture
def test_many_idle_files_cost_next_to_nothing(start_millraced: StartMillraced, logs: Path) -> None:
    """While nothing is written, watching hundreds of files takes a small part of a processor."""
    for number in range(300):
        (logs / f"{number}.log").write_bytes(b"line\n")
    server = start_millraced(config_of(logs / "**" / "*.log", channel="memory"))
    wait_until(lambda: stored_count(server) == 300)
    spent = cpu_seconds(server.process.pid)
    time.sleep(3.0)
    assert cpu_seconds(server.process.pid) - spent < 0.15


@pytest.mark.torture
def test_large_file_with_holes_comes_whole_in_little_memory(start_millraced: StartMillraced, logs: Path) -> None:
    """Of a 5 GB file that starts with a hole and grows while it is read, each line is stored once in bounded memory."""
    log = logs / "app.log"
    block = b"".join(b"%07d " % number + b"x" * 191 + b"\n" for number in range(5_000))
    with log.open("wb") as file:
        file.seek(1 << 30)
        for _ in range(4_000):
            file.write(block)
    config = f"""
        [channels.lines]
        type = "memory"
        capacity = 100000
        transaction_capacity = 10000
        [sinks.out]
        type = "null"
        channel = "lines"
        batch_events_max = 10000
        [sources.in]
        type = "taildir"
        channels = ["lines"]
        paths = ["{log}"]
    """
    server = start_millraced(config)
    before = resident_bytes(server.process.pid)
    with log.open("ab") as file:
        for _ in range(10):
            file.write(block)
    highest = before
    expected = 4_010 * 5_000
    give_up = time.monotonic() + 1_000
    while component_of(server, "in")["EventAcceptedCount"] < expected:
        assert time.monotonic() < give_up
        highest = max(highest, resident_bytes(server.process.pid))
        time.sleep(0.05)
    time.sleep(2.0)
    assert component_of(server, "in")["EventAcceptedCount"] == expected
    assert highest - before < 100 * MIB
