"""A disk in memory that loses, tears and refuses writes: the disk in tests of the log.

It keeps what is durable apart from what the kernel shows. `SimulatedDisk.crashed` returns the disk after a power cut:
of each file any part of what was not synced, whole, torn at sectors or not at all, and of each directory any of the
names that were not synced. `SimulatedDisk.copy` returns it after a kill of the process: all content is visible, and
what was not synced still is not. `SimulatedDisk.fail` makes the Nth call of a kind fail.

A failing sync has the effect that it has on Linux: some of the file's bytes reach the disk, the others never will, and
the kernel still shows all of them and lets the next sync succeed.
"""

import errno
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from millrace_server.wal.disk import Piece

SECTOR_BYTES = 512

_PROBABILITIES = (0.0, 0.1, 0.5, 0.9, 1.0)


class Call(NamedTuple):
    """A call on the disk."""

    kind: str
    """The name of the method."""
    name: str
    """The name of the file or directory."""
    is_refused: bool


@dataclass(frozen=True, slots=True)
class _Write:
    offset: int
    written: bytes

    def apply(self, content: bytearray) -> None:
        end = self.offset + len(self.written)
        content.extend(bytes(max(0, end - len(content))))
        content[self.offset : end] = self.written

    def torn(self, chance: random.Random) -> list["_Change"]:
        """Some sectors of a write; the file may grow even without its bytes."""
        end = self.offset + len(self.written)
        borders = [self.offset, *range(_next_sector(self.offset), end, SECTOR_BYTES), end]
        sectors = [
            _Write(start, self.written[start - self.offset : stop - self.offset]) for start, stop in pairwise(borders)
        ]
        kept: list[_Change] = [sector for sector in sectors if chance.random() < 0.5]
        return [*kept, _Grow(end)] if chance.random() < 0.5 else kept


@dataclass(frozen=True, slots=True)
class _Grow:
    length: int

    def apply(self, content: bytearray) -> None:
        content.extend(bytes(max(0, self.length - len(content))))


@dataclass(frozen=True, slots=True)
class _Cut:
    length: int

    def apply(self, content: bytearray) -> None:
        content[self.length :] = bytes(max(0, self.length - len(content)))


_Change = _Write | _Grow | _Cut


