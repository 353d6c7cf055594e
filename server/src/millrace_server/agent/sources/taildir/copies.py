"""Copies of files that are then truncated, as with `copytruncate` of logrotate.

Data that was written between the last read and the copying is only in the copy, which also contains everything that was
read before. So the copy is treated as the renamed file, and the truncated file as a new one. A copy that ends before
the position up to which its original was read contains nothing new.
"""

import os
from collections.abc import Container, Sequence
from pathlib import Path
from typing import NamedTuple

from millrace_server.agent.sources.taildir.discovery import FoundFile
from millrace_server.agent.sources.taildir.positions import HEAD_BYTES_MAX, FileKey, Fingerprint, opened_file

HOLD_SECONDS = 10.0
"""A file that may be a copy is read once it has not grown for this long while its original still exists."""

_COMMON_BYTES_MIN = 16
"""Files that have fewer bytes in common are not considered copies."""

_SCANS_MAX = 4
"""How often to list a directory again whose files are being renamed in the meantime."""


class FileCopy(NamedTuple):
    """A copy of a file."""

    place: str
    key: FileKey
    size: int


class CopyOrigin(NamedTuple):
    """A file that others may be copies of."""

    place: str
    head: Fingerprint
    read_fingerprints: Sequence[Fingerprint]
    """Fingerprints of the bytes before some of the positions up to which it was read."""
    size_max: int
    """Its largest known size."""

    @property
    def is_distinct(self) -> bool:
        """Whether it has enough content to be recognized."""
        return self.head.start == 0 and self.head.size >= _COMMON_BYTES_MIN

    def contains_all_of(self, size: int) -> bool:
        """Whether it was read beyond the end of a file of this size."""
        return size < self.read_fingerprints[-1].end

    def fingerprint_within(self, size: int) -> Fingerprint:
        """Returns the last fingerprint that is within a file of this size; that of the head if there is no other."""
        return next((each for each in reversed(self.read_fingerprints) if self.head.end < each.end <= size), self.head)


class CopyOrigins:
    """Files that others may be copies of, at a point in time."""

    def __init__(self) -> None:
        self._origins: dict[tuple[Path, int, str], list[CopyOrigin]] = {}
        self._head_sizes: dict[Path, set[int]] = {}

    def add(self, origin: CopyOrigin) -> None:
        if origin.is_distinct:
            head, directory = origin.head, Path(origin.place).parent
            self._head_sizes.setdefault(directory, set()).add(head.size)
            self._origins.setdefault((directory, head.size, head.digest), []).append(origin)

    def of(self, found: FoundFile) -> CopyOrigin | None:
        """Returns a file in the same directory whose content is the same up to the shorter length; or None."""
        place = os.path.realpath(found.path)
        directory = Path(place).parent
        head_sizes = self._head_sizes.get(directory)
        if not head_sizes:
            return None
        with opened_file(place, FileKey.of(found.status)) as descriptor:
            beginning = os.pread(descriptor, HEAD_BYTES_MAX, 0)
            for size in head_sizes:
                # A copy is not recognized while it is shorter than the head.
                if size <= len(beginning):
                    head = Fingerprint.of(0, beginning[:size])
                    for origin in self._origins.get((directory, size, head.digest), ()):
                        if origin.fingerprint_within(found.status.st_size).matches_file(descriptor):
                            return origin
        return None


class CopyDetector:
    """Detects new files that may be copies of tailed files, and holds them back until this is certain."""

    def __init__(self) -> None:
        self._held: dict[FileKey, _Held] = {}
        self._read: dict[FileKey, int] = {}

    def is_held(self, found: FoundFile, origins: CopyOrigins, now: float) -> bool:
        key = FileKey.of(found.status)
        origin = origins.of(found)
        if origin is None:
            self._held.pop(key, None)
            return False
        size = found.status.st_size
        held = self._held.get(key)
        if held is None or (held.size != size and size <= origin.size_max):
            # Copying a large file takes time. A file that grows beyond its original is not a copy.
            held = self._held[key] = _Held(size, now)
        return now - held.since < HOLD_SECONDS

    def mark_read(self, copy: FileCopy) -> None:
        """Records that the content of a copy was already read in its original, which no longer exists."""
        self._read[copy.key] = copy.size

    def read_bytes(self, key: FileKey) -> int:
        """Returns how much of a new file was read in its original."""
        return self._read.get(key, 0)

    def retain(self, found: Container[FileKey]) -> None:
        self._held = {key: held for key, held in self._held.items() if key in found}
        self._read = {key: size for key, size in self._read.items() if key in found}


class _Held(NamedTuple):
    size: int
    since: float


def find_copy(origin: CopyOrigin, tailed: Container[FileKey]) -> FileCopy | None:
    """Returns the newest copy of a file that is not tailed, or None.

    The copy is in the same directory, and its name begins like that of the file. It may lack data that was read: that
    written after the copy was made.
    """
    if not origin.is_distinct:
        return None
    for _ in range(_SCANS_MAX):
        try:
            for copy in _candidates(origin, tailed):
                if _is_copy(copy, origin):
                    return copy
        except FileNotFoundError:
            # Files were renamed between the listing and the check, so the copy may have another name now.
            continue
        except OSError:
            return None
        return None
    return None


def _candidates(origin: CopyOrigin, tailed: Container[FileKey]) -> list[FileCopy]:
    """Returns files that may be copies, the newest first."""
    directory = Path(origin.place).parent
    stem = Path(origin.place).name.partition(".")[0]
    candidates = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(stem) and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                copy = FileCopy(entry.path, FileKey.of(status), status.st_size)
                if copy.key not in tailed:
                    candidates.append((status.st_ctime_ns, copy))
    return [copy for _, copy in sorted(candidates, reverse=True)]


def _is_copy(copy: FileCopy, origin: CopyOrigin) -> bool:
    fingerprint = origin.fingerprint_within(copy.size)
    # A copy without new data will not be read, for which a short common head is too little evidence.
    if origin.contains_all_of(copy.size) and fingerprint is origin.head and fingerprint.size < HEAD_BYTES_MAX:
        return False
    try:
        with opened_file(copy.place, copy.key) as descriptor:
            return origin.head.matches_file(descriptor) and fingerprint.matches_file(descriptor)
    except FileNotFoundError:
        raise
    except OSError:
        # An unreadable copy cannot be used.
        return False
