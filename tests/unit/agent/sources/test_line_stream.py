import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.lines.config import LinesConfig
from millrace_server.agent.sources.line_stream import LineStream
from millrace_server.agent.supervision import ComponentFailedError
from millrace_server.channels.registry import ChannelRegistry
from tests.source_writers import held, memory, registry_of, writer_of
from tests.unit.agent.sources.running_sources import take
from tests.virtual_clock import now, settle, started

HAS_VIRTUAL_CLOCK = True
LINGER_SECONDS = 5.0


class Input:
    """An input that the test writes chunk by chunk; an empty chunk is its end."""

    def __init__(self) -> None:
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self.read_count = 0

    def write(self, *chunks: bytes) -> None:
        for chunk in chunks:
            self._chunks.put_nowait(chunk)

    async def read(self) -> bytes:
        chunk = await self._chunks.get()
        self.read_count += 1
        return chunk


class NoThread:
    """Runs functions at once instead of on a thread."""

    def __init__(self, _name: str) -> None:
        self._loop = asyncio.get_running_loop()

    def submit(self, function: Callable[[], Any]) -> "asyncio.Future[Any]":
        response = self._loop.create_future()
        response.set_result(function())
        return response


@pytest.fixture
def written() -> Input:
    return Input()


@pytest.fixture
def log() -> Iterator[list[Any]]:
    with capture_logs() as entries:
        yield entries


def stream(**lines: Any) -> LineStream:
    return LineStream(LinesConfig(**lines), LINGER_SECONDS, structlog.stdlib.get_logger("test"))


def channel_and_writer(**limits: Any) -> tuple[ChannelRegistry, ChannelWriter]:
    registry = registry_of(lines=memory(**limits))
    return registry, writer_of(registry, ["lines"], events_max=3)


def lines_in(registry: ChannelRegistry) -> list[bytes]:
    return held(registry, "lines")["lines"]


async def test_deliver_all_stores_full_batches_at_once_and_others_after_a_while(written: Input) -> None:
    """A batch lingers from its first event on, whatever follows."""
    registry, writer = channel_and_writer()
    delivering = await started(stream().deliver_all(writer, written.read))
    written.write(b"1\n2\n3\n4\n")
    await settle()
    assert lines_in(registry) == [b"1", b"2", b"3"]
    await asyncio.sleep(LINGER_SECONDS - 1.0)
    written.write(b"5\n")
    await settle()
    assert lines_in(registry) == [b"1", b"2", b"3"]
    await asyncio.sleep(1.5)
    assert lines_in(registry) == [b"1", b"2", b"3", b"4", b"5"]
    delivering.cancel()


async def test_deliver_all_to_the_end_stores_all(written: Input) -> None:
    """Everything is stored without waiting, including an unfinished last line; then it may start again."""
    registry, writer = channel_and_writer()
    lines = stream()
    written.write(b"1\n2", b"", b"3\n", b"")
    for _ in range(2):
        await lines.deliver_all(writer, written.read)
    assert lines_in(registry) == [b"1", b"2", b"3"]
    assert now() == 0.0


async def test_deliver_all_while_nothing_comes_waits_for_no_time(written: Input) -> None:
    """An idle source does nothing at all."""
    _, writer = channel_and_writer()
    delivering = await started(stream().deliver_all(writer, written.read))
    written.write(b"unfinished")
    await settle()
    # A timer would make the virtual clock stop there.
    stops: list[float] = []
    asyncio.get_running_loop().call_later(1_000.0, lambda: stops.append(now()))
    await asyncio.sleep(2_000.0)
    assert stops == [1_000.0]
    delivering.cancel()


