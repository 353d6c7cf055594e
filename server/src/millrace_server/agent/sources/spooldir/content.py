"""The decompressed content of a file."""

import errno
import gzip
import hashlib
import os
import stat
import zlib
from pathlib import Path

import zstandard

from millrace_server.agent.lines.charsets import BOM_BYTES_MAX
from millrace_server.agent.sources.spooldir.scanner import FileStatus, FoundFile

_HEAD_BYTES = 4096
_READ_BYTES = 1 << 18
_ZSTD_INPUT_BYTES = 1024
"""Any input of this size decompresses to at most 32 MiB."""


class BadFileError(Exception):
    """Raised when a file cannot be used; the message says why."""


class FileGoneError(Exception):
    """Raised when a file no longer exists or has changed; the next scan finds its successor."""


class SpoolFile:
    """A file that is being read.

    Attributes:
        status: Its status, which must not change until all of it is read.
        head: Its first bytes.
    """

    def __init__(self, path: Path, fd: int) -> None:
        status = os.fstat(fd)
        self._fd = fd
        self.path = path
        self.status = FileStatus.of(status)
        self.head = os.pread(fd, _HEAD_BYTES, 0)
        # Without the device, whose number may change when the machine restarts. The change time of the inode
        # distinguishes a file from a deleted one with the same inode and the same modification time.
        self._identity = (*self.status, status.st_ctime_ns)

    @classmethod
    def open(cls, found: FoundFile) -> "SpoolFile":
        """Opens a file. Raises FileGoneError if it is gone or has changed, BadFileError if reading is not permitted."""
        try:
            # If it was replaced by a pipe, opening must not wait for a writer.
            fd = os.open(found.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise FileGoneError from None
        except PermissionError as error:
            raise BadFileError(f"it cannot be read: {error.strerror}") from None
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENXIO}:
                raise FileGoneError from None
            raise
        try:
            file = cls(found.path, fd)
        except BaseException:
            os.close(fd)
            raise
        if file.status != found.status or not stat.S_ISREG(os.fstat(fd).st_mode):
            file.close()
            raise FileGoneError
        return file

    def producer_id(self, kind: str) -> str:
        """Returns the producer id with which channels remember what they have stored of this file in this format."""
        digest = hashlib.sha256(f"{kind} {self._identity} ".encode() + self.head)
        return f"spooldir/{digest.hexdigest()[:40]}"

    def read(self, size: int) -> bytes:
        """Returns the next bytes, not decompressed; nothing at the end."""
        data = os.read(self._fd, size)
        self.check_unchanged()
        return data

    def seek(self, position: int) -> None:
        os.lseek(self._fd, position, os.SEEK_SET)

    def check_unchanged(self) -> None:
        """Raises BadFileError if the file has changed since it was opened."""
        status = FileStatus.of(os.fstat(self._fd))
        if status != self.status:
            raise BadFileError(
                f"it was changed while it was read: it had {self.status.size} bytes, now {status.size}"
                if status.size != self.status.size
                else "it was written to while it was read"
            )

    def close(self) -> None:
        os.close(self._fd)


class Content:
    """The decompressed content of a file; the suffix of its name determines the compression.

    Attributes:
        position: The position of the next byte of the content.
        head: Its first bytes, enough for a byte order mark.
    """

    def __init__(self, file: SpoolFile) -> None:
        self._file = file
        self._stream = _stream_of(file)
        self._read_ahead = self.head = self._read_full(BOM_BYTES_MAX)
        self.position = 0

    def read(self, size: int) -> bytes:
        """Returns the next `size` bytes; fewer only at the end. Raises BadFileError if it is damaged or has changed."""
        early, self._read_ahead = self._read_ahead[:size], self._read_ahead[size:]
        data = early + self._read_full(size - len(early))
        self.position += len(data)
        return data

    def skip_to(self, position: int) -> None:
        """Skips to a position, for which compressed content must be read."""
        if self._stream is self._file:
            self._file.seek(position)
            self._read_ahead = b""
            self.position = position
            return
        while self.position < position and self.read(min(position - self.position, _READ_BYTES)):
            pass

    def _read_full(self, size: int) -> bytes:
        chunks = []
        while size and (chunk := self._stream.read(size)):
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)


def _stream_of(file: SpoolFile) -> "SpoolFile | _Gzip | _Zstd":
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
            raise BadFileError(f"it is truncated or not valid gzip: {error}") from None


class _Zstd:
    """Reads consecutive frames. The library's own stream would accept a file that ends in the middle of a frame."""

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
                    raise BadFileError("it is truncated or not valid Zstandard: it ends in the middle")
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
            raise BadFileError(f"it is truncated or not valid Zstandard: {error}") from None
        self._compressed = self._compressed[len(some) - len(frame.unused_data) :]
        self._frame = None if frame.eof else frame
        return content
