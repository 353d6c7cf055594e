import io
import json
from typing import cast

import pytest

from millrace_client import Event
from millrace_client.cli.event_writer import EventFormat, EventWriter
from millrace_client.cli.exit_codes import ExitCode
from millrace_client.cli.failures import CommandError
from tests.unit.cli.fake_client import batch_of

ODD = Event(b"\xff\n\x1b[31m", {"k": "v"})


def written(event_format: EventFormat, *events: Event, is_terminal: bool = False) -> bytes:
    stream = io.BytesIO()
    EventWriter(event_format, stream, is_terminal=is_terminal).write([batch_of(events, first_sequence=7)])
    return stream.getvalue()


def test_write_lines_elsewhere_keeps_the_bytes() -> None:
    """What was put as lines comes out byte for byte."""
    assert written(EventFormat.LINES, Event(b"one"), Event(b""), ODD) == b"one\n\n\xff\n\x1b[31m\n"


def test_write_lines_on_a_terminal_escapes_control_characters() -> None:
    """A log line cannot move the cursor of whoever reads it."""
    assert written(EventFormat.LINES, ODD, is_terminal=True) == b"\\xff\\n\\x1b[31m\n"


def test_write_long_of_odd_events_stays_one_line_each() -> None:
    """Sequence, headers and body lie between tabs whatever they hold."""
    lines = written(EventFormat.LONG, Event(b"one", {"b": "2", "a": "x\ny"}), ODD, Event(b"plain"))
    assert lines.decode().splitlines() == ["7\tb=2 a=x\\ny\tone", "8\tk=v\t\\xff\\n\\x1b[31m", "9\t-\tplain"]


def test_write_json_of_text_and_bytes_tells_them_apart() -> None:
    """A body that is UTF-8 is text; any other comes as base64 under another key."""
    lines = written(EventFormat.JSON, Event("ä\n".encode(), {"k": "v"}), ODD).splitlines()
    assert [json.loads(line) for line in lines] == [
        {"sequence": 7, "headers": {"k": "v"}, "body": "ä\n"},
        {"sequence": 8, "headers": {"k": "v"}, "body_base64": "/wobWzMxbQ=="},
    ]


def test_write_several_batches_counts_their_events() -> None:
    """The count is what a take commits."""
    writer = EventWriter(EventFormat.LINES, io.BytesIO(), is_terminal=False)
    assert writer.write([batch_of([Event(b"a"), Event(b"b")]), batch_of([Event(b"c")])]) == 3
    assert writer.write([]) == 0


class RawStream(io.BytesIO):
    """Writes at most three bytes at once, and sometimes none, as a raw stream may."""

    def __init__(self, *, blocks_after: int) -> None:
        super().__init__()
        self.blocks_after = blocks_after

    def write(self, data: object) -> int:
        assert isinstance(data, memoryview)
        if self.tell() >= self.blocks_after:
            return cast("int", None)
        return super().write(data[:3])


def test_write_to_a_stream_that_writes_in_parts_writes_all() -> None:
    """An unbuffered standard output calls a part a success; the rest must follow before anything is committed."""
    stream = RawStream(blocks_after=100)
    EventWriter(EventFormat.LINES, stream, is_terminal=False).write([batch_of([Event(b"12345"), Event(b"67")])])
    assert stream.getvalue() == b"12345\n67\n"


def test_write_to_a_stream_that_would_block_fails() -> None:
    """A non-blocking standard output that is full is told; it is not taken for written."""
    writer = EventWriter(EventFormat.LINES, RawStream(blocks_after=3), is_terminal=False)
    with pytest.raises(CommandError, match=r"^cannot write to standard output: Resource temporarily unavailable"):
        writer.write([batch_of([Event(b"12345")])])


class FullStream(io.BytesIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def flush(self) -> None:
        raise self.error


def test_write_to_a_full_disk_says_so() -> None:
    """The writer is asked to flush, so that a full disk shows before anything is committed."""
    writer = EventWriter(EventFormat.LINES, FullStream(OSError(28, "No space left on device")), is_terminal=False)
    with pytest.raises(CommandError, match=r"^cannot write to standard output: No space left on device; ") as caught:
        writer.write([batch_of([Event(b"a")])])
    assert caught.value.exit_code is ExitCode.REFUSED


def test_write_to_a_broken_pipe_stays_a_broken_pipe() -> None:
    """Whoever reads the output may stop at any time; that is no failure to be told."""
    writer = EventWriter(EventFormat.LINES, FullStream(BrokenPipeError()), is_terminal=False)
    with pytest.raises(BrokenPipeError):
        writer.write([batch_of([Event(b"a")])])
