"""What is in a file, without its compression."""

import errno
import gzip
import hashlib
import os
import stat
import zlib
from pathlib import Path
from typing import Protocol

import zstandard

from millrace_server.agent.sources.spooldir.scanner import Found, Shape

_HEAD_BYTES = 4096
_ORDER_BYTES = 4
_READ_BYTES = 1 << 18
_ZSTD_INPUT_BYTES = 1024
"""Zstandard makes at most 32 MiB of so many bytes, however they were chosen."""


class BadFileError(Exception):
    """Returned when a file cannot be used; says why."""


class FileGoneError(Exception):
    """Returned when a file is not there any more, or not as it was: whatever is there now waits for its turn."""


class SpoolFile:
    """A file that is being read.

    Attributes:
        path: Where it is.
        shape: How it must be until all of it is read.
        head: Its first bytes.
    """

    def __init__(self, path: Path, fd: int) -> None:
        status = os.fstat(fd)
        self._fd = fd
        self.path = path
        self.shape = Shape.of(status)
        self.head = os.pread(fd, _HEAD_BYTES, 0)
        # No device, since its number may change when a machine starts anew. The time of the last change of the inode
        # tells from a file that was deleted another that got the same inode, and was put there with all its times.
        self._identity = (*self.shape, status.st_ctime_ns)

    @classmethod
    def open(cls, found: Found) -> "SpoolFile":
        """Opens a file that was found.

        Raises:
            FileGoneError: It has gone, or has changed.
            BadFileError: It may not be read.
            OSError: It cannot be read now.
        """
        try:
            # Should a pipe have taken its place, opening that must not wait for a writer.
            fd = os.open(found.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise FileGoneError from None
        except PermissionError as error:
            raise BadFileError(f"it may not be read: {error.strerror}") from None
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENXIO}:
                raise FileGoneError from None
            raise
        try:
            file = cls(found.path, fd)
        except BaseException:
            os.close(fd)
            raise
        if file.shape != found.shape or not stat.S_ISREG(os.fstat(fd).st_mode):
            file.close()
            raise FileGoneError
        return file

    def producer_id(self, kind: str) -> str:
        """The name under which channels remember what they have stored of this file, read as this kind of file."""
        digest = hashlib.sha256(f"{kind} {self._identity} ".encode() + self.head)
        return f"spooldir/{digest.hexdigest()[:40]}"

    def read(self, size: int) -> bytes:
        """The next bytes, as they are on the disk; none at the end.

        Raises:
            BadFileError: The file has changed.
        """
        data = os.read(self._fd, size)
        self.refuse_if_changed()
        return data

    def seek(self, position: int) -> None:
        """Goes on reading there."""
        os.lseek(self._fd, position, os.SEEK_SET)

    def refuse_if_changed(self) -> None:
        """Raises BadFileError where the file is not as it was when it was opened."""
        shape = Shape.of(os.fstat(self._fd))
        if shape != self.shape:
            raise BadFileError(
                f"it was changed while it was read: it had {self.shape.size} bytes, now {shape.size}"
                if shape.size != self.shape.size
                else "it was written to while it was read"
            )

    def close(self) -> None:
        """Lets go of the file."""
        os.close(self._fd)


class Content:
    """What is in a file, from its beginning; the end of its name tells how it is compressed.

    Attributes:
        position: How many bytes of the content were read or passed over.
        head: Its first bytes, as many as tell the order of bytes.
    """

    def __init__(self, file: SpoolFile) -> None:
        self._file = file
        self._stream = _stream_of(file)
        self._early = self.head = self._read_whole(_ORDER_BYTES)
        self.position = 0

    def read(self, size: int) -> bytes:
        """The next bytes: so many, fewer only at the end.

        Raises:
            BadFileError: The file is broken, or has changed.
        """
        early, self._early = self._early[:size], self._early[size:]
        data = early + self._read_whole(size - len(early))
        self.position += len(data)
        return data

    def skip_to(self, position: int) -> None:
        """Passes over what comes before a position; compressed content has to be read for it."""
        if self._stream is self._file:
            self._file.seek(position)
            self._early = b""
            self.position = position
            return
        while self.position < position and self.read(min(position - self.position, _READ_BYTES)):
            pass

    def _read_whole(self, size: int) -> bytes:
        pieces = []
        while size and (piece := self._stream.read(size)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes:
        """The next bytes, so many at most; none at the end."""


def _stream_of(file: SpoolFile) -> _Stream:
    name = file.path.name.lower()
    if name.endswith(".gz"):
        return _Gzip(file)
    if name.endswith((".zst", ".zstd")):
        return _Zstd(file)
    return file


class _Gzip:
    def __init__(self, file: SpoolFile) -> None:
        self._stream = gzip.GzipFile(fileobj=file, mode="rb")

    def read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise BadFileError(f"it is not whole gzip: {error}") from None


class _Zstd:
    """Frames one after another.

    The library's own stream takes a file that ends in the middle of a frame for whole.
    """

    def __init__(self, file: SpoolFile) -> None:
        self._file = file
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._compressed = memoryview(b"")
        self._content = b""

    def read(self, size: int) -> bytes:
        while not self._content:
            if not self._compressed:
                self._compressed = memoryview(self._file.read(_READ_BYTES))
            if not self._compressed:
                if self._frame is not None:
                    raise BadFileError("it is not whole Zstandard: it ends in the middle")
                return b""
            self._content = self._decompress_some()
        data, self._content = self._content[:size], self._content[size:]
        return data

    def _decompress_some(self) -> bytes:
        frame = self._frame or self._decompressor.decompressobj()
        some = self._compressed[:_ZSTD_INPUT_BYTES]
        try:
            content = frame.decompress(some)
        except zstandard.ZstdError as error:
            raise BadFileError(f"it is not whole Zstandard: {error}") from None
        self._compressed = self._compressed[len(some) - len(frame.unused_data) :]
        self._frame = None if frame.eof else frame
        return content
