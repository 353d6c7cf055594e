import errno
import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from millrace_server.agent.components import ComponentState
from millrace_server.agent.events import EventTable
from millrace_server.agent.sources.spooldir import chunks as chunks_module
from millrace_server.agent.sources.spooldir import source as source_module
from millrace_server.agent.sources.spooldir.scanner import DirectoryScanner
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from tests.agent_components import registry_with
from tests.spool import names_in, opened, put, spool_config
from tests.unit.agent.sources.running_sources import bodies_in, rows_in, running_source, take
from tests.waiting import until

LINES = [b"%d" % number for number in range(500)]
TEXT = b"".join(line + b"\n" for line in LINES)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    path = tmp_path / "spool"
    path.mkdir()
    return path


@pytest.fixture
def log() -> Iterator[list[Any]]:
    with capture_logs() as entries:
        yield entries


async def store(registry: ChannelRegistry, name: str, path: Path, first: int, last: int) -> None:
    """Stores these bytes of a file in a channel, as an earlier run of the source would have."""
    file = opened(path)
    stamp = Stamp(file.producer_id("lines"), first, last)
    lines = file.read(last + 1)[first:].splitlines()
    file.close()
    await registry.get(name).appends.append(EventTable(lines).stored(), stamp)


async def test_run_stores_files_and_takes_them_away(tmp_path: Path, spool: Path) -> None:
    """Files are read one after another, in order, including later ones."""
    registry = registry_with("lines", capacity=10_000)
    put(spool, "b", b"3\n", modified_seconds=20.0)
    put(spool, "a", b"1\n2\n", modified_seconds=10.0)
    put(spool, "empty", b"", modified_seconds=15.0)
    async with running_source(spool_config(spool), registry, tmp_path) as component:
        await until(lambda: bodies_in(registry) == [b"1", b"2", b"3"])
        put(spool, "c.gz", gzip.compress(TEXT))
        await until(lambda: bodies_in(registry) == [b"1", b"2", b"3", *LINES])
        await until(lambda: "c.gz.COMPLETED" in names_in(spool))
        assert component.state is ComponentState.RUNNING
    assert names_in(spool) == ["a.COMPLETED", "b.COMPLETED", "c.gz.COMPLETED", "empty.COMPLETED"]


async def test_run_with_headers_asked_for_says_where_events_came_from(tmp_path: Path, spool: Path) -> None:
    """The headers contain the path, the name, and the offset of the event."""
    registry = registry_with("lines")
    headers = {"file_header": "file", "basename_header": "name", "offset_header": "offset"}
    path = put(spool, "sub/a", b"one\ntwo\n")
    async with running_source(spool_config(spool, recursive=True, **headers), registry, tmp_path):
        await until(lambda: len(bodies_in(registry)) == 2)
    assert rows_in(registry) == [
        ({"file": str(path), "name": "a", "offset": "0"}, b"one"),
        ({"file": str(path), "name": "a", "offset": "4"}, b"two"),
    ]


@pytest.mark.parametrize("content", [b"one\ntwo\nthree\n", b"one\ntwo\n"], ids=["part stored", "only to be renamed"])
async def test_run_after_an_earlier_one_continues_where_channels_are(
    tmp_path: Path, spool: Path, content: bytes
) -> None:
    """Stored events are not stored again; apart from the channels only the name of the file has state."""
    registry = registry_with("lines")
    path = put(spool, "a", content)
    await store(registry, "lines", path, 0, 7)
    async with running_source(spool_config(spool), registry, tmp_path):
        await until(lambda: names_in(spool) == ["a.COMPLETED"])
    assert bodies_in(registry) == content.splitlines()


async def test_run_with_one_channel_ahead_stores_in_each_what_it_lacks(tmp_path: Path, spool: Path) -> None:
    """A crash may happen between the commits of two channels."""
    registry = registry_with("lines", "copies", capacity=10_000, transaction_capacity=1_000)
    path = put(spool, "a", TEXT)
    await store(registry, "lines", path, 0, 19)
    await store(registry, "copies", path, 0, 9)
    await store(registry, "copies", path, 10, 689)
    config = spool_config(spool, channels=["lines", "copies"])
    async with running_source(config, registry, tmp_path):
        await until(lambda: names_in(spool) == ["a.COMPLETED"])
    assert bodies_in(registry, "lines") == LINES
    assert bodies_in(registry, "copies") == LINES


