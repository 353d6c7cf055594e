"""The scanner, which finds the files in a directory that are to be read."""

import fnmatch
import heapq
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from millrace_server.agent.sources.spooldir.config import SpooldirSourceConfig
from millrace_server.agent.supervision import ComponentError

FILES_MAX = 10_000
"""The maximum number of known files; further ones are found once some of these are completed."""

_MTIME_RESOLUTION_NS = 2 * 10**9
"""If a directory is listed at least this long after its modification time, any later change results in a new
modification time, since no file system has a coarser resolution."""

_FORCED_LIST_SECONDS = 60.0
"""Directories are listed at least this often, since network file systems may update modification times late."""

_IDLE_FACTOR = 9
"""The pause between scans is at least this many times as long as a scan."""

_log = structlog.stdlib.get_logger(__name__)


class FileStatus(NamedTuple):
    """The attributes that show whether a file has changed."""

    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileStatus":
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class FoundFile(NamedTuple):
    """A file to read."""

    path: Path
    status: FileStatus


_ORDERS: dict[str, Callable[[FoundFile], tuple[int, str]]] = {
    "oldest": lambda found: (found.status.modified_ns, str(found.path)),
    "youngest": lambda found: (-found.status.modified_ns, str(found.path)),
    "name": lambda found: (0, str(found.path)),
}


class DirectoryScanner:
    """Finds the files to read, in order.

    While nothing changes, a scan takes one system call per directory, since a directory is listed only when its
    modification time has changed.
    """

    def __init__(self, config: SpooldirSourceConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._includes = _matcher(config.include)
        self._excludes = _matcher(config.exclude)
        # Files with these suffixes or in these directories are completed or bad.
        self._own_suffixes = config.own_suffixes
        self._own_directories = config.own_directories
        self._key = _ORDERS[config.order]
        self._candidates: dict[Path, tuple[FileStatus, float]] = {}
        self._directory_times: dict[Path, int] = {}
        self._unreadable: set[Path] = set()
        self._is_list_certain = False
        self._listed_at = 0.0
        self._scan_seconds = 0.0

    @property
    def pause_seconds(self) -> float:
        now = self._clock()
        settles = [since + self._config.settle_seconds - now for _, since in self._candidates.values()]
        soon = min([self._config.poll_seconds, *(seconds for seconds in settles if seconds > 0)])
        return max(soon, _IDLE_FACTOR * self._scan_seconds)

    def scan(self) -> list[FoundFile]:
        """Returns the files that have not changed for long enough, in order, at most `FILES_MAX`."""
        began = self._clock()
        found = self._list() if self._must_list() else self._recheck()
        now = self._clock()
        candidates = {}
        for path, status in found:
            known = self._candidates.get(path)
            candidates[path] = known if known is not None and known[0] == status else (status, now)
        self._candidates = candidates
        settled = [
            FoundFile(path, status)
            for path, (status, since) in candidates.items()
            if now - since >= self._config.settle_seconds
        ]
        self._scan_seconds = self._clock() - began
        return sorted(settled, key=self._key)

    def _must_list(self) -> bool:
        if not self._is_list_certain or self._clock() - self._listed_at >= _FORCED_LIST_SECONDS:
            return True
        try:
            return any(
                directory.stat().st_mtime_ns != modified_ns for directory, modified_ns in self._directory_times.items()
            )
        except OSError:
            return True

    def _recheck(self) -> Iterator[FoundFile]:
        for path in self._candidates:
            with suppress(OSError):
                yield FoundFile(path, FileStatus.of(path.lstat()))

    def _list(self) -> list[FoundFile]:
        self._directory_times = {}
        self._is_list_certain = True
        self._listed_at = self._clock()
        found = heapq.nsmallest(FILES_MAX + 1, self._files(), key=self._key)
        if len(found) > FILES_MAX:
            self._is_list_certain = False
            found.pop()
        return found

    def _files(self) -> Iterator[FoundFile]:
        pending = [self._config.directory]
        while pending:
            directory = pending.pop()
            try:
                yield from self._files_in(directory, pending)
            except OSError as error:
                if directory == self._config.directory:
                    raise ComponentError(f"{directory} cannot be read: {error.strerror}") from None
                self._log_unreadable(directory, error)

    def _files_in(self, directory: Path, pending: list[Path]) -> Iterator[FoundFile]:
        # Read before listing, so that changes during the listing result in another time.
        modified_ns = directory.stat().st_mtime_ns
        self._is_list_certain &= time.time_ns() - modified_ns > _MTIME_RESOLUTION_NS
        with os.scandir(directory) as entries:
            self._directory_times[directory] = modified_ns
            for entry in entries:
                # Symbolic links are not followed: users who may put files here must not gain access to every file that
                # the daemon may read.
                if entry.name.startswith("."):
                    continue
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    if self._config.recursive and path not in self._own_directories:
                        pending.append(path)
                elif entry.is_file(follow_symlinks=False) and self._is_included(path):
                    with suppress(FileNotFoundError):
                        yield FoundFile(path, FileStatus.of(entry.stat(follow_symlinks=False)))

    def _is_included(self, path: Path) -> bool:
        if path.name.endswith(self._own_suffixes):
            return False
        below = str(path.relative_to(self._config.directory))
        return self._includes(path.name, below) and not self._excludes(path.name, below)

    def _log_unreadable(self, directory: Path, error: OSError) -> None:
        if directory not in self._unreadable and len(self._unreadable) < FILES_MAX:
            self._unreadable.add(directory)
            _log.warning("a directory cannot be read", directory=str(directory), reason=error.strerror)


def _matcher(patterns: Sequence[str]) -> Callable[[str, str], bool]:
    """Returns a function that matches a name with some patterns, or a relative path if a pattern contains a slash."""

    def union(chosen: Iterable[str]) -> re.Pattern[str]:
        # Without patterns, nothing matches.
        return re.compile("|".join(map(fnmatch.translate, chosen)) or "(?!)")

    of_names = union(pattern for pattern in patterns if "/" not in pattern)
    of_paths = union(pattern for pattern in patterns if "/" in pattern)
    return lambda name, below: bool(of_names.match(name) or of_paths.match(below))
