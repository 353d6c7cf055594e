import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from millrace.setting_file import SettingsError
from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.components import ComponentState
from millrace_server.agent.interceptors import regexes
from millrace_server.agent.sources import stdin
from millrace_server.agent.sources.stdin import StdinSourceConfig, ThreadedReader, stdin_problems
from millrace_server.agent.supervision import ComponentError
from millrace_server.configuration.settings import check_settings
from tests.agent_components import registry_with
from tests.unit.agent.sources.running_sources import bodies_in, running_source, take
from tests.waiting import until

EVIL_PATTERN = "(a|aa)+$"
EVIL_LINE = b"a" * 60 + b"b"
"""A line on which that pattern does not end in any reasonable time."""


class StandardInput:
    """A pipe that replaces the test's standard input."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reader, self._writer = os.pipe()
        self._monkeypatch = monkeypatch
        self.show(os.fdopen(self.reader, "rb", buffering=0))

    def show(self, file: object) -> None:
        self._file = file
        self._monkeypatch.setattr(sys, "__stdin__", file)

    def write(self, data: bytes) -> None:
        os.write(self._writer, data)

    def end(self) -> None:
        with suppress(OSError):
            os.close(self._writer)

    def close(self) -> None:
        self.end()
        self._file.close()  # type: ignore[attr-defined]  # a file


@pytest.fixture
def standard_input(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandardInput]:
    standard_input = StandardInput(monkeypatch)
    yield standard_input
    standard_input.close()


def config_of(**settings: Any) -> StdinSourceConfig:
    tables = {"type": "stdin", "channels": ["lines"], "linger_seconds": 0.01, **settings}
    return StdinSourceConfig.model_validate(tables, strict=True)


async def test_run_to_the_end_of_the_input_stores_all_and_stops(tmp_path: Path, standard_input: StandardInput) -> None:
    """This includes an unfinished last line; the state has the reason for the end."""
    registry = registry_with("lines")
    async with running_source(config_of(), registry, tmp_path) as component:
        standard_input.write(b"one\ntwo\n")
        await until(lambda: bodies_in(registry) == [b"one", b"two"])
        assert component.state is ComponentState.RUNNING
        standard_input.write(b"three")
        standard_input.end()
        await until(lambda: component.state is ComponentState.STOPPED)
        assert component.reason == "end of standard input"
    assert bodies_in(registry) == [b"one", b"two", b"three"]


async def test_run_with_a_file_as_the_input_stores_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regular files cannot be polled as pipes can."""
    path = tmp_path / "input"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(100_000)))
    registry = registry_with("lines", capacity=100_000, transaction_capacity=10_000)
    with path.open("rb") as file:
        monkeypatch.setattr(sys, "__stdin__", file)
        async with running_source(config_of(batch_events_max=10_000), registry, tmp_path / "data") as component:
            await until(lambda: component.state is ComponentState.STOPPED)
    assert bodies_in(registry) == [b"%d" % number for number in range(100_000)]


async def test_run_with_a_full_channel_stops_reading(tmp_path: Path, standard_input: StandardInput) -> None:
    """The writer waits; nothing is lost, and memory stays small."""
    registry = registry_with("lines", capacity=10, keep_alive_seconds=0.01)
    lines = [b"%d" % number + b"x" * 1_000 for number in range(3_000)]

    def write_all() -> None:
        for line in lines:
            standard_input.write(line + b"\n")
        standard_input.end()

    async with running_source(config_of(batch_events_max=10), registry, tmp_path) as component:
        writing = asyncio.create_task(asyncio.to_thread(write_all))
        await until(lambda: component.state is ComponentState.BACKING_OFF)
        assert not writing.done()
        taken: list[bytes] = []
        while len(taken) < len(lines):
            taken += await take(registry, 100)
        await writing
        assert taken == lines


async def test_stop_in_the_middle_stores_what_was_read(tmp_path: Path, standard_input: StandardInput) -> None:
    """The rest stays in the pipe for the next reader."""
    registry = registry_with("lines")
    async with running_source(config_of(linger_seconds=3_600.0), registry, tmp_path):
        standard_input.write(b"one\nunfin")
        await until(lambda: _waiting_bytes(standard_input) == 0)
    assert bodies_in(registry) == [b"one", b"unfin"]
    standard_input.write(b"three\n")
    async with running_source(config_of(), registry, tmp_path):
        await until(lambda: bodies_in(registry) == [b"one", b"unfin", b"three"])


def _waiting_bytes(standard_input: StandardInput) -> int:
    import fcntl
    import termios

    waiting = fcntl.ioctl(standard_input.reader, termios.FIONREAD, b"\0" * 4)
    return int.from_bytes(waiting, sys.byteorder)


