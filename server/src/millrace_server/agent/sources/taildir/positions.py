"""How a file is known again: by parts of what it holds."""

import errno
import hashlib
import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import structlog
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from millrace_server.agent.supervision import ComponentFailedError
from millrace_server.files import make_directories, write_atomically

HEAD_BYTES_MAX = 1024
"""A file is known by so many bytes of its beginning, once it has them."""

TAIL_BYTES_MAX = 256
"""And by so many bytes before the place where it was read last."""

_DIGEST_BYTES = 16


class FileKey(NamedTuple):
    """Which file of those that are there now; another file may have the same key once this one is gone."""

    device: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileKey":
        """The key of the file that has this status."""
        return cls(status.st_dev, status.st_ino)


def open_file(place: str, key: FileKey) -> int:
    """Opens a file for reading, if it is the one that is meant.

    Raises:
        FileNotFoundError: It is gone, or another one is in its place.
        OSError: It cannot be opened.
    """
    # Were it a pipe by now, opening it must not wait for a writer.
    descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if FileKey.of(os.fstat(descriptor)) != key:
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "another file is in its place", place)
    return descriptor


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What some bytes of a file were.

    Attributes:
        start: Where they begin.
        size: How many.
        digest: Their digest, in hexadecimal digits.
    """

    start: int
    size: int
    digest: str

    @classmethod
    def of(cls, start: int, content: bytes) -> "Fingerprint":
        """The fingerprint of these bytes."""
        return cls(start, len(content), _digest(content))

    @property
    def end(self) -> int:
        """One past the last of the bytes."""
        return self.start + self.size

    def matches(self, content: bytes) -> bool:
        """Whether these bytes, which lie there now, are the same."""
        return _digest(content) == self.digest

    def is_found_in(self, descriptor: int) -> bool:
        """Whether an open file has the same bytes there.

        Raises:
            OSError: It cannot be read.
        """
        return self.matches(os.pread(descriptor, self.size, self.start))


def producer_id(source_name: str, key: FileKey, head: Fingerprint, generation: int) -> str:
    """What channels know a file by.

    Args:
        source_name: The source that reads it: another source on the same file is another producer.
        key: The file's.
        head: What it began with when it was first seen.
        generation: Tells files apart that had the same key and the same head, one after another.
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


class FilePosition(BaseModel, frozen=True, extra="forbid"):
    """What is kept of one file."""

    producer_id: str
    """What channels know it by."""
    path: str
    """The path under which it was first seen."""
    pattern: str
    """The pattern that has found it."""
    place: str
    """Where it was last, links resolved."""
    device: int
    inode: _Number
    position: _Number
    """One past the last byte that all channels have stored."""
    head: Fingerprint
    """What it begins with."""
    tail: Fingerprint
    """What lay before the place where it was read last."""
    is_resting: bool = False
    """Whether it was rotated and read to its end: it need not be looked for."""

    @property
    def key(self) -> FileKey:
        """Which file it was when this was written."""
        return FileKey(self.device, self.inode)


_FILES = TypeAdapter(list[FilePosition])


class PositionsFile:
    """Reads and writes the file of one source.

    Args:
        directory: The source's; made where it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / POSITIONS_FILE

    @property
    def path(self) -> str:
        """Where it is."""
        return str(self._path)

    def load(self) -> list[FilePosition] | None:
        """What was saved last; None where nothing was, or where it is damaged: then it is set aside.

        Raises:
            ComponentFailedError: Another version wrote it.
            OSError: It cannot be read.
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
            _log.warning("positions are damaged, and begun anew", set_aside_as=str(aside), reason=str(error))
            return None

    def save(self, files: Iterable[FilePosition]) -> None:
        """Puts these in the place of what was saved. Once this returns, they survive a power cut.

        Raises:
            OSError: What was saved before is still there.
        """
        described = [file.model_dump() for file in files]
        content = {"format": _FORMAT, "version": _VERSION, "crc32": _checksum(described), "files": described}
        make_directories(self._path.parent)
        write_atomically(self._path, json.dumps(content, separators=(",", ":")).encode() + b"\n")

    def _decoded(self, content: Any) -> list[FilePosition]:
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f'it does not say that its format is "{_FORMAT}"')
        # The version comes first: another version may define everything else anew.
        if (version := content.get("version")) != _VERSION:
            raise ComponentFailedError(
                f"{self._path} has version {version!a}, and this server knows version {_VERSION} only; start the "
                "server that wrote it, or move the file away"
            )
        described = content.get("files")
        if content.get("crc32") != _checksum(described):
            raise ValueError("its checksum does not match")
        try:
            return _FILES.validate_python(described)
        except ValidationError as error:
            raise ValueError(f"its files are not described as they must be: {error.errors()[0]['loc']}") from None


def _checksum(files: object) -> str:
    return format(zlib.crc32(json.dumps(files, separators=(",", ":")).encode()), "08x")
