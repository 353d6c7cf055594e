"""The scheduler, which reads the tailed files in turn."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from millrace_server.agent.lines.lines import Lines
from millrace_server.agent.sources.taildir.config import TaildirSourceConfig
from millrace_server.agent.sources.taildir.register import FileRegister, os_error_text
from millrace_server.agent.sources.taildir.tailed_file import FileReplacedError, TailedFile

SCAN_SECONDS = 1.0
"""The interval at which all directories are scanned."""

POLL_SECONDS = 0.5
"""The interval at which open files are examined while nothing changes."""

_BUSY_POLL_SECONDS = 0.1
"""The same interval after a change."""

_POLL_SHARE_MAX = 0.01
"""The maximum share of the time that scans and polls take; with very many files, the intervals are longer."""

POLL_SECONDS_MAX = 10.0
"""The maximum interval, even if scans take long because of a slow disk or a busy machine."""

SAVE_SECONDS = 1.0
"""The interval at which changed positions are saved."""

PENDING_BYTES_MAX = 64 * 1024 * 1024
"""The total size of unfinished events in memory. Beyond it, some are discarded and read again later."""

DELETED_CLOSE_SECONDS = 5.0
"""A deleted file is closed once it has not grown for this long; until then it occupies disk space."""


class FileChunk(NamedTuple):
    """Events of one file from a single read."""

    file: TailedFile
    parts: Sequence[Lines]
    """Consecutive parts, each of which covers some bytes but may have no events."""


class FileScheduler:
    """Reads the files that have grown, in turn.

    Files are polled instead of watched through the kernel: this also works on network file systems, where the kernel
    does not see the writes of other machines, and does not require a higher limit on watches. The cost is limited.
    """

    def __init__(
        self, config: TaildirSourceConfig, register: FileRegister, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._register = register
        self._clock = clock
        self._ready: dict[TailedFile, None] = {}
        self._open: dict[TailedFile, None] = {}
        self._pending: dict[TailedFile, int] = {}
        self._output: deque[FileChunk] = deque()
        self._scan_at = self._poll_at = self._save_at = clock()
        self._poll_seconds = POLL_SECONDS

    @property
    def wait_seconds(self) -> float:
        """How long to wait if there was nothing to read."""
        return max(min(self._scan_at, self._poll_at) - self._clock(), 0.0)

    def next_chunk(self) -> FileChunk | None:
        """Reads a chunk of the next file, which may contain no complete event; None if there is nothing to read."""
        self._poll()
        if self._output:
            return self._output.popleft()
        if not self._ready:
            return None
        file = next(iter(self._ready))
        del self._ready[file]
        parts = self._read(file)
        self._enqueue(file)
        self._poll_seconds = _BUSY_POLL_SECONDS
        return FileChunk(file, parts)

    def close(self) -> None:
        for file in self._register.files.values():
            file.close()
        self._register.save()

    def _poll(self) -> None:
        if (now := self._clock()) >= self._scan_at:
            self._register.scan(now)
            self._scan_at = self._after(now, SCAN_SECONDS)
        if (now := self._clock()) >= self._poll_at:
            for file in list(self._register.files.values()):
                file.refresh(now)
                self._check_idle(file, now)
                self._enqueue(file)
            self._poll_at = self._after(now, self._poll_seconds)
            self._poll_seconds = min(2 * self._poll_seconds, POLL_SECONDS)
        if (now := self._clock()) >= self._save_at:
            self._register.save()
            self._save_at = self._after(now, SAVE_SECONDS)

    def _after(self, began: float, seconds: float) -> float:
        now = self._clock()
        return now + min(max(seconds, (now - began) / _POLL_SHARE_MAX), POLL_SECONDS_MAX)

    def _enqueue(self, file: TailedFile) -> None:
        if file.has_unread and self._register.files.get(file.key) is file:
            self._ready[file] = None

    def _check_idle(self, file: TailedFile, now: float) -> None:
        """Completes the pending event of a file that has not grown for some time, and closes the file."""
        if file.has_unread or file.has_failed:
            return
        config = self._config
        quiet_seconds = now - file.changed_at
        is_over = (file.is_deleted and quiet_seconds >= DELETED_CLOSE_SECONDS) or (
            file.is_rotated and quiet_seconds >= config.idle_close_seconds
        )
        unfinished_seconds = config.unfinished_line_seconds
        if is_over or (unfinished_seconds is not None and quiet_seconds >= unfinished_seconds):
            if file.is_behind and file.pending_bytes == 0:
                # Its pending event was discarded to save memory.
                file.has_unread = True
                return
            self._emit(file, self._finish(file))
        elif config.multiline is not None and quiet_seconds >= config.multiline.timeout_seconds:
            self._emit(file, file.finish_event())
        if is_over and file.found_path is None:
            self._untrack(file)
        elif quiet_seconds >= config.idle_close_seconds and file.pending_bytes == 0:
            # With an unfinished line it stays open, since the line is emitted when the file is deleted.
            file.close()

    def _emit(self, file: TailedFile, parts: Sequence[Lines]) -> None:
        if parts:
            self._output.append(FileChunk(file, parts))

    def _read(self, file: TailedFile) -> Sequence[Lines]:
        long_line_count = file.long_line_count
        try:
            if not self._open_file(file):
                return []
            if file.has_failed:
                # It was opened only to check that it is the same file.
                file.close()
                file.has_unread = False
                return []
            parts = file.read()
        except FileReplacedError:
            return self._handle_replaced(file)
        except OSError as error:
            file.close()
            file.retry_later()
            if not isinstance(error, FileNotFoundError):
                self._register.log_problem(file.path, os_error_text(error))
            return []
        if file.long_line_count > long_line_count:
            limit = f"line_bytes_max, {self._config.line_bytes_max}"
            self._register.log_problem(file.path, f"it has lines longer than {limit}: {self._config.long_lines}")
        self._check_failure(file)
        self._limit_pending(file)
        return parts

    def _open_file(self, file: TailedFile) -> bool:
        """Opens a file, and closes another one if too many are open; returns whether it is open."""
        if not file.is_open:
            self._open = {each: None for each in self._open if each.is_open}
            if len(self._open) >= self._config.files_open_max and not self._evict_open_file():
                file.retry_later()
                return False
            try:
                file.open()
            except FileNotFoundError:
                # It was renamed since the last scan. A newer file must not be read before it.
                if not self._register.relocate(file):
                    raise
                file.open()
        # The most recently read files come last.
        self._open.pop(file, None)
        self._open[file] = None
        return True

    def _evict_open_file(self) -> bool:
        for file in self._open:
            file.refresh(self._clock())
            # A file without a path could not be opened again.
            if file.found_path is not None and not file.is_deleted:
                file.close()
                return True
        return False

    def _handle_replaced(self, file: TailedFile) -> Sequence[Lines]:
        # The file that replaced it must be found soon.
        self._scan_at = self._clock()
        if self._register.continue_in_copy(file):
            return []
        parts = self._finish(file)
        self._untrack(file)
        return parts

    def _finish(self, file: TailedFile) -> Sequence[Lines]:
        self._pending.pop(file, None)
        if file.failure is not None:
            return []
        parts = file.finish()
        self._check_failure(file)
        return parts

    def _check_failure(self, file: TailedFile) -> None:
        if file.failure is not None:
            file.has_failed = True
            file.close()
            file.has_unread = False
            self._register.log_problem(file.path, f"it is not read any further: {file.failure}")

    def _limit_pending(self, file: TailedFile) -> None:
        self._pending.pop(file, None)
        if file.pending_bytes:
            self._pending[file] = file.pending_bytes
        for other in [each for each in self._pending if each is not file]:
            if sum(self._pending.values()) <= PENDING_BYTES_MAX:
                break
            other.discard_pending()
            del self._pending[other]

    def _untrack(self, file: TailedFile) -> None:
        for known in (self._ready, self._open, self._pending):
            known.pop(file, None)
        self._register.untrack(file)
