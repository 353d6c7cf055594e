"""Discovery of files by path patterns, and their identity."""

import errno
import os
import re
import stat
from collections.abc import Callable, Container, Iterator, Sequence
from fnmatch import translate
from itertools import count
from pathlib import Path
from typing import NamedTuple

from millrace_server.agent.lines.charsets import Charset
from millrace_server.agent.sources.stored_ranges import Ranges
from millrace_server.agent.sources.taildir.config import TaildirSourceConfig
from millrace_server.agent.sources.taildir.positions import (
    HEAD_BYTES_MAX,
    TAIL_BYTES_MAX,
    FileKey,
    FilePosition,
    Fingerprint,
    opened_file,
    producer_id,
)

_WILDCARD = re.compile(r"[*?\[]")
_ANY_DIRECTORIES = "**"


class FoundFile(NamedTuple):
    """A regular file that a pattern matches."""

    path: str
    status: os.stat_result
    pattern: str


class PathPatterns:
    """Finds the files that match some patterns and none of the exclusions.

    Args:
        patterns: Paths in which `*`, `?` and `[...]` match parts of a name, and `**` any directories. A relative path
            begins at the working directory.
        exclude: Patterns of names, or of entire paths if they contain a slash.
        on_error: Called with a directory or file that cannot be examined, and the error.
    """

    def __init__(
        self, patterns: Sequence[str], exclude: Sequence[str], on_error: Callable[[str, OSError], None]
    ) -> None:
        self._patterns = patterns
        self._excluded_names = [re.compile(translate(each)) for each in exclude if "/" not in each]
        self._excluded_paths = [re.compile(translate(each)) for each in exclude if "/" in each]
        self._on_error = on_error

    def find(self) -> Iterator[FoundFile]:
        """Yields all existing files, each path once, with the first pattern that matches it."""
        seen: set[str] = set()
        for pattern in self._patterns:
            parts = [part for part in str(Path.cwd() / pattern).split("/") if part]
            if parts[-1:] == [_ANY_DIRECTORIES]:
                parts.append("*")
            # Sorted, so that the same name is always used for a file with several names.
            for path in sorted(self._expand("/", parts)):
                if path not in seen and not self._is_excluded(path):
                    seen.add(path)
                    status = self._status_of(path)
                    if status is not None:
                        yield FoundFile(path, status, pattern)

    def _expand(self, directory: str, parts: Sequence[str]) -> Iterator[str]:
        part, rest = parts[0], parts[1:]
        if part == _ANY_DIRECTORIES:
            yield from self._expand(directory, rest)
            for entry in self._entries(directory):
                # Symbolic links may form cycles.
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    yield from self._expand(entry.path, parts)
        elif not _WILDCARD.search(part):
            path = f"{directory.rstrip('/')}/{part}"
            yield from self._expand(path, rest) if rest else [path]
        else:
            matches = _name_matcher(part)
            for entry in self._entries(directory):
                if matches(entry.name):
                    yield from self._expand(entry.path, rest) if rest else [entry.path]

    def _entries(self, directory: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(directory) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self._on_error(directory, error)
            return []

    def _status_of(self, path: str) -> os.stat_result | None:
        try:
            status = Path(path).stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._on_error(path, error)
            return None
        return status if stat.S_ISREG(status.st_mode) else None

    def _is_excluded(self, path: str) -> bool:
        name = path.rpartition("/")[2]
        return any(pattern.match(name) for pattern in self._excluded_names) or any(
            pattern.match(path) for pattern in self._excluded_paths
        )


class DirectoryIndex:
    """Finds files in directories by their inodes. It reads each directory once, so it must not be kept."""

    def __init__(self) -> None:
        self._paths: dict[Path, dict[int, str]] = {}

    def find(self, key: FileKey, directory: Path) -> str | None:
        if directory not in self._paths:
            try:
                with os.scandir(directory) as entries:
                    self._paths[directory] = {entry.inode(): entry.path for entry in entries}
            except OSError:
                self._paths[directory] = {}
        path = self._paths[directory].get(key.inode)
        try:
            is_it = path is not None and FileKey.of(Path(path).lstat()) == key
        except OSError:
            return None
        return path if is_it else None


def _name_matcher(pattern: str) -> Callable[[str], bool]:
    match = re.compile(translate(pattern)).match
    shows_hidden = pattern.startswith(".")
    return lambda name: match(name) is not None and (shows_hidden or not name.startswith("."))


_HEAD_LENGTHS = (1024, 512, 256, 128, 64, 32, 16)
"""The lengths that the head of a file may have had when it was first found. Shorter heads are not tried, since other
files may begin with the same bytes."""

_LAST_LINE_BYTES_MAX = 64 * 1024
"""How far before the end of a file the beginning of its last line is searched for."""

_BLOCK_BYTES_MAX = 64 * 1024
"""A multiple of the block size of any file system; holes end at multiples of the block size."""

_CHARACTER_BYTES = 4
"""A character of any charset may begin at multiples of this number of bytes."""


class FileIdentifier:
    """Assigns producer ids to files."""

    def __init__(self, config: TaildirSourceConfig, source_name: str, stored_ranges: Callable[[str], Ranges]) -> None:
        self._config = config
        self._source_name = source_name
        self._stored_ranges = stored_ranges

    def identify(
        self, found: FoundFile, known_ids: Container[str], *, has_no_positions: bool, read_bytes: int = 0
    ) -> FilePosition | None:
        """Returns the position of a new file, with an id that is not known yet; None while the file is empty.

        If there are no positions, because the source runs for the first time or its positions were lost, the channels
        are searched for the file. `read_bytes` is how much of it was already read in its original.
        """
        place = os.path.realpath(found.path)
        key = FileKey.of(found.status)
        with opened_file(place, key) as descriptor:
            start = _content_start(descriptor)
            content = b"" if start is None else os.pread(descriptor, HEAD_BYTES_MAX, start)
            if start is None or not content:
                return None
            identity = self._recover_producer_id(descriptor, key, start, content) if has_no_positions else None
            position = max(start, read_bytes)
            if identity is None and has_no_positions and self._config.skip_to_end:
                position = self._last_line_start(descriptor, content)
            tail_start = max(start, position - TAIL_BYTES_MAX)
            tail = os.pread(descriptor, position - tail_start, tail_start)
        return FilePosition(
            producer_id=identity or self._new_producer_id(key, start, content, known_ids),
            path=found.path,
            pattern=found.pattern,
            place=place,
            device=key.device,
            inode=key.inode,
            position=position,
            head=Fingerprint.of(start, content),
            tail=Fingerprint.of(tail_start, tail),
        )

    def _new_producer_id(self, key: FileKey, start: int, content: bytes, known_ids: Container[str]) -> str:
        # The head may be longer later, so a length is used that seldom changes.
        head = Fingerprint.of(start, content[: 1 << (len(content).bit_length() - 1)])
        for identity in self._candidate_ids(key, head):
            if identity not in known_ids and not any(self._stored_ranges(identity)):
                return identity
        raise AssertionError("there are infinitely many generations")

    def _recover_producer_id(self, descriptor: int, key: FileKey, start: int, content: bytes) -> str | None:
        """Returns the producer id under which the channels know a file, or None."""
        size = os.fstat(descriptor).st_size
        for length in _HEAD_LENGTHS:
            if length > len(content):
                continue
            newest = None
            for identity in self._candidate_ids(key, Fingerprint.of(start, content[:length])):
                stored_ranges = self._stored_ranges(identity)
                if not any(stored_ranges):
                    break
                is_longer = any(last >= size for ranges in stored_ranges for _, last in ranges)
                newest = None if is_longer else identity
            if newest is not None:
                return newest
        return None

    def _candidate_ids(self, key: FileKey, head: Fingerprint) -> Iterator[str]:
        return (producer_id(self._source_name, key, head, generation) for generation in count())

    def _last_line_start(self, descriptor: int, head: bytes) -> int:
        """Returns the position of the unfinished last line; the end of the file if that line is too long."""
        size = os.fstat(descriptor).st_size
        offset = max(size - _LAST_LINE_BYTES_MAX, 0)
        last = os.pread(descriptor, size - offset, offset)
        lines = Charset.of(self._config.charset, head).split(last, offset)
        return offset + len(last) - len(lines[-1]) if len(lines) > 1 or offset == 0 else size


def _content_start(descriptor: int) -> int | None:
    """Returns where the content of a file begins, or None if there is none yet.

    It follows a hole if a writer continued at its former position after the file was truncated.
    """
    try:
        offset = os.lseek(descriptor, 0, os.SEEK_DATA)
    except OSError as error:
        # A file system without support for holes has no holes.
        return None if error.errno == errno.ENXIO else 0
    if offset == 0:
        return 0
    beginning = os.pread(descriptor, _BLOCK_BYTES_MAX, offset)
    offset += len(beginning) - len(beginning.lstrip(b"\0"))
    # The first byte of a character may itself be zero.
    return offset - offset % _CHARACTER_BYTES