async def test_stop_with_a_full_channel_says_what_is_lost(
    tmp_path: Path, standard_input: StandardInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events cannot be put back."""
    monkeypatch.setattr(stdin, "_DRAIN_SECONDS_MAX", 0.1)
    registry = registry_with("lines", capacity=10, keep_alive_seconds=0.01)
    standard_input.write(b"line\n" * 25)
    with capture_logs() as log:
        async with running_source(config_of(batch_events_max=10), registry, tmp_path) as component:
            await until(lambda: component.state is ComponentState.BACKING_OFF)
    assert [entry["events_lost"] for entry in log if "events_lost" in entry] == [15]


async def test_run_without_a_standard_input_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the descriptor was closed, Python has no standard input, and another file may have the descriptor."""
    monkeypatch.setattr(sys, "__stdin__", None)
    async with running_source(config_of(), registry_with("lines"), tmp_path) as component:
        await until(lambda: component.state is ComponentState.FAILED)
        assert component.reason == "the daemon was started without standard input"


async def test_run_with_an_input_that_cannot_be_read_says_why(tmp_path: Path, standard_input: StandardInput) -> None:
    """The source reports the error and retries."""
    directory = os.open(tmp_path, os.O_RDONLY)
    os.dup2(directory, standard_input.reader)
    os.close(directory)
    async with running_source(config_of(), registry_with("lines"), tmp_path / "data") as component:
        await until(lambda: component.state is ComponentState.BACKING_OFF)
        assert "Is a directory" in component.reason


async def test_read_that_is_cancelled_loses_nothing(standard_input: StandardInput) -> None:
    """What arrives meanwhile is returned by the next read."""
    reader = ThreadedReader(standard_input.reader)
    for number in range(20):
        reading = asyncio.create_task(reader.read())
        await asyncio.sleep(0)
        standard_input.write(b"%d\n" % number)
        reading.cancel()
        await asyncio.wait({reading})
        assert reading.cancelled()
        assert await reader.read() == b"%d\n" % number
    standard_input.end()
    assert await reader.read() == b""
    assert await reader.read() == b""
    reader.end()


async def test_read_after_another_reader_has_ended_begins_with_what_that_one_has_left(
    standard_input: StandardInput,
) -> None:
    """Data that was read ahead cannot be put back."""
    previous = ThreadedReader(standard_input.reader)
    standard_input.write(b"ahead\n")
    await until(lambda: _waiting_bytes(standard_input) == 0)
    previous.end()
    reader = ThreadedReader(standard_input.reader, previous)
    standard_input.write(b"next\n")
    assert [await reader.read() for _ in range(2)] == [b"ahead\n", b"next\n"]
    reader.end()
    assert await reader.read() == b""


async def test_run_after_a_failure_stores_what_was_read_ahead(
    tmp_path: Path, standard_input: StandardInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one chunk waits for its channel, the next one is already in memory."""
    registry = registry_with("lines")
    deliver, may_fail = ChannelWriter.deliver, asyncio.Event()

    async def fail_once(self: ChannelWriter, *batch: Any) -> None:
        if not may_fail.is_set():
            await may_fail.wait()
            raise ComponentError("for once")
        await deliver(self, *batch)

    monkeypatch.setattr(ChannelWriter, "deliver", fail_once)
    async with running_source(config_of(batch_events_max=1), registry, tmp_path) as component:
        standard_input.write(b"one\n")
        await until(lambda: _waiting_bytes(standard_input) == 0)
        standard_input.write(b"two\n")
        await until(lambda: _waiting_bytes(standard_input) == 0)
        may_fail.set()
        await until(lambda: component.state is ComponentState.BACKING_OFF)
        standard_input.write(b"three\n")
        await until(lambda: bodies_in(registry) == [b"one", b"two", b"three"])


async def test_run_with_a_pattern_that_times_out_does_not_block_the_server(
    tmp_path: Path, standard_input: StandardInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server continues, and the line counts as one that does not match."""
    monkeypatch.setattr(regexes, "MATCH_SECONDS_MAX", 0.5)
    search, is_searching = regexes.Regex.search, threading.Event()

    def search_noted(regex: regexes.Regex, text: str) -> object:
        is_searching.set()
        try:
            return search(regex, text)
        finally:
            is_searching.clear()

    monkeypatch.setattr(regexes.Regex, "search", search_noted)
    registry = registry_with("lines")
    multiline = {"pattern": EVIL_PATTERN}
    async with running_source(config_of(multiline=multiline), registry, tmp_path) as component:
        await until(lambda: component.state is ComponentState.RUNNING)
        standard_input.write(b"one\n" + EVIL_LINE + b"\n")
        standard_input.end()
        turns_meanwhile = 0
        while component.state is not ComponentState.STOPPED:
            await asyncio.sleep(0.001)
            turns_meanwhile += is_searching.is_set()
    assert bodies_in(registry) == [b"one\n" + EVIL_LINE]
    assert turns_meanwhile > 2


def test_settings_with_two_sources_of_one_input_are_refused() -> None:
    """Each source would get some of the lines at random."""
    tables = {
        "channels": {"lines": {"type": "memory"}},
        "sources": {name: {"type": "stdin", "channels": ["lines"]} for name in ("a", "b.c")},
    }
    with pytest.raises(SettingsError) as refused:
        check_settings(tables, "test")
    assert list(map(str, refused.value.problems)) == [
        'sources."b.c".type: is "stdin"; sources.a reads the daemon\'s standard input already, and only one source can'
    ]
    assert stdin_problems({"sources": {"a": {"type": "stdin"}, "b": {"type": "exec"}, "c": 3}}) == []
    assert stdin_problems({"sources": 3}) == stdin_problems({}) == []
