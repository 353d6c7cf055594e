import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_client.cli.line_source import READ_BYTES, BatchLimits, InputError, LineSource

LIMITS = BatchLimits(events_max=3, body_bytes_max=1000)
PATIENT = BatchLimits(events_max=3, body_bytes_max=1000, linger_seconds=60)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lines"


@pytest.fixture
def pipe() -> Iterator[tuple[FileIO, FileIO]]:
    reading, writing = os.pipe()
    with FileIO(reading) as reader, FileIO(writing, "w") as writer:
        yield reader, writer


def batches_of(path: Path, content: bytes, limits: BatchLimits = LIMITS) -> list[list[bytes]]:
    path.write_bytes(content)
    with FileIO(path) as file:
        return list(LineSource(file).batches(limits))


def test_batches_of_an_empty_file_are_none(path: Path) -> None:
    """An empty input has no lines."""
    assert batches_of(path, b"") == []


def test_batches_without_a_last_newline_keep_the_last_line(path: Path) -> None:
    """The last line counts with and without a newline, and a final newline starts no further line."""
    assert batches_of(path, b"one\ntwo") == [[b"one", b"two"]]
    assert batches_of(path, b"one\ntwo\n") == [[b"one", b"two"]]


def test_batches_with_odd_lines_keep_their_bytes(path: Path) -> None:
    """Empty lines are lines; carriage returns, NUL and invalid UTF-8 stay unchanged."""
    assert batches_of(path, b"\n\r\n\x00\xff\n") == [[b"", b"\r", b"\x00\xff"]]


def test_batches_above_the_event_limit_are_cut(path: Path) -> None:
    """A batch has at most this number of lines."""
    assert batches_of(path, b"a\nb\nc\nd\n") == [[b"a", b"b", b"c"], [b"d"]]


def test_batches_above_the_byte_limit_are_cut(path: Path) -> None:
    """A batch has at most this number of bytes, except for a single larger line."""
    limits = BatchLimits(events_max=10, body_bytes_max=4)
    assert batches_of(path, b"aa\nbb\nc\nddddddd\ne\n", limits) == [[b"aa", b"bb"], [b"c"], [b"ddddddd"], [b"e"]]


def test_batches_of_a_line_beyond_one_read_are_whole(path: Path) -> None:
    """A line may span several reads."""
    line = b"x" * (3 * READ_BYTES + 7)
    assert batches_of(path, b"a\n" + line + b"\nb", BatchLimits(events_max=9, body_bytes_max=10**9)) == [
        [b"a", line, b"b"]
    ]


def test_batches_with_a_line_too_long_end_with_its_number(path: Path) -> None:
    """The lines before it are returned, then the error names its number."""
    path.write_bytes(b"a\nb\n" + b"x" * (READ_BYTES * 3))
    with FileIO(path) as file:
        batches = LineSource(file, line_bytes_max=READ_BYTES * 2).batches(LIMITS)
        assert next(batches) == [b"a", b"b"]
        with pytest.raises(InputError, match=r"^line 3 is longer than an event may be, 131,072 bytes"):
            next(batches)


class BrokenFile(FileIO):
    def read(self, size: int | None = -1, /) -> bytes:
        raise OSError(5, "Input/output error")


def test_batches_of_an_unreadable_file_say_why(path: Path) -> None:
    """An error of the disk names the line that could not be read."""
    path.write_bytes(b"a\n")
    with BrokenFile(path) as file, pytest.raises(InputError, match=r"^line 1 cannot be read: Input/output error$"):
        list(LineSource(file).batches(LIMITS))


def test_batches_of_a_pausing_pipe_are_sealed_after_the_linger(pipe: tuple[FileIO, FileIO]) -> None:
    """Complete lines are returned though more may come; an incomplete line waits for its newline."""
    reader, writer = pipe
    batches = LineSource(reader).batches(replace(LIMITS, linger_seconds=0.05))
    writer.write(b"a\nb\nc without its")
    assert next(batches) == [b"a", b"b"]
    writer.write(b" newline\n")
    assert next(batches) == [b"c without its newline"]


def test_batches_of_a_pipe_that_goes_on_are_filled(pipe: tuple[FileIO, FileIO]) -> None:
    """Within the linger lines of several writes become one batch."""
    reader, writer = pipe
    writer.write(b"a\n")
    threading.Timer(0.05, lambda: writer.write(b"b\nc\n")).start()
    assert next(LineSource(reader).batches(PATIENT)) == [b"a", b"b", b"c"]


def test_batches_of_a_closed_pipe_do_not_linger(pipe: tuple[FileIO, FileIO]) -> None:
    """The end of the input completes the batch at once."""
    reader, writer = pipe
    writer.write(b"a\n")
    writer.close()
    assert list(LineSource(reader).batches(PATIENT)) == [[b"a"]]


def test_skip_some_lines_leaves_the_rest(path: Path) -> None:
    """Skipped lines and bytes are counted, and the next batch begins after them."""
    path.write_bytes(b"a\nbb\nc\nd\n")
    with FileIO(path) as file:
        source = LineSource(file)
        list(source.skipped(2))
        assert (source.line_count, source.byte_count) == (2, 5)
        assert list(source.batches(LIMITS)) == [[b"c", b"d"]]
        assert (source.line_count, source.byte_count) == (4, 9)


def test_skip_exactly_all_lines_leaves_none(path: Path) -> None:
    """This is how a put resumes that had stored everything."""
    path.write_bytes(b"a\nb")
    with FileIO(path) as file:
        source = LineSource(file)
        list(source.skipped(2))
        assert list(source.batches(LIMITS)) == []


def test_skip_more_lines_than_there_are_says_so(path: Path) -> None:
    """If the number exceeds the input, it is probably another input."""
    path.write_bytes(b"a\nb\n")
    with (
        FileIO(path) as file,
        pytest.raises(InputError, match=r"^the input has 2 lines, fewer than the 3 lines to skip; "),
    ):
        list(LineSource(file).skipped(3))


@given(content=st.binary(max_size=300), events_max=st.integers(1, 5), body_bytes_max=st.integers(0, 20))
def test_batches_of_any_bytes_lose_and_add_nothing(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, events_max: int, body_bytes_max: int
) -> None:
    """Joined again, the lines are the input, and each batch keeps to its limits."""
    path = tmp_path_factory.getbasetemp() / "any"
    batches = batches_of(path, content, BatchLimits(events_max=events_max, body_bytes_max=body_bytes_max))
    expected = content.split(b"\n")
    assert [line for batch in batches for line in batch] == (expected if expected[-1] else expected[:-1])
    assert all(1 <= len(batch) <= events_max for batch in batches)
    assert all(len(batch) == 1 or sum(map(len, batch)) <= body_bytes_max for batch in batches)


def test_batches_while_the_input_pauses_end_by_a_signal_that_does_not_end_the_wait(
    pipe: tuple[FileIO, FileIO],
) -> None:
    """Such as one just before it. One to another thread does not end it either; Python's handler runs all the same."""
    signaling = threading.Timer(0.05, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))

    def read() -> None:
        signaling.start()
        next(LineSource(pipe[0]).batches(LIMITS))

    with pytest.raises(KeyboardInterrupt):
        read()
    signaling.join()
