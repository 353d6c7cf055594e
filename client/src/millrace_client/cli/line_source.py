"""Lines of a file or pipe, gathered into batches as they come."""

import io
import select
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, takewhile
from os import fstat

READ_BYTES = 64 * 1024
"""Most bytes of one read."""

LINE_BYTES_MAX = 64 * 1024 * 1024
"""A longer line than a server's default message fits nowhere; this bounds what a file without newlines costs."""


class InputError(Exception):
    """Returned when the next line is too long or cannot be read; all lines before it were handed out."""


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """When a batch of lines is sealed."""

    events_max: int
    """Lines in it."""
    body_bytes_max: int
    """Bytes of its lines; a line that is larger comes alone."""
    linger_seconds: float = 0.2
    """How long its first line waits for others where the input pauses."""


class LineSource:
    r"""Hands out the lines of an open file, in order, in batches.

    A line is the bytes up to `\n`, without it and otherwise as they are; empty lines count, and so does a last line
    without `\n`. Memory holds one batch and one line, whatever the file's size. Not for several threads.
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
        """Lines handed out or skipped so far."""
        self.byte_count = 0
        """Bytes of these lines, newlines included."""

    def skipped(self, count: int) -> Iterator[list[bytes]]:
        """Yields the next `count` lines as they were read, for whoever leaves them out.

        Raises:
            InputError: There are not so many, or they cannot be read.
        """
        target = self.line_count + count
        while self.line_count < target and (self._ready or self._fill(None)):
            yield self._hand_out(target - self.line_count)
        self._check()
        if self.line_count < target:
            counts = f"{self.line_count:,} lines, and {target:,} were to be skipped"
            raise InputError(f"the input has {counts}; give the same input as before")

    def batches(self, limits: BatchLimits) -> Iterator[list[bytes]]:
        """Yields the lines in batches of at least one, each as soon as it is full or its linger has passed.

        Raises:
            InputError: After the lines that could be read.
        """
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
        """Reads until there is another whole line; False where the input ended or nothing came in time."""
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
        # None: a non-blocking descriptor that has nothing after all.
        if chunk is not None:
            self._add(chunk)

    def _is_readable(self, deadline: float | None) -> bool:
        if not self._can_pause:
            return True
        wait_seconds = None if deadline is None else max(deadline - time.monotonic(), 0)
        return bool(select.select([self._file], [], [], wait_seconds)[0])

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
            # Lines inside a chunk are shorter than any limit: READ_BYTES is below LINE_BYTES_MAX.
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
