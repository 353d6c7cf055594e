"""How a file is known again: by parts of what it holds."""

import errno
import hashlib
import os
from dataclasses import dataclass
from typing import NamedTuple

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
