"""Lines of a file or pipe in batches."""

import io
import math
import select
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, takewhile
from os import fstat

READ_BYTES = 64 * 1024
LINE_BYTES_MAX = 64 * 1024 * 1024
"""No channel stores a longer line by default; this bounds the memory that a file without newlines takes."""

_WAIT_SECONDS_MAX = 0.2
"""The longest wait in one call: a signal that arrives just before it does not end it, and is handled after it."""


class InputError(Exception):
    """Raised when the next line is too long or cannot be read, after all earlier lines were returned."""


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """When a batch of lines is sealed."""

    events_max: int
    body_bytes_max: int
    """Maximum bytes of the lines; a larger line is its own batch."""
    linger_seconds: float = 0.2
    """How long the first line waits for others while the input pauses."""


class LineSource:
    r"""Reads the lines of an open file in batches. Not thread-safe.

    A line is the bytes before `\n`, unchanged; empty lines count, and so does a last line without `\n`. Memory holds
    one batch and one line, whatever the file's size.
    """

    def __init__(self, file: io.FileIO, *, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._file = file
        self._line_bytes_max = line_bytes_max
        self._can_pause = not stat.S_ISREG(fstat(file.fileno()).st_mode)
        self._ready: list[bytes] = []
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._is_ended = False
        self._error: InputError | None = None
        self.line_count = 0
        """Lines returned or skipped so far."""
        self.byte_count = 0
        """Bytes of these lines with their newlines."""

    def skipped(self, count: int) -> Iterator[list[bytes]]:
        """Skips `count` lines; yields them in batches."""
        target = self.line_count + count
        while self.line_count < target and (self._ready or self._fill(None)):
            yield self._hand_out(target - self.line_count)
        self._check()
        if self.line_count < target:
            counts = f"{self.line_count:,} lines, fewer than the {target:,} lines to skip"
            raise InputError(f"the input has {counts}; give the same input as before")

    def batches(self, limits: BatchLimits) -> Iterator[list[bytes]]:
        """Yields non-empty batches of lines, each as soon as it is full or its linger time has passed."""
        while self._ready or self._fill(None):
            sealed_at = time.monotonic() + limits.linger_seconds
            while not self._is_full(limits) and time.monotonic() < sealed_at and self._fill(sealed_at):
                pass
            yield self._hand_out(self._count_within(limits))
        self._check()

    def _hand_out(self, count: int) -> list[bytes]:
        lines = self._ready[:count]
        del self._ready[:count]
        self.line_count += len(lines)
        self.byte_count += sum(map(len, lines)) + len(lines)
        return lines

    def _check(self) -> None:
        if self._error and not self._ready:
            raise self._error

    def _is_full(self, limits: BatchLimits) -> bool:
        return len(self._ready) >= limits.events_max or sum(map(len, self._ready)) >= limits.body_bytes_max

    def _count_within(self, limits: BatchLimits) -> int:
        sizes = accumulate(map(len, self._ready[: limits.events_max]))
        return max(sum(1 for _ in takewhile(lambda size: size <= limits.body_bytes_max, sizes)), 1)

    def _fill(self, deadline: float | None) -> bool:
        """Reads until another whole line is ready; returns False at the end of the input or at the deadline."""
        known = len(self._ready)
        while len(self._ready) == known and not self._is_ended:
            if not self._is_readable(deadline):
                return False
            self._read()
        return len(self._ready) > known

    def _read(self) -> None:
        try:
            chunk = self._file.read(READ_BYTES)
        except OSError as error:
            self._fail(f"cannot be read: {error.strerror}")
            return
        # None: a non-blocking descriptor without data.
        if chunk is not None:
            self._add(chunk)

    def _is_readable(self, deadline: float | None) -> bool:
        """Waits until there is something to read; returns False at the deadline."""
        while self._can_pause:
            left_seconds = math.inf if deadline is None else max(deadline - time.monotonic(), 0)
            if select.select([self._file], [], [], min(left_seconds, _WAIT_SECONDS_MAX))[0]:
                break
            if left_seconds <= _WAIT_SECONDS_MAX:
                return False
        return True

    def _add(self, chunk: bytes) -> None:
        if not chunk:
            self._end()
            return
        first, *others = chunk.split(b"\n")
        self._partial.append(first)
        self._partial_bytes += len(first)
        if self._partial_bytes > self._line_bytes_max:
            self._fail(f"is longer than an event may be, {self._line_bytes_max:,} bytes; split it, or leave it out")
        elif others:
            self._ready.append(b"".join(self._partial))
            # Lines within a chunk are below the limit: READ_BYTES is smaller than LINE_BYTES_MAX.
            self._ready.extend(others[:-1])
            self._partial = [others[-1]]
            self._partial_bytes = len(others[-1])

    def _end(self) -> None:
        self._is_ended = True
        if self._partial_bytes:
            self._ready.append(b"".join(self._partial))

    def _fail(self, finding: str) -> None:
        self._is_ended = True
        self._error = InputError(f"line {self.line_count + len(self._ready) + 1:,} {finding}")
