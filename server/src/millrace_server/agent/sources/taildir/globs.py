"""Finds files by patterns of their paths."""

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from fnmatch import translate
from pathlib import Path
from typing import NamedTuple

from millrace_server.agent.sources.taildir.fingerprints import FileKey

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
