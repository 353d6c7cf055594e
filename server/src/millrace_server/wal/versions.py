"""Format versions of a channel's files, by which earlier programs tell whether they can read them."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from millrace_server.wal import checkpoints
from millrace_server.wal import format as segment_format
from millrace_server.wal.segments import SEGMENT_NAME

# Segments and checkpoints begin alike, in all versions.
_BEGINNING = struct.Struct("<8sH")


class FileVersions(NamedTuple):
    """The format versions of a channel's newest segment and checkpoint; 0 where there is none."""

    segment: int
    checkpoint: int

    @property
    def is_known(self) -> bool:
        """Whether this program reads both."""
        return self.segment <= segment_format.VERSION and self.checkpoint <= checkpoints.VERSION

    @property
    def is_earlier(self) -> bool:
        """Whether an earlier program reads both, and will no longer once this one has written the next file."""
        is_current = self.segment == segment_format.VERSION or self.checkpoint == checkpoints.VERSION
        return self.is_known and not is_current and any(self)


def read_versions(data_dirs: Sequence[Path], checkpoint_dir: Path) -> FileVersions:
    """Reads the versions from the beginnings of two files. A damaged file counts as none.

    Raises:
        OSError: A directory or file cannot be read.
    """
    segments = [path for directory in data_dirs for path in directory.iterdir() if SEGMENT_NAME.fullmatch(path.name)]
    newest = max(segments, key=lambda path: path.name, default=None)
    checkpoint = checkpoint_dir / checkpoints.NEWEST
    return FileVersions(
        _version(newest, segment_format.MAGIC) if newest else 0,
        _version(checkpoint, checkpoints.MAGIC) if checkpoint.exists() else 0,
    )


def _version(path: Path, magic: bytes) -> int:
    with path.open("rb") as file:
        beginning = file.read(_BEGINNING.size)
    if len(beginning) < _BEGINNING.size or not beginning.startswith(magic):
        return 0
    version: int = _BEGINNING.unpack(beginning)[1]
    return version
