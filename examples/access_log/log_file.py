"""The log file that is sent: checked, counted, and read line by line."""

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CHUNK_BYTES = 1 << 20
_SAMPLE_BYTES = 1 << 16
_GZIP_MAGIC = b"\x1f\x8b"


class LogFileError(Exception):
    """Raised when this job cannot read a file; the message is for the user."""


@dataclass(frozen=True)
class LogFile:
    """A text file as it was when it was opened; what a running program adds later is left out."""

    path: Path
    size_bytes: int
    line_count: int
    sample: tuple[bytes, ...]
    """Some of its first lines."""

    def lines(self) -> Iterator[bytes]:
        """The lines without their ends; the last one may have none."""
        remaining = self.size_bytes
        with self.path.open("rb") as file:
            while remaining > 0 and (line := file.readline(remaining)):
                remaining -= len(line)
                yield line.removesuffix(b"\n").removesuffix(b"\r")


def open_log_file(path: Path) -> LogFile:
    """Checks a file and counts its lines.

    Raises:
        LogFileError: It is missing, empty, no file, not readable, or not text.
    """
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise LogFileError(f"{path} is a directory; name a file in it")
        if not stat.S_ISREG(status.st_mode):
            raise LogFileError(f"{path} is not a regular file; save what it gives to a file first")
        if not status.st_size:
            raise LogFileError(f"{path} is empty; there is nothing to send")
        return LogFile(path, status.st_size, _count_lines(path, status.st_size), _sample(path))
    except FileNotFoundError:
        raise LogFileError(f"there is no file {path}; name an existing log: make run LOG=path") from None
    except OSError as error:
        raise LogFileError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise LogFileError(f"{str(path)!r} is not a path") from None


def _sample(path: Path) -> tuple[bytes, ...]:
    with path.open("rb") as file:
        head = file.read(_SAMPLE_BYTES)
    if head.startswith(_GZIP_MAGIC):
        raise LogFileError(f"{path} is compressed; unpack it first: gunzip --keep {path}")
    if (offset := head.find(b"\0")) >= 0:
        raise LogFileError(f"{path} is not text: byte {offset} is NUL; name a text file")
    lines = head.splitlines()
    # The last line of a longer file is most likely cut.
    return tuple(lines[:-1] or lines)


def _count_lines(path: Path, size_bytes: int) -> int:
    count = 0
    last = b""
    with path.open("rb") as file:
        while size_bytes > 0 and (chunk := file.read(min(_CHUNK_BYTES, size_bytes))):
            size_bytes -= len(chunk)
            count += chunk.count(b"\n")
            last = chunk
    return count + (not last.endswith(b"\n"))
