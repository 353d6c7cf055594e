"""Writers of logs: numbered lines, in files that are rotated in the ways that `taildir` promises to follow."""

import os
import random
import shutil
import threading
import time
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

_LINES_AT_ONCE_MAX = 12
_STEP_SECONDS_MAX = 0.02
_QUIET_SECONDS_MAX = 1.0
_STEPS_BETWEEN_ROTATIONS = 40
_STEPS_BETWEEN_SILENCES = 100
_TIME_TICK_SECONDS = 0.011


def line_of(log: str, number: int) -> bytes:
    """One line of a log, without its end; all lines of all logs differ."""
    return f"{log} {number:07d} {'.' * (number * 37 % 101)}".encode()


class Log:
    """One log, in as many files as its rotations make of it.

    The log is written with care, since `taildir` promises only for such logs that nothing is lost or comes twice:

    - Nothing is written between copying a file and truncating it. It would be lost with every reader and every program
      that rotates by copying. Before a rotation the last line is complete.
    - The copy stays in the file's directory, under a name that begins as the file's does: `taildir` looks for it there.
    - The files' times show the order in which they were written: `taildir` reads files that it sees for the first time
      together in this order, such as two that were rotated while it did not run. Their names need not show it.
    - Rotated files continue to match the patterns. A file that appears and is renamed between two looks cannot be
      detected.

    Args:
        folder: The directory of its files.
        name: Its name; the first 8 bytes of a file identify it.
        chance: Determines how it is written.
        is_shifted: Whether a rotated file becomes number 1 and all older ones get the next number; otherwise it gets a
                number of its own.

    Attributes:
        line_count: Lines so far.
        rename_count: The number of rotations by renaming the file.
        copy_count: The number of rotations by copying and truncating the file.
    """

    def __init__(self, folder: Path, name: str, chance: random.Random, *, is_shifted: bool) -> None:
        self._folder = folder
        self._is_shifted = is_shifted
        self._name = name
        self._chance = chance
        self._live = folder / f"{name}.log"
        self._file = self._open()
        self.line_count = 0
        self.rename_count = 0
        self.copy_count = 0

    def step(self) -> None:
        """Writes some lines, and rotates from time to time."""
        self._write()
        if self._chance.random() < 1 / _STEPS_BETWEEN_ROTATIONS:
            self._chance.choice([self._rename, self._copy_and_cut])()
            # File times that are closer together are the same to the kernel.
            time.sleep(_TIME_TICK_SECONDS)

    def old_files(self) -> list[Path]:
        """The rotated files, the newest first."""
        files = sorted(self._folder.glob(f"{self._name}.[0-9]*.log"))
        return files if self._is_shifted else files[::-1]

    def close(self) -> None:
        """Closes the current file."""
        self._file.close()

    def _open(self) -> FileIO:
        return self._live.open("ab", buffering=0)

    def _write(self) -> None:
        first = self.line_count
        self.line_count += self._chance.randint(1, _LINES_AT_ONCE_MAX)
        lines = b"".join(line_of(self._name, number) + b"\n" for number in range(first, self.line_count))
        # A reader may see a part of a line, and its rest only later.
        cut = self._chance.randint(0, len(lines))
        for part in (lines[:cut], lines[cut:]):
            assert self._file.write(part) == len(part)

    def _next_name(self) -> Path:
        if not self._is_shifted:
            return self._numbered(self.rename_count + self.copy_count)
        for path in reversed(self.old_files()):
            path.rename(self._numbered(int(path.stem.rpartition(".")[2]) + 1))
        return self._numbered(1)

    def _numbered(self, number: int) -> Path:
        return self._folder / f"{self._name}.{number:05d}.log"

    def _rename(self) -> None:
        self._live.rename(self._next_name())
        self.rename_count += 1
        if self._chance.random() < 0.5:
            # Programs write to the old file until they are asked to reopen it.
            self._write()
        self._file.close()
        self._file = self._open()

    def _copy_and_cut(self) -> None:
        shutil.copyfile(self._live, self._next_name())
        os.truncate(self._live, 0)
        self.copy_count += 1


class LogWriter:
    """Writes several logs in one directory, from a thread, for as long as the block runs or until `finish`.

    Args:
        folder: The directory, which is created.
        names: The names of the logs.
        seed: Determines how they are written.

    Attributes:
        folder: The directory.
        logs: The logs, by name.
        lock: Held while a file is written to or rotated.
    """

    def __init__(self, folder: Path, names: list[str], seed: int) -> None:
        folder.mkdir()
        self.folder = folder
        self.lock = threading.Lock()
        self._chance = random.Random(seed)
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writer of {folder.name}", daemon=True)
        # The logs use both naming schemes in turn.
        self.logs = {
            name: Log(folder, name, self._chance, is_shifted=bool(index % 2)) for index, name in enumerate(names)
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish()

    def start(self) -> None:
        """Starts to write."""
        self._thread.start()

    def finish(self) -> None:
        """Stops writing."""
        self._is_ending.set()
        if self._thread.is_alive():
            self._thread.join()
        for log in self.logs.values():
            log.close()

    def _run(self) -> None:
        logs = list(self.logs.values())
        while not self._is_ending.wait(self._pause_seconds()):
            with self.lock:
                self._chance.choice(logs).step()

    def _pause_seconds(self) -> float:
        is_silent = self._chance.random() < 1 / _STEPS_BETWEEN_SILENCES
        return self._chance.uniform(0, _QUIET_SECONDS_MAX if is_silent else _STEP_SECONDS_MAX)
