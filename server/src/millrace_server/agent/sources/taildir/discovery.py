"""Finds files by patterns of their paths."""

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
from millrace_server.agent.sources.taildir.config import TaildirSourceConfig
from millrace_server.agent.sources.taildir.positions import (
    HEAD_BYTES_MAX,
    TAIL_BYTES_MAX,
    FileKey,
    FilePosition,
    Fingerprint,
    open_file,
    producer_id,
)

_MAGIC = re.compile(r"[*?\[]")
_ANY_DIRECTORIES = "**"


class FoundFile(NamedTuple):
    """A regular file that a pattern has found."""

    path: str
    status: os.stat_result
    pattern: str


class PathPatterns:
    """Finds the files that match some patterns and none of others.

    Args:
        patterns: Paths in which `*`, `?` and `[...]` stand for parts of a name, and `**` for any directories. A
            relative path begins at the working directory.
        exclude: Patterns of names, or with a slash of whole paths, that are left out.
        on_trouble: Called with a directory or file that could not be looked at, and why.
    """

    def __init__(
        self, patterns: Sequence[str], exclude: Sequence[str], on_trouble: Callable[[str, OSError], None]
    ) -> None:
        self._patterns = patterns
        self._excluded_names = [re.compile(translate(each)) for each in exclude if "/" not in each]
        self._excluded_paths = [re.compile(translate(each)) for each in exclude if "/" in each]
        self._on_trouble = on_trouble

    def find(self) -> Iterator[FoundFile]:
        """All files that are there now, each path once, under the first pattern that finds it."""
        seen: set[str] = set()
        for pattern in self._patterns:
            parts = [part for part in str(Path.cwd() / pattern).split("/") if part]
            if parts[-1:] == [_ANY_DIRECTORIES]:
                parts.append("*")
            # Sorted, so that of a file with several names the same one counts each time.
            for path in sorted(self._expand("/", parts)):
                if path not in seen and not self._is_excluded(path):
                    seen.add(path)
                    status = self._look_at(path)
                    if status is not None:
                        yield FoundFile(path, status, pattern)

    def _expand(self, directory: str, parts: Sequence[str]) -> Iterator[str]:
        part, rest = parts[0], parts[1:]
        if part == _ANY_DIRECTORIES:
            yield from self._expand(directory, rest)
            for entry in self._entries(directory):
                # Links may lead in circles.
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    yield from self._expand(entry.path, parts)
        elif not _MAGIC.search(part):
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
            self._on_trouble(directory, error)
            return []

    def _look_at(self, path: str) -> os.stat_result | None:
        try:
            status = Path(path).stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._on_trouble(path, error)
            return None
        return status if stat.S_ISREG(status.st_mode) else None

    def _is_excluded(self, path: str) -> bool:
        name = path.rpartition("/")[2]
        return any(pattern.match(name) for pattern in self._excluded_names) or any(
            pattern.match(path) for pattern in self._excluded_paths
        )


class Directories:
    """Finds files in directories by their inodes; looks into each directory once, so it is for one moment."""

    def __init__(self) -> None:
        self._paths: dict[Path, dict[int, str]] = {}

    def place_of(self, key: FileKey, directory: Path) -> str | None:
        """Where in a directory a file is; None where it is not."""
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