async def test_run_with_a_full_channel_waits_and_repeats_nothing(tmp_path: Path, spool: Path) -> None:
    """The file stays unchanged until all of it is stored."""
    registry = registry_with("lines", capacity=20, keep_alive_seconds=0.01)
    put(spool, "a", TEXT)
    async with running_source(spool_config(spool, batch_events_max=10), registry, tmp_path) as component:
        await until(lambda: component.state is ComponentState.BACKING_OFF)
        assert "CHANNEL_FULL" in component.reason
        assert names_in(spool) == ["a"]
        taken: list[bytes] = []
        while len(taken) < len(LINES):
            taken += await take(registry, 20)
        assert taken == LINES
        await until(lambda: names_in(spool) == ["a.COMPLETED"])


async def test_stop_in_the_middle_of_a_file_continues_there_later(
    tmp_path: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped and restarted repeatedly while it waits for space, the source stores every line once."""
    monkeypatch.setattr(chunks_module, "CHUNK_BYTES", 256)
    registry = registry_with("lines", capacity=50)
    put(spool, "a", TEXT)
    taken: list[bytes] = []
    stop_count = 0
    while (spool / "a").exists():
        async with running_source(spool_config(spool, batch_events_max=7), registry, tmp_path):
            await until(lambda: len(bodies_in(registry)) > 50 - 7 or not (spool / "a").exists())
        while bodies_in(registry):
            taken += await take(registry, 50)
        stop_count += 1
    assert stop_count > 5
    assert taken == LINES


async def test_run_with_the_name_of_a_done_file_takes_the_new_one_too(tmp_path: Path, spool: Path) -> None:
    """No file overwrites another; Flume's source failed at the second file of a name."""
    registry = registry_with("lines")
    async with running_source(spool_config(spool), registry, tmp_path) as component:
        for number in range(3):
            put(spool, "a", b"%d\n" % number)
            await until(lambda: len(bodies_in(registry)) == number + 1)  # noqa: B023 - of this turn
            await until(lambda: not (spool / "a").exists())
        assert component.state is ComponentState.RUNNING
    assert bodies_in(registry) == [b"0", b"1", b"2"]
    assert sorted((spool / name).read_bytes() for name in names_in(spool)) == [b"0\n", b"1\n", b"2\n"]


@pytest.mark.parametrize("done", ["rename", "delete"])
async def test_run_with_the_very_same_file_once_more_stores_it_once_more(
    tmp_path: Path, spool: Path, done: str
) -> None:
    """A file that is put there again is read again, even with its old time and inode."""
    registry = registry_with("lines")
    async with running_source(spool_config(spool, done={"type": done}), registry, tmp_path):
        for count in (1, 2, 3):
            put(spool, "a", b"line\n", modified_seconds=1_000.0)
            await until(lambda: len(bodies_in(registry)) == count)  # noqa: B023 - of this turn
            await until(lambda: not (spool / "a").exists())


BAD_FILES: dict[str, tuple[dict[str, Any], bytes, str]] = {
    "a.gz": ({}, b"no gzip at all", "it is truncated or not valid gzip"),
    "cut.gz": ({}, gzip.compress(TEXT)[:-20], "it is truncated or not valid gzip"),
    "a.zst": ({}, b"no zstandard", "it is truncated or not valid Zstandard"),
    "a.txt": ({"type": "lines", "decode_errors": "fail"}, b"fine\ncaf\xe9\n", "the line at byte 5 is not in utf-8"),
    "a.avro": ({"type": "avro"}, b"no container", "record 0 cannot be read"),
    "a.bin": ({"type": "blob", "file_bytes_max": 10}, b"12345678901", "it has more than 10 bytes"),
}


@pytest.mark.parametrize("name", BAD_FILES)
async def test_run_with_a_bad_file_sets_it_aside_and_continues(
    tmp_path: Path, spool: Path, log: list[Any], name: str
) -> None:
    """Flume's source failed at the first of them."""
    file_format, content, reason = BAD_FILES[name]
    settings: dict[str, Any] = {"format": file_format} if file_format else {}
    put(spool, name, content)
    async with running_source(
        spool_config(spool, **settings), registry_with("lines", capacity=10_000), tmp_path
    ) as component:
        await until(lambda: bool(told_of(log)))
        put(spool, "next", b"good\n")
        await until(lambda: not (spool / "next").exists())
        assert component.state is ComponentState.RUNNING
    assert (spool / "quarantine" / name).read_bytes() == content
    assert reason in (spool / "quarantine" / f"{name}.reason").read_text()
    text = told_of(log)[0]
    assert (text["log_level"], text["source"], text["file"]) == ("warning", "in", str(spool / name))
    assert reason in text["reason"]


def told_of(log: list[Any]) -> list[Any]:
    return [entry for entry in log if entry["event"] == "a file is bad"]


async def test_run_with_a_file_that_is_bad_in_its_middle_stores_what_comes_before(
    tmp_path: Path, spool: Path, log: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason file says how much of it is stored."""
    monkeypatch.setattr(chunks_module, "CHUNK_BYTES", 256)
    registry = registry_with("lines", capacity=10_000)
    put(spool, "a.gz", gzip.compress(TEXT)[:-8])
    async with running_source(spool_config(spool, batch_events_max=10), registry, tmp_path):
        await until(lambda: bool(told_of(log)))
    stored = bodies_in(registry)
    assert 0 < len(stored) < len(LINES)
    assert stored == LINES[: len(stored)]
    stored_bytes = sum(len(line) + 1 for line in stored)
    assert f"Its first {stored_bytes} bytes are stored." in (spool / "quarantine/a.gz.reason").read_text()


async def test_run_with_a_file_that_changes_while_it_is_read_sets_it_aside(
    tmp_path: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flume's source failed on such a file."""
    monkeypatch.setattr(chunks_module, "CHUNK_BYTES", 256)
    registry = registry_with("lines", capacity=20, keep_alive_seconds=0.01)
    path = put(spool, "a", TEXT, modified_seconds=10.0)
    async with running_source(spool_config(spool, batch_events_max=10), registry, tmp_path) as component:
        await until(lambda: component.state is ComponentState.BACKING_OFF)
        with path.open("ab") as file:
            file.write(b"more\n")
        put(spool, "b", b"good\n", modified_seconds=20.0)
        taken: list[bytes] = []
        while b"good" not in taken:
            taken += await take(registry, 20)
        await until((spool / "b.COMPLETED").exists)
    assert "it was changed while it was read" in (spool / "quarantine/a.reason").read_text()
    assert taken[:-1] == LINES[: len(taken) - 1]
    assert len(taken) < len(LINES)


async def test_run_with_a_file_that_may_not_be_read_sets_it_aside(
    tmp_path: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other files are read all the same."""
    put(spool, "locked", b"x\n", modified_seconds=10.0)
    put(spool, "open", b"good\n", modified_seconds=20.0)
    refuse_to_open(monkeypatch, "locked", errno.EACCES)
    registry = registry_with("lines")
    async with running_source(spool_config(spool), registry, tmp_path):
        await until(lambda: bodies_in(registry) == [b"good"])
    assert "it cannot be read: Permission denied" in (spool / "quarantine/locked.reason").read_text()


def refuse_to_open(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    really_open = os.open

    def refuse(path: Any, flags: int, mode: int = 0o777) -> int:
        # Only the source itself opens files without following links.
        if flags & os.O_NOFOLLOW and Path(path).name == name:
            raise OSError(number, os.strerror(number), str(path))
        return really_open(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)


async def test_run_with_a_file_that_cannot_be_read_now_tries_again_and_sets_it_aside(
    tmp_path: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may recover; a file that can never be read must not block the others."""
    monkeypatch.setattr(source_module, "_ATTEMPTS_MAX", 2)
    put(spool, "broken", b"x\n", modified_seconds=10.0)
    put(spool, "good", b"good\n", modified_seconds=20.0)
    refuse_to_open(monkeypatch, "broken", errno.EIO)
    registry = registry_with("lines")
    async with running_source(spool_config(spool), registry, tmp_path) as component:
        await until(lambda: component.state is ComponentState.BACKING_OFF)
        assert component.reason == f"{spool / 'broken'} cannot be read: Input/output error"
        await until(lambda: bodies_in(registry) == [b"good"])
        assert component.state is ComponentState.RUNNING
    assert "it cannot be read: Input/output error" in (spool / "quarantine/broken.reason").read_text()


async def test_run_out_of_descriptors_blames_no_file(
    tmp_path: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source waits until descriptors are available."""
    monkeypatch.setattr(source_module, "_ATTEMPTS_MAX", 1)
    put(spool, "a", b"x\n")
    with monkeypatch.context() as without:
        refuse_to_open(without, "a", errno.EMFILE)
        registry = registry_with("lines")
        source = running_source(spool_config(spool), registry, tmp_path)
        component = await source.__aenter__()
        await until(lambda: component.state is ComponentState.BACKING_OFF)
    await until(lambda: names_in(spool) == ["a.COMPLETED"])
    await source.__aexit__(None, None, None)
    assert bodies_in(registry) == [b"x"]


class FakeTime:
    """A clock that stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


async def test_run_with_a_file_that_cannot_be_taken_away_reports_it_and_continues(
    tmp_path: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is stored once, and taking it away is tried again later. Other files do not wait."""
    time = FakeTime()
    monkeypatch.setattr(source_module, "time", time)
    put(spool, "stuck", b"stuck\n", modified_seconds=10.0)
    put(spool, "good", b"good\n", modified_seconds=20.0)
    registry = registry_with("lines")
    with monkeypatch.context() as while_refused:
        refuse_to_rename(while_refused, "stuck")
        source = running_source(spool_config(spool), registry, tmp_path)
        component = await source.__aenter__()
        await until(lambda: component.state is ComponentState.BACKING_OFF)
        assert component.reason == f"{spool / 'stuck'} cannot be moved or deleted: Operation not permitted"
        await until(lambda: names_in(spool) == ["good.COMPLETED", "stuck"])
    time.now += 61.0
    await until(lambda: names_in(spool) == ["good.COMPLETED", "stuck.COMPLETED"])
    await source.__aexit__(None, None, None)
    assert bodies_in(registry) == [b"stuck", b"good"]


def refuse_to_rename(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name == name:
            raise PermissionError(errno.EPERM, "Operation not permitted", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)


async def test_run_without_its_directory_waits_for_it(tmp_path: Path) -> None:
    """The state says that the directory does not exist."""
    spool = tmp_path / "spool"
    registry = registry_with("lines")
    async with running_source(spool_config(spool), registry, tmp_path) as component:
        await until(lambda: component.state is ComponentState.BACKING_OFF)
        assert component.reason.startswith(f"there is no directory {spool}; create it")
        put(spool, "a", b"x\n")
        await until(lambda: bodies_in(registry) == [b"x"])


async def test_run_takes_what_comes_first_in_the_order_between_files(
    tmp_path: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer file may come before files that were found earlier."""
    monkeypatch.setattr(DirectoryScanner, "pause_seconds", 0.0)
    registry = registry_with("lines", capacity=1, keep_alive_seconds=20.0)
    for number in range(1, 10):
        put(spool, f"{number:02}", b"%d\n" % number)
    async with running_source(spool_config(spool, order="name"), registry, tmp_path):
        taken = await take(registry, 1)
        put(spool, "00", b"urgent\n")
        while len(taken) < 10:
            taken += await take(registry, 1)
    assert taken.index(b"urgent") < 4
    assert sorted(int(body) for body in taken if body != b"urgent") == list(range(1, 10))


async def test_run_with_names_that_are_no_text_takes_them_too(tmp_path: Path, spool: Path) -> None:
    """Names are bytes; in headers, invalid UTF-8 is shown as question marks."""
    registry = registry_with("lines")
    put(spool, os.fsdecode(b"caf\xe9"), b"good\n")
    put(spool, os.fsdecode(b"caf\xe9.gz"), b"bad\n")
    async with running_source(spool_config(spool, basename_header="name"), registry, tmp_path):
        await until(lambda: len(names_in(spool)) == 3)
    assert rows_in(registry) == [({"name": "caf?"}, b"good")]
