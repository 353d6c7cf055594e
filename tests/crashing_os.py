"""The operating system around a crash: names that were not synced may be lost, one by one.

While installed, the calls of `os` that change names or sync are recorded, and the process can be killed before any of
them. Changes without a sync are then kept, or lost in part, as after a power cut.
"""

import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DIRECTORY = None
"""Stands for the content of a directory's name; a file's name has the number of its content."""

_Names = dict[Path, int | None]


class Killed(BaseException):
    """Raised to end the code under test at this point; it is never caught."""


class CrashingOs:
    """Knows what is durable below a directory, which is empty at first.

    Args:
        root: The directory; paths outside of it are ignored.
        patch: Installs this in place of the calls of `os`.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.calls_left: int | None = None
        """So many calls succeed before the process is killed; None for all. The next process sees all that was done."""
        self._live: _Names = {}
        self._synced: _Names = {}
        self._pending: list[tuple[Path, Callable[[_Names], None]]] = []
        """Changes of names, each with the directory whose sync makes it durable."""
        self._contents: list[bytes] = []
        self._real_fsync = os.fsync
        for name in ("mkdir", "rmdir", "unlink", "replace", "rename", "link", "open", "fsync"):
            patch.setattr(os, name, self._traced(getattr(os, name), getattr(self, f"_{name}")))

    def _traced(self, real: Callable[..., int | None], note: Callable[..., None]) -> Callable[..., int | None]:
        def call(target: Path | str | int, *arguments: Any, **options: int | None) -> int | None:
            path = _absolute(target, options.get("dir_fd", options.get("src_dir_fd")))
            if not path.is_relative_to(self.root):
                return real(target, *arguments, **options)
            # Opening an existing file changes no name.
            if real.__name__ == "open" and (path in self._live or not arguments[0] & os.O_CREAT):
                return real(target, *arguments, **options)
            self._count()
            # The real disk is not under test, and its syncs take time.
            result = real(target, *arguments, **options) if real is not self._real_fsync else None
            if "dst_dir_fd" in options:
                arguments = (_absolute(arguments[0], options["dst_dir_fd"]),)
            note(path, *arguments)
            return result

        return call

    def _count(self) -> None:
        if self.calls_left == 0:
            raise Killed
        if self.calls_left is not None:
            self.calls_left -= 1

    def _mkdir(self, path: Path, *_: object) -> None:
        self._change(path.parent, lambda names: names.update({path: DIRECTORY}))

    def _rmdir(self, path: Path) -> None:
        self._unlink(path)

    def _unlink(self, path: Path) -> None:
        self._change(path.parent, lambda names: _remove(names, path))

    def _open(self, path: Path, *_: object) -> None:
        self._contents.append(b"")
        number = len(self._contents) - 1
        self._change(path.parent, lambda names: names.update({path: number}))

    def _replace(self, path: Path, target: Path) -> None:
        moved = self._live[path]

        def rename(names: _Names) -> None:
            names.pop(path, None)
            names[target] = moved

        self._change(path.parent, rename)

    def _rename(self, path: Path, target: Path) -> None:
        self._replace(path, target)

    def _link(self, path: Path, target: Path) -> None:
        linked = self._live[path]
        self._change(target.parent, lambda names: names.update({target: linked}))

    def _fsync(self, path: Path) -> None:
        if path.is_dir():
            for directory, change in self._pending:
                if directory == path:
                    change(self._synced)
            self._pending = [(directory, change) for directory, change in self._pending if directory != path]
        else:
            number = self._live[path]
            assert number is not DIRECTORY
            self._contents[number] = path.read_bytes()

    def _change(self, directory: Path, change: Callable[[_Names], None]) -> None:
        change(self._live)
        self._pending.append((directory, change))

    def cut_power(self, chance: random.Random) -> None:
        """Loses some unsynced changes, and restores the remaining state below the root."""
        loss = chance.choice((0.5, 1.0))
        for _, change in self._pending:
            if chance.random() >= loss:
                change(self._synced)
        self._pending = []
        for path in list(self._synced):
            above = path.parent
            while above != self.root and above in self._synced:
                above = above.parent
            if above != self.root:
                del self._synced[path]
        self._live = dict(self._synced)
        self._show()

    def adopt(self) -> None:
        """Records the current state below the root as synced."""
        self._pending = []
        self._live = {}
        for path in sorted(self.root.rglob("*")):
            if stat.S_ISDIR(path.lstat().st_mode):
                self._live[path] = DIRECTORY
            else:
                self._contents.append(path.read_bytes())
                self._live[path] = len(self._contents) - 1
        self._synced = dict(self._live)

    def _show(self) -> None:
        for path in self.root.iterdir():
            shutil.rmtree(path)
        for path, number in sorted(self._synced.items()):
            if number is DIRECTORY:
                path.mkdir()
            else:
                path.write_bytes(self._contents[number])
        self.adopt()


def _absolute(target: Path | str | int, directory: int | None) -> Path:
    """The path of a descriptor, or of a path relative to a directory's descriptor."""
    if isinstance(target, int):
        return Path(f"/proc/self/fd/{target}").readlink()
    return Path(target) if directory is None else _absolute(directory, None) / target


def _remove(names: _Names, path: Path) -> None:
    names.pop(path, None)
