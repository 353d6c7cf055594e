"""Looks into a directory for files that are to be taken."""

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
"""Files that are known to wait; where there are more, the others are found once these are done."""

_CERTAIN_NS = 2 * 10**9
"""A directory that was listed so long after its last change has not changed without another time: filesystems tell
times no more coarsely than that."""

_LIST_ANYWAY_SECONDS = 60.0
"""Directories are listed this often even where their times tell of no change: network filesystems tell late."""

_REST = 9
"""Looking rests so many times as long as it took."""

_log = structlog.stdlib.get_logger(__name__)


class Shape(NamedTuple):
    """What tells whether a file has changed."""

    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Shape":
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class Found(NamedTuple):
    """A file that waits."""

    path: Path
    """Where it is."""
    shape: Shape
    """How it was when it was seen."""


_ORDERS: dict[str, Callable[[Found], tuple[int, str]]] = {
    "oldest": lambda found: (found.shape.modified_ns, str(found.path)),
    "youngest": lambda found: (-found.shape.modified_ns, str(found.path)),
    "name": lambda found: (0, str(found.path)),
}


class Lookout:
    """Finds the files that are to be taken, in order.

    While nothing happens a look is one system call for each directory: a directory is listed when its time tells that
    something came or went.

    Args:
        config: Where to look, and for what.
        clock: Seconds on a clock that only goes forward.
    """

    def __init__(self, config: SpooldirSourceConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._includes = _matcher(config.include)
        self._excludes = _matcher(config.exclude)
        # What has these names, or lies here, is done or bad.
        self._own_suffixes = config.own_suffixes
        self._own_directories = config.own_directories
        self._key = _ORDERS[config.order]
        self._waiting: dict[Path, tuple[Shape, float]] = {}
        self._directory_times: dict[Path, int] = {}
        self._unreadable: set[Path] = set()
        self._is_list_certain = False
        self._listed_at = 0.0
        self._look_seconds = 0.0

    @property
    def pause_seconds(self) -> float:
        """After how long to look again."""
        now = self._clock()
        settles = [since + self._config.settle_seconds - now for _, since in self._waiting.values()]
        soon = min([self._config.poll_seconds, *(seconds for seconds in settles if seconds > 0)])
        return max(soon, _REST * self._look_seconds)

    def look(self) -> list[Found]:
        """The files that have not changed for long enough, in order, `FILES_MAX` at most.

        Raises:
            ComponentError: The directory cannot be read.
        """
        began = self._clock()
        found = self._list() if self._must_list() else self._look_again()
        now = self._clock()
        waiting = {}
        for path, shape in found:
            known = self._waiting.get(path)
            waiting[path] = known if known is not None and known[0] == shape else (shape, now)
        self._waiting = waiting
        settled = [
            Found(path, shape) for path, (shape, since) in waiting.items() if now - since >= self._config.settle_seconds
        ]
        self._look_seconds = self._clock() - began
        return sorted(settled, key=self._key)

    def _must_list(self) -> bool:
        if not self._is_list_certain or self._clock() - self._listed_at >= _LIST_ANYWAY_SECONDS:
            return True
        try:
            return any(
                directory.stat().st_mtime_ns != modified_ns for directory, modified_ns in self._directory_times.items()
            )
        except OSError:
            return True

    def _look_again(self) -> Iterator[Found]:
        for path in self._waiting:
            with suppress(OSError):
                yield Found(path, Shape.of(path.lstat()))

    def _list(self) -> list[Found]:
        self._directory_times = {}
        self._is_list_certain = True
        self._listed_at = self._clock()
        found = heapq.nsmallest(FILES_MAX + 1, self._files(), key=self._key)
        if len(found) > FILES_MAX:
            self._is_list_certain = False
            found.pop()
        return found

    def _files(self) -> Iterator[Found]:
        pending = [self._config.directory]
        while pending:
            directory = pending.pop()
            try:
                yield from self._files_in(directory, pending)
            except OSError as error:
                if directory == self._config.directory:
                    raise ComponentError(f"{directory} cannot be read: {error.strerror}") from None
                self._tell_unreadable(directory, error)

    def _files_in(self, directory: Path, pending: list[Path]) -> Iterator[Found]:
        # The time before the list, so that what comes meanwhile makes it another one.
        modified_ns = directory.stat().st_mtime_ns
        self._is_list_certain &= time.time_ns() - modified_ns > _CERTAIN_NS
        with os.scandir(directory) as entries:
            self._directory_times[directory] = modified_ns
            for entry in entries:
                # Symbolic links are not followed: whoever may put files here might not be allowed to read all that the
                # daemon may.
                if entry.name.startswith("."):
                    continue
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    if self._config.recursive and path not in self._own_directories:
                        pending.append(path)
                elif entry.is_file(follow_symlinks=False) and self._takes_path(path):
                    with suppress(FileNotFoundError):
                        yield Found(path, Shape.of(entry.stat(follow_symlinks=False)))

    def _takes_path(self, path: Path) -> bool:
        if path.name.endswith(self._own_suffixes):
            return False
        below = str(path.relative_to(self._config.directory))
        return self._includes(path.name, below) and not self._excludes(path.name, below)

    def _tell_unreadable(self, directory: Path, error: OSError) -> None:
        if directory not in self._unreadable and len(self._unreadable) < FILES_MAX:
            self._unreadable.add(directory)
            _log.warning("a directory cannot be read", directory=str(directory), reason=error.strerror)


def _matcher(patterns: Sequence[str]) -> Callable[[str, str], bool]:
    """Whether a name, or the path below the directory for patterns with a slash, matches one of the patterns."""

    def union(chosen: Iterable[str]) -> re.Pattern[str]:
        # Without patterns it matches nothing.
        return re.compile("|".join(map(fnmatch.translate, chosen)) or "(?!)")

    of_names = union(pattern for pattern in patterns if "/" not in pattern)
    of_paths = union(pattern for pattern in patterns if "/" in pattern)
    return lambda name, below: bool(of_names.match(name) or of_paths.match(below))
