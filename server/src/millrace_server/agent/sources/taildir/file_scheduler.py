"""Reads the files that a source tails, one after the other."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from millrace_server.agent.lines.lines import Lines
from millrace_server.agent.sources.taildir.config import TaildirSourceConfig
from millrace_server.agent.sources.taildir.register import FileRegister, why_refused
from millrace_server.agent.sources.taildir.tailed_file import FileReplacedError, TailedFile

SCAN_SECONDS = 1.0
"""So often all directories are looked through."""

POLL_SECONDS = 0.5
"""So often open files are looked at while nothing happens."""

_BUSY_POLL_SECONDS = 0.1
"""The same after something has happened."""

_LOOKING_SHARE_MAX = 0.01
"""Looking takes no larger share of the time: where there are very many files, it is done more seldom."""

LOOK_SECONDS_MAX = 10.0
"""But not more seldom than this, also where a slow disk or a busy machine makes a look last."""

SAVE_SECONDS = 1.0
"""So often positions are saved, where they change."""

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Events that are not finished have so many bytes in memory. Beyond it, some are forgotten and read once more."""

DELETED_CLOSE_SECONDS = 5.0
"""A file that was deleted is closed once it has not grown for so long: until then it takes room on its disk."""


class Portion(NamedTuple):
    """Events of one file that were read at once."""

    file: TailedFile
    parts: Sequence[Lines]
    """In parts that follow one another; each covers some bytes, but may have no events."""


