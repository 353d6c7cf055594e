"""A storage that crashes at a chosen step, as a killed process does."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from millrace_spark.landing.local_storage import LocalStorage
from millrace_spark.landing.storage import StorageError


class CrashError(Exception):
    """Raised instead of the step at which the process is killed."""


class CrashingStorage(LocalStorage):
    """Crashes before the step with this number, counted from 0; never if it is None.

    Attributes:
        steps: The number of steps taken.
        is_store: Whether renames work as in object stores: a copy, then a removal, with a step between.
        removed: The paths that were removed.
        synced: The paths that were synced.
    """

    def __init__(self, crash_at: int | None = None, *, is_store: bool = False) -> None:
        super().__init__()
        self.steps = 0
        self.is_store = is_store
        self.removed: list[str] = []
        self.synced: list[str] = []
        self._crash_at = crash_at

    def write(self, path: str, text: str) -> None:
        self._step()
        super().write(path, text)

    def rename(self, source: str, target: str) -> None:
        self._step()
        if not self.is_store:
            super().rename(source, target)
            return
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
        self._step()
        Path(source).unlink()

    def remove(self, path: str) -> None:
        self._step()
        self.removed.append(path)
        super().remove(path)

    def sync(self, paths: Iterable[str]) -> None:
        # A crash of the process alone does not lose unsynced data, so tests need not wait for the disk.
        self._step()
        wanted = list(paths)
        if missing := [path for path in wanted if not Path(path).is_file()]:
            raise StorageError(f"{missing[0]}: No such file or directory")
        self.synced += wanted

    def _step(self) -> None:
        if self.steps == self._crash_at:
            raise CrashError
        self.steps += 1


def lines_below(folder: Path) -> list[str]:
    """The lines of all files, in order, as readers see them."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(line for file in files for line in file.read_text().splitlines())
