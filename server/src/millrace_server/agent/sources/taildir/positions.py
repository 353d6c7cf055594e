"""The positions up to which files were read, and the fingerprints that identify files."""

import errno
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import structlog
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from millrace_server.agent.supervision import ComponentFailedError
from millrace_server.files import make_directories, write_atomically

HEAD_BYTES_MAX = 1024
"""The size of the head of a file that identifies it, as soon as the file has that many bytes."""

TAIL_BYTES_MAX = 256
"""The size of the part before the current position that also identifies a file."""

_DIGEST_BYTES = 16


class FileKey(NamedTuple):
    """Identifies an existing file. Another file may have the same key once this one is deleted."""

    device: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileKey":
        return cls(status.st_dev, status.st_ino)


def open_file(place: str, key: FileKey) -> int:
    """Opens a file for reading if it has this key.

    Raises:
        FileNotFoundError: It is gone, or another file has replaced it.
        OSError: It cannot be opened.
    """
    # If it was replaced by a pipe, opening must not wait for a writer.
    descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if FileKey.of(os.fstat(descriptor)) != key:
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "another file is in its place", place)
    return descriptor


@contextmanager
def opened_file(place: str, key: FileKey) -> Iterator[int]:
    """Opens a file as `open_file` does, and closes it at the end of the context."""
    descriptor = open_file(place, key)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The position and the digest of some bytes of a file."""

    start: int
    size: int
    digest: str

    @classmethod
    def of(cls, start: int, content: bytes) -> "Fingerprint":
        return cls(start, len(content), _digest(content))

    @property
    def end(self) -> int:
        return self.start + self.size

    def matches(self, content: bytes) -> bool:
        return _digest(content) == self.digest

    def matches_file(self, descriptor: int) -> bool:
        """Whether an open file has the same bytes at this position."""
        return self.matches(os.pread(descriptor, self.size, self.start))


def producer_id(source_name: str, key: FileKey, head: Fingerprint, generation: int) -> str:
    """Returns the producer id of a file.

    Each source has its own producer for a file. The head is the one at the time when the file was first found. The
    generation distinguishes successive files with the same key and the same head.
    """
    described = f"{key.device} {key.inode} {head.start} {head.size} {head.digest} {generation}"
    return f"taildir/{source_name}/{_digest(described.encode())}"


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


POSITIONS_FILE = "positions.json"
DAMAGED_SUFFIX = ".damaged"

_FORMAT = "millrace taildir positions"
_VERSION = 1

_log = structlog.stdlib.get_logger(__name__)

_Number = Annotated[int, Field(ge=0)]


class FilePosition(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """The stored state of one file."""

    producer_id: str
    path: str
    """The path under which it was first found."""
    pattern: str
    place: str
    """Its last path, with symbolic links resolved."""
    device: int
    inode: _Number
    position: _Number
    """One past the last byte that all channels have stored."""
    head: Fingerprint
    """Its first bytes."""
    tail: Fingerprint
    """The bytes before the position up to which it was read."""
    is_resting: bool = False
    """Whether it was rotated and read to its end, so that it need not be tailed."""

    @property
    def key(self) -> FileKey:
        """Its key when this was written."""
        return FileKey(self.device, self.inode)


_FILES = TypeAdapter(list[FilePosition])


class PositionsFile:
    """The positions file of one source, in the source's own directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / POSITIONS_FILE

    @property
    def path(self) -> str:
        return str(self._path)

    def load(self) -> list[FilePosition] | None:
        """Returns the saved positions; None if there are none or they are damaged, in which case the file is renamed.

        Raises:
            ComponentFailedError: Another version of the server wrote the file.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return self._decoded(json.loads(content))
        except (ValueError, RecursionError) as error:
            aside = self._path.with_name(POSITIONS_FILE + DAMAGED_SUFFIX)
            self._path.replace(aside)
            _log.warning(
                "the positions file is damaged, and a new one begins", set_aside_as=str(aside), reason=str(error)
            )
            return None

    def save(self, files: Iterable[FilePosition]) -> None:
        """Replaces the saved positions. Once this returns, the new positions survive a power failure."""
        described = [file.model_dump() for file in files]
        content = {"format": _FORMAT, "version": _VERSION, "crc32": _checksum(described), "files": described}
        make_directories(self._path.parent)
        write_atomically(self._path, json.dumps(content, separators=(",", ":")).encode() + b"\n")

    def _decoded(self, content: Any) -> list[FilePosition]:
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f'it does not say that its format is "{_FORMAT}"')
        # The version is checked first: another version may define everything else differently.
        if (version := content.get("version")) != _VERSION:
            raise ComponentFailedError(
                f"{self._path} has version {version!a}, but this server supports only version {_VERSION}; start the "
                "server that wrote it, or move the file away"
            )
        described = content.get("files")
        if content.get("crc32") != _checksum(described):
            raise ValueError("its checksum does not match")
        try:
            return _FILES.validate_python(described)
        except ValidationError as error:
            raise ValueError(f"its entries are invalid: {error.errors()[0]['loc']}") from None


def _checksum(files: object) -> str:
    return format(zlib.crc32(json.dumps(files, separators=(",", ":")).encode()), "08x")
