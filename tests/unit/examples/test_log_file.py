import gzip
import os
from pathlib import Path

import pytest

from examples.access_log.log_file import LogFileError, open_log_file


def write(folder: Path, content: bytes) -> Path:
    path = folder / "some.log"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"one\ntwo", [b"one", b"two"]),
        (b"one\r\n\r\ntwo\r\n", [b"one", b"", b"two"]),
        (b"\n", [b""]),
        (b"\xff\xfe \xe4\n", [b"\xff\xfe \xe4"]),
        (b"x" * 3_000_000 + b"\ny", [b"x" * 3_000_000, b"y"]),
    ],
)
def test_open_log_file_counts_the_lines_that_it_gives(tmp_path: Path, content: bytes, lines: list[bytes]) -> None:
    """Any line ends are supported, with and without one at the end of the file."""
    log = open_log_file(write(tmp_path, content))
    assert list(log.lines()) == lines
    assert log.line_count == len(lines)


def test_lines_of_a_file_that_grows_are_those_of_its_opening(tmp_path: Path) -> None:
    """Lines written after the opening are not returned."""
    path = write(tmp_path, b"one\ntwo")
    log = open_log_file(path)
    path.write_bytes(b"one\ntwo\nthree\n")
    assert list(log.lines()) == [b"one", b"two"]


def test_sample_leaves_a_cut_line_out(tmp_path: Path) -> None:
    """The kind of log is detected from whole lines."""
    log = open_log_file(write(tmp_path, b"0123456789abcde\n" * 5_000))
    assert set(log.sample) == {b"0123456789abcde"}
    assert open_log_file(write(tmp_path, b"no end")).sample == (b"no end",)


def test_open_log_file_that_is_none_says_why(tmp_path: Path) -> None:
    """The sentence names the file and says what it is."""
    os.mkfifo(tmp_path / "pipe")
    for path, sentence in [
        (tmp_path / "nothing", "there is no file .*/nothing"),
        (tmp_path / "pipe", "pipe is not a regular file"),
        (tmp_path, "is a directory; name a file in it"),
        (write(tmp_path, b""), "some.log is empty; there is nothing to send"),
        (Path("a\0b"), "is not a path"),
        (Path("x" * 5_000), "cannot read x.*: File name too long"),
    ]:
        with pytest.raises(LogFileError, match=sentence):
            open_log_file(path)


def test_open_log_file_that_is_no_text_says_what_to_do(tmp_path: Path) -> None:
    """Compressed and binary files are distinguished from text by their first bytes."""
    with pytest.raises(LogFileError, match=r"some\.log is compressed; unpack it first: gunzip"):
        open_log_file(write(tmp_path, gzip.compress(b"one\n")))
    with pytest.raises(LogFileError, match=r"some\.log is not text: byte 3 is NUL"):
        open_log_file(write(tmp_path, b"ELF\0"))
