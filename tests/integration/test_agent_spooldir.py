"""Spool directories of a real daemon that is killed while it reads them."""

import gzip
import io
import json
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import fastavro
import pytest
import zstandard

from tests.conftest import StartMillraced
from tests.integration.daemon_queries import component_of, stored_bodies, stored_count
from tests.millraced import Millraced
from tests.process_figures import cpu_seconds, resident_bytes
from tests.spool import names_in, put
from tests.waiting import wait_until

MIB = 1 << 20
SCHEMA = {"type": "record", "name": "Line", "fields": [{"name": "text", "type": "string"}]}


def config_of(spool: Path, **settings: str) -> str:
    """Two file channels that both get all lines of a directory."""
    lines = "\n".join(f"{key} = {value}" for key, value in settings.items())
    return f"""
        [channels.lines]
        type = "file"
        capacity = 10000000
        min_free_bytes = 0
        [channels.copies]
        type = "file"
        capacity = 10000000
        min_free_bytes = 0
        [sources.in]
        type = "spooldir"
        channels = ["lines", "copies"]
        directory = "{spool}"
        settle_seconds = 0.1
        {lines}
    """


def text_of(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def avro_of(lines: Iterable[str]) -> bytes:
    file = io.BytesIO()
    fastavro.writer(file, SCHEMA, ({"text": line} for line in lines), codec="deflate")
    return file.getvalue()


def all_done(spool: Path) -> bool:
    return all(name.endswith(".COMPLETED") for name in names_in(spool))


class Killer:
    """Kills a daemon several times while it reads a directory; then lets the next one finish."""

    def __init__(self, start_millraced: StartMillraced, spool: Path, config: str, seed: int) -> None:
        self._start: Callable[[], Millraced] = lambda: start_millraced(config, spool.parent / "data")
        self._spool = spool
        self._choice = random.Random(seed)

    def kill(self, times: int) -> int:
        """Returns how many of the kills left files to read."""
        interruptions = 0
        for _ in range(times):
            server = self._start()
            before = stored_count(server)
            wait_until(lambda: stored_count(server) > before or all_done(self._spool))  # noqa: B023 - of this turn
            time.sleep(self._choice.uniform(0.0, 0.1))
            server.kill()
            interruptions += not all_done(self._spool)
        return interruptions

    def finish(self) -> dict[str, list[bytes]]:
        """Returns the content of each channel in the end."""
        server = self._start()
        wait_until(lambda: all_done(self._spool))
        found = {channel: stored_bodies(server, channel) for channel in ("lines", "copies")}
        assert server.stop() == 0
        return found


def test_kills_while_files_are_read_lose_and_repeat_no_line(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """Every line of plain and compressed files is in both channels once, in the order of the files."""
    spool = tmp_path / "spool"
    expected = []
    for number in range(12):
        lines = [f"{number}-{line} {'x' * (line % 100)}" for line in range(4_000)]
        content = text_of(lines)
        suffix, packed = [("", content), (".gz", gzip.compress(content)), (".zst", zstandard.compress(content))][
            number % 3
        ]
        put(spool, f"{number:02}{suffix}", packed)
        expected += [line.encode() for line in lines]
    config = config_of(spool, order='"name"', batch_events_max="100")
    killer = Killer(start_millraced, spool, config, seed=1)
    assert killer.kill(3) >= 2
    assert killer.finish() == {"lines": expected, "copies": expected}


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("file_format", ["lines", "avro", "blob"])
def test_many_kills_while_files_are_read_lose_and_repeat_no_event(
    start_millraced: StartMillraced, tmp_path: Path, file_format: str, seed: int
) -> None:
    """This holds for all formats."""
    spool = tmp_path / "spool"
    expected = []
    for number in range(40):
        lines = [f"{number}-{line}" for line in range(3_000)]
        put(spool, f"{number:02}", avro_of(lines) if file_format == "avro" else text_of(lines))
        match file_format:
            case "lines":
                expected += [line.encode() for line in lines]
            case "avro":
                expected += [json.dumps({"text": line}, separators=(",", ":")).encode() for line in lines]
            case _:
                expected.append(text_of(lines))
    settings = {"order": '"name"', "batch_events_max": "300", "format": f'{{ type = "{file_format}" }}'}
    killer = Killer(start_millraced, spool, config_of(spool, **settings), seed)
    killer.kill(20)
    assert killer.finish() == {"lines": expected, "copies": expected}


def test_bad_files_among_good_ones_are_set_aside(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """The source continues to run, and the log has one entry for each bad file."""
    spool = tmp_path / "spool"
    put(spool, "1", b"one\n")
    put(spool, "2.gz", b"garbage")
    put(spool, "3", b"three\n")
    put(spool, "3.COMPLETED", b"in the way\n")
    server = start_millraced(config_of(spool, order='"name"'))
    reported = server.wait_for("a file is bad")
    assert "it is truncated or not valid gzip" in reported["reason"]
    wait_until(lambda: stored_bodies(server) == [b"one", b"three"])
    wait_until(lambda: not (spool / "3").exists())
    assert (spool / "3.COMPLETED").read_bytes() == b"in the way\n"
    assert {"quarantine/2.gz", "quarantine/2.gz.reason"} < set(names_in(spool))
    assert component_of(server, "in")["State"] == "running"
    assert server.stop() == 0
    assert len([entry for entry in server.log if entry["event"] == "a file is bad"]) == 1


def test_large_compressed_file_needs_little_memory(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """The source stores what it has read before it reads more, so 150 MB of lines are never in memory."""
    spool = tmp_path / "spool"
    line = b"x" * 2_999 + b"\n"
    put(spool, "large.zst", zstandard.compress(line * 50_000))
    config = f"""
        [channels.lines]
        type = "memory"
        capacity = 10000
        [sinks.out]
        type = "null"
        channel = "lines"
        [sources.in]
        type = "spooldir"
        channels = ["lines"]
        directory = "{spool}"
        settle_seconds = 0.1
    """
    server = start_millraced(config)
    before = resident_bytes(server.process.pid)
    highest = before
    while not (spool / "large.zst.COMPLETED").exists():
        highest = max(highest, resident_bytes(server.process.pid))
        time.sleep(0.01)
    assert component_of(server, "in")["EventAcceptedCount"] == 50_000
    assert highest - before < 100 * MIB


@pytest.mark.torture
def test_idle_source_with_many_done_files_costs_next_to_nothing(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """Completed files may stay permanently, so scans must not become slower with their number."""
    spool = tmp_path / "spool"
    spool.mkdir()
    for number in range(5_000):
        (spool / f"{number}.COMPLETED").touch()
    server = start_millraced(config_of(spool))
    wait_until(lambda: component_of(server, "in")["State"] == "running")
    # Until the directory's modification time is reliable.
    time.sleep(3.0)
    spent = cpu_seconds(server.process.pid)
    time.sleep(2.0)
    assert cpu_seconds(server.process.pid) - spent < 0.1