def _next_sector(offset: int) -> int:
    return (offset // SECTOR_BYTES + 1) * SECTOR_BYTES


@dataclass(eq=False, slots=True)
class _Content:
    """The content of a file."""

    name: str
    """The newest name of the content."""
    durable: bytearray = field(default_factory=bytearray)
    shown: bytearray = field(default_factory=bytearray)
    unsynced: list[_Change] = field(default_factory=list)

    def change(self, change: _Change) -> None:
        change.apply(self.shown)
        self.unsynced.append(change)

    def sync(self) -> None:
        for change in self.unsynced:
            change.apply(self.durable)
        self.unsynced.clear()

    def lose_in_sync(self, chance: random.Random) -> None:
        """The effect of a failed sync: unsynced bytes never reach the disk. The file system's journal keeps lengths."""
        for change in self.unsynced:
            for part in _survivors(change, chance, 0.5):
                part.apply(self.durable)
        self.unsynced = [change for change in self.unsynced if not isinstance(change, _Write)]

    def copy(self) -> "_Content":
        return _Content(self.name, bytearray(self.durable), bytearray(self.shown), list(self.unsynced))

    def crashed(self, chance: random.Random) -> "_Content":
        survived = bytearray(self.durable)
        keep_probability = chance.choice(_PROBABILITIES)
        for change in self.unsynced:
            for part in _survivors(change, chance, keep_probability):
                part.apply(survived)
        return _Content(self.name, survived, bytearray(survived))


def _survivors(change: _Change, chance: random.Random, keep_probability: float) -> list[_Change]:
    if isinstance(change, _Write) and keep_probability not in {0.0, 1.0} and chance.random() < 0.5:
        return change.torn(chance)
    return [change] if chance.random() < keep_probability else []


@dataclass(frozen=True, slots=True)
class _NameChange:
    """Removes a content's name, adds one, or both at once."""

    content: _Content
    removed: str | None
    added: str | None

    def apply(self, names: dict[str, _Content]) -> None:
        if self.removed is not None and names.get(self.removed) is self.content:
            del names[self.removed]
        if self.added is not None:
            names[self.added] = self.content


@dataclass(slots=True)
class _Names:
    """The names in a directory."""

    durable: dict[str, _Content] = field(default_factory=dict)
    shown: dict[str, _Content] = field(default_factory=dict)
    unsynced: list[_NameChange] = field(default_factory=list)

    def change(self, change: _NameChange) -> None:
        change.apply(self.shown)
        self.unsynced.append(change)

    def sync(self) -> None:
        for change in self.unsynced:
            change.apply(self.durable)
        self.unsynced.clear()


class SimulatedFile:
    """An open file of a simulated disk."""

    def __init__(self, disk: "SimulatedDisk", content: _Content, *, is_writable: bool) -> None:
        self._disk = disk
        self._content = content
        self._is_writable = is_writable
        self._is_closed = False

    def write(self, pieces: Sequence[Piece], offset: int) -> None:
        written = b"".join(pieces)
        with self._call("write", changes=True) as refusal:
            if refusal is not None:
                # A failing write may have written a part.
                self._change(_Write(offset, written[: self._disk.chance.randint(0, len(written))]))
                raise refusal
            space = self._end_of_space() - offset
            self._change(_Write(offset, written[: max(0, space)]))
            if space < len(written):
                raise _os_error(errno.ENOSPC)

    def read(self, length: int, offset: int) -> bytes:
        with self._call("read") as refusal:
            _raise(refusal)
            return bytes(self._content.shown[offset : offset + length])

    def read_cached(self, length: int, offset: int) -> bytes | None:
        return self.read(length, offset) if self._disk.is_cached else None

    def reserve(self, offset: int, length: int) -> None:
        with self._call("reserve", changes=True) as refusal:
            _raise(_os_error(errno.ENOSPC) if offset + length > self._end_of_space() else refusal)
            self._content.change(_Grow(offset + length))

    def truncate(self, length: int) -> None:
        with self._call("truncate", changes=True) as refusal:
            _raise(refusal)
            self._content.change(_Cut(length))

    def sync(self) -> None:
        with self._call("sync") as refusal:
            if refusal is None:
                self._content.sync()
            else:
                self._content.lose_in_sync(self._disk.chance)
            _raise(refusal)

    def size(self) -> int:
        with self._call("size") as refusal:
            _raise(refusal)
            return len(self._content.shown)

    def close(self) -> None:
        self._is_closed = True

    @contextmanager
    def _call(self, kind: str, *, changes: bool = False) -> Iterator[OSError | None]:
        if self._is_closed or (changes and not self._is_writable):
            raise _os_error(errno.EBADF)
        with self._disk.call(kind, self._content.name) as refusal:
            yield refusal

    def _change(self, write: _Write) -> None:
        if write.written:
            self._content.change(write)

    def _end_of_space(self) -> int:
        return len(self._content.shown) + self._disk.free_bytes(Path())


class SimulatedDirectory:
    """An open directory of a simulated disk."""

    def __init__(self, disk: "SimulatedDisk", path: Path) -> None:
        self._disk = disk
        self._path = path

    def sync(self) -> None:
        self._disk.sync_names(self._path)

    def close(self) -> None:
        """Does nothing, since nothing is open."""


class SimulatedDisk:
    """Directories of files; keeps the promises of `millrace_server.wal.disk.Disk` and no others.

    Args:
        directories: The existing directories, empty and durable.
        seed: Determines what failing calls leave.
        capacity_bytes: The bytes that all files together may occupy.
    """

    def __init__(self, directories: Sequence[Path], seed: int = 0, capacity_bytes: int = 1 << 40) -> None:
        self._directories = {directory: _Names() for directory in directories}
        self._lock = threading.RLock()
        self._refusals: dict[tuple[str, int], int] = {}
        self._counts: Counter[str] = Counter()
        self.chance = random.Random(seed)
        self.capacity_bytes = capacity_bytes
        self.is_cached = True
        """Whether the data can be read without waiting."""
        self.calls: list[Call] = []
        """All calls so far but sizes."""
        self.before_call: Callable[[str, str], None] = lambda _kind, _name: None
        """Called before each call with its kind and its file's name, on the caller's thread; may block."""

    # Methods for the log.

    def create(self, path: Path) -> SimulatedFile:
        with self.call("create", path.name) as refusal:
            _raise(refusal)
            names = self._directories[path.parent]
            if path.name in names.shown:
                raise _os_error(errno.EEXIST)
            content = _Content(path.name)
            names.change(_NameChange(content, None, path.name))
            return SimulatedFile(self, content, is_writable=True)

    def open(self, path: Path, *, writable: bool = False) -> SimulatedFile:
        with self.call("open", path.name) as refusal:
            _raise(refusal)
            return SimulatedFile(self, self._content(path), is_writable=writable)

    def rename(self, source: Path, target: Path) -> None:
        assert source.parent == target.parent, "a rename across directories is two changes of names"
        with self.call("rename", target.name) as refusal:
            _raise(refusal)
            content = self._content(source)
            content.name = target.name
            self._directories[source.parent].change(_NameChange(content, source.name, target.name))

    def unlink(self, path: Path) -> None:
        with self.call("unlink", path.name) as refusal:
            _raise(refusal)
            self._directories[path.parent].change(_NameChange(self._content(path), path.name, None))

    def list(self, directory: Path) -> list[str]:
        with self.call("list", directory.name) as refusal:
            _raise(refusal)
            return sorted(self._directories[directory].shown)

    def open_directory(self, directory: Path) -> SimulatedDirectory:
        with self.call("open_directory", directory.name) as refusal:
            _raise(refusal)
            return SimulatedDirectory(self, directory)

    def sync_directory(self, directory: Path) -> None:
        self.open_directory(directory).sync()

    def sync_names(self, directory: Path) -> None:
        """See `Directory.sync`."""
        with self.call("sync_directory", directory.name) as refusal:
            # If it fails, the file system's journal keeps the changes for later.
            _raise(refusal)
            self._directories[directory].sync()

    def free_bytes(self, directory: Path) -> int:
        with self._lock:
            taken_bytes = sum(len(file.shown) for names in self._directories.values() for file in names.shown.values())
            return max(0, self.capacity_bytes - taken_bytes)

    def total_bytes(self, _directory: Path) -> int:
        return self.capacity_bytes

    def device(self, _directory: Path) -> int:
        """All directories are on the same device."""
        return 0

    # Faults.

    def fail(self, kind: str, nth: int, error_number: int, count: int = 1) -> None:
        """Makes the nth call of a kind from now on fail, and the calls after it up to `count`."""
        for number in range(self._counts[kind] + nth, self._counts[kind] + nth + count):
            self._refusals[kind, number] = error_number

    def heal(self) -> None:
        """Ends the failures."""
        self._refusals.clear()

    def copy(self) -> "SimulatedDisk":
        """The same disk for another process: unsynced changes are visible, and may still be lost."""
        with self._lock:
            copies: dict[_Content, _Content] = {}
            return self._with_directories(
                {directory: _copied_names(names, copies) for directory, names in self._directories.items()}
            )

    def crashed(self, seed: int) -> "SimulatedDisk":
        """The disk after a power cut at this moment: one of the many ways it may be found."""
        with self._lock:
            chance = random.Random(seed)
            survivors: dict[_Content, _Content] = {}
            return self._with_directories(
                {directory: _crashed_names(names, survivors, chance) for directory, names in self._directories.items()}
            )

    def _with_directories(self, directories: dict[Path, _Names]) -> "SimulatedDisk":
        other = SimulatedDisk([], self.chance.randrange(1 << 32), self.capacity_bytes)
        other._directories = directories
        return other

    # Methods for tests.

    def content(self, path: Path) -> bytes:
        """The content of a file."""
        return bytes(self._content(path).shown)

    def set_content(self, path: Path, content: bytes | bytearray) -> None:
        """Creates a file that is durable from the start."""
        names = self._directories[path.parent]
        names.shown[path.name] = names.durable[path.name] = _Content(path.name, bytearray(content), bytearray(content))

    def remove(self, path: Path) -> None:
        """Removes a file without a trace."""
        names = self._directories[path.parent]
        del names.shown[path.name], names.durable[path.name]

    def paths(self) -> Sequence[Path]:
        """The paths of all files."""
        return [path / name for path, names in self._directories.items() for name in sorted(names.shown)]

    def fingerprint(self) -> int:
        """Differs if the visible content differs."""
        return hash(tuple((path, self.content(path)) for path in self.paths()))

    @contextmanager
    def call(self, kind: str, name: str) -> Iterator[OSError | None]:
        """Counts a call and excludes others during it; returns the error that it must raise."""
        self.before_call(kind, name)
        with self._lock:
            self._counts[kind] += 1
            error_number = self._refusals.get((kind, self._counts[kind]))
            if kind != "size":
                self.calls.append(Call(kind, name, error_number is not None))
            yield None if error_number is None else _os_error(error_number)

    def _content(self, path: Path) -> _Content:
        names = self._directories[path.parent].shown
        if path.name not in names:
            raise _os_error(errno.ENOENT)
        return names[path.name]


def _copied_names(names: _Names, copies: dict[_Content, _Content]) -> _Names:
    def copy(content: _Content) -> _Content:
        return copies.setdefault(content, content.copy())

    return _Names(
        {name: copy(content) for name, content in names.durable.items()},
        {name: copy(content) for name, content in names.shown.items()},
        [_NameChange(copy(change.content), change.removed, change.added) for change in names.unsynced],
    )


def _crashed_names(names: _Names, survivors: dict[_Content, _Content], chance: random.Random) -> _Names:
    survived = dict(names.durable)
    keep_probability = chance.choice(_PROBABILITIES)
    for change in names.unsynced:
        if chance.random() < keep_probability:
            change.apply(survived)
    found = {}
    for name, content in survived.items():
        if content not in survivors:
            survivors[content] = content.crashed(chance)
        found[name] = survivors[content]
    return _Names(dict(found), found)


def _os_error(error_number: int) -> OSError:
    return OSError(error_number, os.strerror(error_number))


def _raise(refusal: OSError | None) -> None:
    if refusal is not None:
        raise refusal
