"""What a file is when it is seen for the first time."""

import errno
import os
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import count

from millrace_server.agent.lines.charsets import Charset
from millrace_server.agent.sources.taildir.config import TaildirSourceConfig
from millrace_server.agent.sources.taildir.fingerprints import (
    HEAD_BYTES_MAX,
    TAIL_BYTES_MAX,
    FileKey,
    Fingerprint,
    open_file,
    producer_id,
)
from millrace_server.agent.sources.taildir.globs import FoundFile
from millrace_server.agent.sources.taildir.positions import FilePosition

AcceptedRanges = Sequence[Sequence[tuple[int, int]]]
"""For each channel the ranges that it has stored of a producer, both ends included."""

_HEAD_LENGTHS = (1024, 512, 256, 128, 64, 32, 16)
"""What the head of a file that the channels may know was when it was first seen. Shorter ones are not tried: other
files may begin so too."""

_LAST_LINE_BYTES_MAX = 64 * 1024
"""So far from a file's end the beginning of its last line is looked for."""

_BLOCK_BYTES_MAX = 64 * 1024
"""No file system has holes that end elsewhere than at a multiple of some smaller number."""

_CHARACTER_BYTES = 4
"""In every charset a character may begin at its multiples."""


class FirstSight:
    """Gives files their identity.

    Args:
        config: The source's.
        source_name: The source's.
        accepted: What the channels have stored of a producer.
    """

    def __init__(
        self, config: TaildirSourceConfig, source_name: str, accepted: Callable[[str], AcceptedRanges]
    ) -> None:
        self._config = config
        self._source_name = source_name
        self._accepted = accepted

    def identify(
        self, found: FoundFile, known_ids: Container[str], *, is_all_unknown: bool, read_bytes: int = 0
    ) -> FilePosition | None:
        """What is to be kept of a file; None while it is empty.

        Args:
            found: The file.
            known_ids: Producers that it is not, whatever they have in common.
            is_all_unknown: Nothing is kept of any file: the source runs for the first time, or what was kept is lost.
                So the channels are asked whether they know it.
            read_bytes: So much of it was read elsewhere.

        Raises:
            OSError: It cannot be read, or another file is in its place by now.
        """
        place = os.path.realpath(found.path)
        key = FileKey.of(found.status)
        descriptor = open_file(place, key)
        try:
            start = _first_byte(descriptor)
            content = b"" if start is None else os.pread(descriptor, HEAD_BYTES_MAX, start)
            if start is None or not content:
                return None
            identity = self._recovered(descriptor, key, start, content) if is_all_unknown else None
            position = max(start, read_bytes)
            if identity is None and is_all_unknown and self._config.skip_to_end:
                position = self._last_line_start(descriptor, content)
            tail_start = max(start, position - TAIL_BYTES_MAX)
            tail = os.pread(descriptor, position - tail_start, tail_start)
        finally:
            os.close(descriptor)
        return FilePosition(
            producer_id=identity or self._minted(key, start, content, known_ids),
            path=found.path,
            pattern=found.pattern,
            place=place,
            device=key.device,
            inode=key.inode,
            position=position,
            head=Fingerprint.of(start, content),
            tail=Fingerprint.of(tail_start, tail),
        )

    def _minted(self, key: FileKey, start: int, content: bytes, known_ids: Container[str]) -> str:
        # A later look may find a longer head, so a length is taken that few looks differ in.
        head = Fingerprint.of(start, content[: 1 << (len(content).bit_length() - 1)])
        for identity in self._identities(key, head):
            if identity not in known_ids and not any(self._accepted(identity)):
                return identity
        raise AssertionError("generations do not end")

    def _recovered(self, descriptor: int, key: FileKey, start: int, content: bytes) -> str | None:
        """The producer that the channels know a file by; None where they know none."""
        size = os.fstat(descriptor).st_size
        for length in _HEAD_LENGTHS:
            if length > len(content):
                continue
            newest = None
            for identity in self._identities(key, Fingerprint.of(start, content[:length])):
                accepted = self._accepted(identity)
                if not any(accepted):
                    break
                is_longer = any(last >= size for ranges in accepted for _, last in ranges)
                newest = None if is_longer else identity
            if newest is not None:
                return newest
        return None

    def _identities(self, key: FileKey, head: Fingerprint) -> Iterator[str]:
        return (producer_id(self._source_name, key, head, generation) for generation in count())

    def _last_line_start(self, descriptor: int, head: bytes) -> int:
        """Where the last line begins that is not finished; the file's end where that is too far away."""
        size = os.fstat(descriptor).st_size
        offset = max(size - _LAST_LINE_BYTES_MAX, 0)
        last = os.pread(descriptor, size - offset, offset)
        lines = Charset.of(self._config.charset, head).split(last, offset)
        return offset + len(last) - len(lines[-1]) if len(lines) > 1 or offset == 0 else size


def _first_byte(descriptor: int) -> int | None:
    """Where a file's content begins: after a hole that its writer left when it went on at its old place.

    Returns:
        None where there is none yet.
    """
    try:
        offset = os.lseek(descriptor, 0, os.SEEK_DATA)
    except OSError as error:
        # A file system that knows no holes shows none either.
        return None if error.errno == errno.ENXIO else 0
    if offset == 0:
        return 0
    beginning = os.pread(descriptor, _BLOCK_BYTES_MAX, offset)
    offset += len(beginning) - len(beginning.lstrip(b"\0"))
    # The first byte of a character may be a zero itself.
    return offset - offset % _CHARACTER_BYTES