class FileScheduler:
    """Gives each file that has something to be read its turn.

    Files are looked at in intervals, and not watched through the kernel: that works on network file systems too, where
    the kernel knows of nothing that other machines write, and needs no limit on watches to be raised. What it costs is
    bounded.

    Args:
        config: The source's.
        register: The files.
        clock: Seconds.
    """

    def __init__(
        self, config: TaildirSourceConfig, register: FileRegister, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._register = register
        self._clock = clock
        self._ready: dict[TailedFile, None] = {}
        self._open: dict[TailedFile, None] = {}
        self._waiting: dict[TailedFile, int] = {}
        self._due: deque[Portion] = deque()
        self._scan_at = self._poll_at = self._save_at = clock()
        self._poll_seconds = POLL_SECONDS

    @property
    def wait_seconds(self) -> float:
        """How long to wait when there was nothing to be read."""
        return max(min(self._scan_at, self._poll_at) - self._clock(), 0.0)

    def next_portion(self) -> Portion | None:
        """Events of the file whose turn it is; none, where what was read of it ends no event.

        Returns:
            None where nothing is to be read now.
        """
        self._look()
        if self._due:
            return self._due.popleft()
        if not self._ready:
            return None
        file = next(iter(self._ready))
        del self._ready[file]
        parts = self._read(file)
        self._line_up(file)
        self._poll_seconds = _BUSY_POLL_SECONDS
        return Portion(file, parts)

    def close(self) -> None:
        """Saves positions, and closes all files."""
        for file in self._register.files.values():
            file.close()
        self._register.save()

    # Looking.

    def _look(self) -> None:
        if (now := self._clock()) >= self._scan_at:
            self._register.scan(now)
            self._scan_at = self._after(now, SCAN_SECONDS)
        if (now := self._clock()) >= self._poll_at:
            for file in list(self._register.files.values()):
                file.look_at_open(now)
                self._tend(file, now)
                self._line_up(file)
            self._poll_at = self._after(now, self._poll_seconds)
            self._poll_seconds = min(2 * self._poll_seconds, POLL_SECONDS)
        if (now := self._clock()) >= self._save_at:
            self._register.save()
            self._save_at = self._after(now, SAVE_SECONDS)

    def _after(self, began: float, seconds: float) -> float:
        now = self._clock()
        return now + min(max(seconds, (now - began) / _LOOKING_SHARE_MAX), LOOK_SECONDS_MAX)

    def _line_up(self, file: TailedFile) -> None:
        if file.has_news and self._register.files.get(file.key) is file:
            self._ready[file] = None

    def _tend(self, file: TailedFile, now: float) -> None:
        """Does what is due once a file has not grown for some time."""
        if file.has_news or file.is_set_aside:
            return
        config = self._config
        quiet_seconds = now - file.changed_at
        is_over = (file.is_deleted and quiet_seconds >= DELETED_CLOSE_SECONDS) or (
            file.is_rotated and quiet_seconds >= config.idle_close_seconds
        )
        unfinished_seconds = config.unfinished_line_seconds
        if is_over or (unfinished_seconds is not None and quiet_seconds >= unfinished_seconds):
            if file.is_behind and file.pending_bytes == 0:
                # It was forgotten, to save memory.
                file.has_news = True
                return
            self._hand_out(file, self._finished(file))
        elif config.multiline is not None and quiet_seconds >= config.multiline.timeout_seconds:
            self._hand_out(file, file.finish_event())
        if is_over and file.found_path is None:
            self._forget(file)
        elif quiet_seconds >= config.idle_close_seconds and file.pending_bytes == 0:
            # With an unfinished line it stays open, since that goes on when the file is deleted.
            file.close()

    def _hand_out(self, file: TailedFile, parts: Sequence[Lines]) -> None:
        if parts:
            self._due.append(Portion(file, parts))

    # Reading.

    def _read(self, file: TailedFile) -> Sequence[Lines]:
        long_line_count = file.long_line_count
        try:
            if not self._open_one(file):
                return []
            if file.is_set_aside:
                # Opened only to see whether it is still the same.
                file.close()
                file.has_news = False
                return []
            parts = file.read()
        except FileReplacedError:
            return self._replaced(file)
        except OSError as error:
            file.close()
            file.try_again()
            if not isinstance(error, FileNotFoundError):
                self._register.tell(file.path, why_refused(error))
            return []
        if file.long_line_count > long_line_count:
            limit = f"line_bytes_max, {self._config.line_bytes_max}"
            self._register.tell(file.path, f"it has lines longer than {limit}: {self._config.long_lines.value}")
        self._check(file)
        self._bound_waiting(file)
        return parts

    def _open_one(self, file: TailedFile) -> bool:
        """Opens a file, closing another one where there are too many; tells whether that could be."""
        if not file.is_open:
            self._open = {each: None for each in self._open if each.is_open}
            if len(self._open) >= self._config.files_open_max and not self._close_another():
                file.try_again()
                return False
            try:
                file.open()
            except FileNotFoundError:
                # It was renamed since the last scan. What is newer must not be read before it.
                if not self._register.finds_again(file):
                    raise
                file.open()
        # The one that was read last comes last.
        self._open.pop(file, None)
        self._open[file] = None
        return True

    def _close_another(self) -> bool:
        for file in self._open:
            file.look_at_open(self._clock())
            # Where nothing leads to a file any more, it could not be opened again.
            if file.found_path is not None and not file.is_deleted:
                file.close()
                return True
        return False

    def _replaced(self, file: TailedFile) -> Sequence[Lines]:
        # What has taken its place is to be found soon.
        self._scan_at = self._clock()
        if self._register.goes_on_in_copy(file):
            return []
        parts = self._finished(file)
        self._forget(file)
        return parts

    def _finished(self, file: TailedFile) -> Sequence[Lines]:
        self._waiting.pop(file, None)
        if file.failure is not None:
            return []
        parts = file.finish()
        self._check(file)
        return parts

    def _check(self, file: TailedFile) -> None:
        """Sets a file aside that holds what must not be."""
        if file.failure is not None:
            file.is_set_aside = True
            file.close()
            file.has_news = False
            self._register.tell(file.path, f"it is not read on: {file.failure}")

    def _bound_waiting(self, file: TailedFile) -> None:
        self._waiting.pop(file, None)
        if file.pending_bytes:
            self._waiting[file] = file.pending_bytes
        for other in [each for each in self._waiting if each is not file]:
            if sum(self._waiting.values()) <= WAITING_BYTES_MAX:
                break
            other.forget_waiting()
            del self._waiting[other]

    def _forget(self, file: TailedFile) -> None:
        for known in (self._ready, self._open, self._waiting):
            known.pop(file, None)
        self._register.untrack(file)