async def test_deliver_all_of_many_bytes_stores_them_before_the_batch_is_full(
    written: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory holds some megabytes of a stream, however large a batch may be."""
    monkeypatch.setattr("millrace_server.agent.sources.line_stream._BATCH_BYTES", 10)
    registry, writer = channel_and_writer()
    delivering = await started(stream().deliver_all(writer, written.read))
    written.write(b"12345\n")
    await settle()
    assert lines_in(registry) == []
    written.write(b"67890\n")
    await settle()
    assert lines_in(registry) == [b"12345", b"67890"]
    delivering.cancel()


async def test_deliver_all_into_a_full_channel_stops_reading(written: Input) -> None:
    """The writer of the input waits; nothing is lost, and nothing is stored twice."""
    registry, writer = channel_and_writer(capacity=4, keep_alive_seconds=1.0)
    delivering = await started(stream().deliver_all(writer, written.read))
    expected = [b"%d" % number for number in range(30)]
    written.write(*(line + b"\n" for line in expected), b"")
    await settle()
    assert lines_in(registry) == expected[:3]
    assert written.read_count == 6
    taken: list[bytes] = []
    while len(taken) < len(expected):
        taken += await take(registry, 4)
    await delivering.result()
    assert taken == expected


async def test_deliver_all_that_is_cancelled_keeps_what_it_has_read(written: Input, log: list[Any]) -> None:
    """After a cancellation at any point the stream continues with the next line; a pending batch is stored once."""
    registry, writer = channel_and_writer(capacity=4, keep_alive_seconds=1.0)
    lines = stream()
    delivering = await started(lines.deliver_all(writer, written.read))
    written.write(b"1\n2\n3\n4\n5\n6\n7\nunfin")
    await settle()
    delivering.cancel()
    await settle()
    assert delivering.is_cancelled
    assert await take(registry, 4) == [b"1", b"2", b"3"]
    written.write(b"ished\n", b"")
    delivering = await started(lines.deliver_all(writer, written.read))
    assert await take(registry, 4) == [b"4", b"5", b"6"]
    await delivering.result()
    assert lines_in(registry) == [b"7", b"unfinished"]
    assert log == []


async def test_drain_without_space_says_what_is_lost(written: Input, log: list[Any]) -> None:
    """The drain ends exactly at its timeout."""
    registry, writer = channel_and_writer(capacity=4, keep_alive_seconds=1.0)
    written.write(b"1\n2\n3\n4\n5\n6\n7\n", b"")
    await stream().drain(writer, written.read, 60.0)
    assert 60.0 <= now() < 61.0
    assert lines_in(registry) == [b"1", b"2", b"3"]
    assert [(entry["log_level"], entry["events_lost"]) for entry in log if "events_lost" in entry] == [("warning", 4)]


async def test_deliver_all_of_an_event_of_several_lines_waits_for_more_of_it(
    written: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source waits for the time that lines may be apart, and then for the linger."""
    registry, writer = channel_and_writer()
    # The virtual clock does not wait for threads.
    monkeypatch.setattr("millrace_server.agent.sources.line_stream.WorkerThread", NoThread)
    multiline = {"pattern": "^ ", "role": "continues", "timeout_seconds": 2.0}
    delivering = await started(stream(multiline=multiline).deliver_all(writer, written.read))
    written.write(b"one\n")
    await asyncio.sleep(1.5)
    written.write(b" more\n")
    await asyncio.sleep(1.5)
    assert lines_in(registry) == []
    await asyncio.sleep(0.5 + LINGER_SECONDS + 0.1)
    assert lines_in(registry) == [b"one\n more"]
    delivering.cancel()


async def test_deliver_all_cancelled_while_lines_are_joined_takes_them_over_when_it_restarts(
    written: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A regular expression may take long; the lines that it works on are not read again."""
    begun: list[Callable[[], None]] = []

    class SlowThread(NoThread):
        def submit(self, function: Callable[[], Any]) -> "asyncio.Future[Any]":
            response = self._loop.create_future()
            begun.append(lambda: response.set_result(function()))
            return response

    monkeypatch.setattr("millrace_server.agent.sources.line_stream.WorkerThread", SlowThread)
    registry, writer = channel_and_writer()
    lines = stream(multiline={"pattern": "^[a-z]"})
    written.write(b"one\n 1\ntwo\n", b"")
    delivering = await started(lines.deliver_all(writer, written.read))
    delivering.cancel()
    await settle()
    await started(lines.deliver_all(writer, written.read))
    while begun:
        begun.pop()()
        await settle()
    assert lines_in(registry) == [b"one\n 1", b"two"]


async def test_deliver_all_of_a_line_that_must_not_be_stores_what_comes_before(written: Input) -> None:
    """The source fails after the valid lines before it are stored."""
    registry, writer = channel_and_writer()
    written.write(b"good\ncaf\xe9\n", b"more\n", b"")
    with pytest.raises(ComponentFailedError, match="the line at byte 5 is not in utf-8"):
        await stream(decode_errors="fail").deliver_all(writer, written.read)
    assert lines_in(registry) == [b"good"]
