"""Copies of files that are cut short afterwards: rotation by copying.

Whoever rotates so copies a file and then cuts it short. What was written between the last read and the copying is in
the copy alone, and all that was read before is in it too. So the copy is taken for what the file was, and the file for
a new one: as if the one had been renamed, and the other one made. A copy that ends before the place up to which its
original was read holds nothing new.
"""

import os
from collections.abc import Container, Sequence
from pathlib import Path
from typing import NamedTuple

from millrace_server.agent.sources.taildir.discovery import FoundFile
from millrace_server.agent.sources.taildir.positions import HEAD_BYTES_MAX, FileKey, Fingerprint, open_file

HOLD_SECONDS = 10.0
"""A file that may be a copy is read all the same once it has not grown for so long and its original is still there."""

_EVIDENCE_BYTES_MIN = 16
"""Files that have less in common than this are not taken for copies."""

_LOOKS_MAX = 4
"""So often a directory is listed whose names are being shifted meanwhile."""


class Copy(NamedTuple):
    """A copy of a file."""

    place: str
    key: FileKey
    size: int


class Original(NamedTuple):
    """A file of which others may be copies."""

    place: str
    head: Fingerprint
    landmarks: Sequence[Fingerprint]
    """What lies before some of the places up to which it was read."""
    size_max: int
    """The largest size that it was seen with."""

    @property
    def is_distinct(self) -> bool:
        """Whether there is enough in it to be known by."""
        return self.head.start == 0 and self.head.size >= _EVIDENCE_BYTES_MIN

    def holds_all_of(self, size: int) -> bool:
        """Whether it was read as far as a file of this size goes, and farther."""
        return size < self.landmarks[-1].end

    def landmark_within(self, size: int) -> Fingerprint:
        """The last place by which it is known in a file of this size; its beginning where there is no other."""
        return next((each for each in reversed(self.landmarks) if self.head.end < each.end <= size), self.head)


class Originals:
    """Files of which others may be copies, as they are at one moment."""

    def __init__(self) -> None:
        self._originals: dict[tuple[Path, int, str], list[Original]] = {}
        self._head_sizes: dict[Path, set[int]] = {}

    def add(self, original: Original) -> None:
        """One more, unless there is too little in it to be known by."""
        if original.is_distinct:
            head, directory = original.head, Path(original.place).parent
            self._head_sizes.setdefault(directory, set()).add(head.size)
            self._originals.setdefault((directory, head.size, head.digest), []).append(original)

    def of(self, found: FoundFile) -> Original | None:
        """One in the same directory that a file is the same as, as far as both go.

        Raises:
            OSError: The file cannot be read.
        """
        place = os.path.realpath(found.path)
        directory = Path(place).parent
        head_sizes = self._head_sizes.get(directory)
        if not head_sizes:
            return None
        descriptor = open_file(place, FileKey.of(found.status))
        try:
            beginning = os.pread(descriptor, HEAD_BYTES_MAX, 0)
            for size in head_sizes:
                # A shorter beginning would need what it is compared with, and nobody copies in such small steps.
                if size <= len(beginning):
                    head = Fingerprint.of(0, beginning[:size])
                    for original in self._originals.get((directory, size, head.digest), ()):
                        if original.landmark_within(found.status.st_size).is_found_in(descriptor):
                            return original
        finally:
            os.close(descriptor)
        return None


class CopyWatch:
    """Knows what new files may be copies of files that are tailed, and holds them back until that is clear."""

    def __init__(self) -> None:
        self._held: dict[FileKey, _Held] = {}
        self._read: dict[FileKey, int] = {}

    def holds(self, found: FoundFile, originals: Originals, now: float) -> bool:
        """Whether a file that was found is not to be read yet.

        Raises:
            OSError: It cannot be read.
        """
        key = FileKey.of(found.status)
        original = originals.of(found)
        if original is None:
            self._held.pop(key, None)
            return False
        size = found.status.st_size
        held = self._held.get(key)
        if held is None or (held.size != size and size <= original.size_max):
            # Copying a large file takes its time. What grows beyond its original is no copy.
            held = self._held[key] = _Held(size, now)
        return now - held.since < HOLD_SECONDS

    def note_read(self, copy: Copy) -> None:
        """All that a copy holds was read in its original, which is gone."""
        self._read[copy.key] = copy.size

    def read_bytes(self, key: FileKey) -> int:
        """How much of a new file was read in its original."""
        return self._read.get(key, 0)

    def forget_all_but(self, found: Container[FileKey]) -> None:
        """Forgets files that are gone."""
        self._held = {key: held for key, held in self._held.items() if key in found}
        self._read = {key: size for key, size in self._read.items() if key in found}


class _Held(NamedTuple):
    size: int
    since: float


def find_copy(original: Original, tailed: Container[FileKey]) -> Copy | None:
    """The newest copy of a file that is not tailed; None where there is none.

    It is in the file's directory, under a name that begins as the file's does. It need not hold all that was read of
    the file: what was written after the copy was made may have been read too.
    """
    if not original.is_distinct:
        return None
    for _ in range(_LOOKS_MAX):
        try:
            for copy in _candidates(original, tailed):
                if _is_copy(copy, original):
                    return copy
        except FileNotFoundError:
            # Names were shifted between the listing and the look: the copy is there, under another one.
            continue
        except OSError:
            return None
        return None
    return None


def _candidates(original: Original, tailed: Container[FileKey]) -> list[Copy]:
    """Files that may be copies, the newest first."""
    directory = Path(original.place).parent
    stem = Path(original.place).name.partition(".")[0]
    candidates = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(stem) and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                copy = Copy(entry.path, FileKey.of(status), status.st_size)
                if copy.key not in tailed:
                    candidates.append((status.st_ctime_ns, copy))
    return [copy for _, copy in sorted(candidates, reverse=True)]


def _is_copy(copy: Copy, original: Original) -> bool:
    landmark = original.landmark_within(copy.size)
    # Of a copy that holds nothing new nothing will be read: a short beginning in common is too little for that.
    if original.holds_all_of(copy.size) and landmark is original.head and landmark.size < HEAD_BYTES_MAX:
        return False
    try:
        descriptor = open_file(copy.place, copy.key)
        try:
            return original.head.is_found_in(descriptor) and landmark.is_found_in(descriptor)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise
    except OSError:
        # Nobody may read it: then it is no help.
        return False
