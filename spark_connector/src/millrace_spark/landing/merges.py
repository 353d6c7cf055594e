"""Which small files are merged into larger ones."""

import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pydantic import BaseModel, Field

from millrace_spark.landing.names import is_landed
from millrace_spark.landing.storage import StoredFile

MIB = 1024 * 1024
FILES_MAX = 1_000
"""One merge reads at most so many files, so that what is to be done again after a crash stays bounded."""


class CompactionLimits(BaseModel, frozen=True, extra="forbid"):
    """When files are merged, and up to which size."""

    target_bytes: int = Field(128 * MIB, ge=1, le=1 << 40)
    """Files are merged until they are about so large; what has at least half of it is left alone."""

    files_min: int = Field(8, ge=2, le=1_000_000)
    """A partition's small files are merged when there are so many of them."""

    quiet_seconds: float = Field(600.0, ge=0, le=31_536_000, allow_inf_nan=False)
    """A partition is left alone until nothing has come into it for so long."""


class Merge(NamedTuple):
    """Files of one folder that become one file."""

    folder: str
    files: tuple[StoredFile, ...]

    @property
    def size_bytes(self) -> int:
        """How large they are together."""
        return sum(file.size_bytes for file in self.files)


def plan_merges(files: Iterable[StoredFile], limits: CompactionLimits, now_seconds: float) -> list[Merge]:
    """Finds what is to be merged.

    A file that is half as large as it should be is never read
    again, so each row is merged a few times in its life, however many batches there are.

    Args:
        files: All files of the landed folder; those with names of others are left alone.
        limits: When, and up to which size.
        now_seconds: The time, in seconds since 1970.
    """
    folders = defaultdict(list)
    for file in files:
        folder, name = posixpath.split(file.path)
        if is_landed(name):
            folders[folder].append(file)
    return [
        Merge(folder, group)
        for folder, found in sorted(folders.items())
        if max(file.modified_seconds for file in found) + limits.quiet_seconds <= now_seconds
        for group in _groups(sorted(found), limits)
    ]


def _groups(files: Sequence[StoredFile], limits: CompactionLimits) -> Iterator[tuple[StoredFile, ...]]:
    small = [file for file in files if 2 * file.size_bytes < limits.target_bytes]
    if len(small) < limits.files_min:
        return
    group: list[StoredFile] = []
    group_bytes = 0
    for file in small:
        if group and (group_bytes + file.size_bytes > limits.target_bytes or len(group) == FILES_MAX):
            yield from _worthwhile(group)
            group, group_bytes = [], 0
        group.append(file)
        group_bytes += file.size_bytes
    yield from _worthwhile(group)


def _worthwhile(group: list[StoredFile]) -> Iterator[tuple[StoredFile, ...]]:
    if len(group) > 1:
        yield tuple(group)
