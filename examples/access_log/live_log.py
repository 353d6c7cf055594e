"""A growing log, in place of a program that writes one."""

import math
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from examples.access_log.log_file import LogFile

_PIECE_LINES = 500


class LiveLog:
    """Copies the lines of a log file into another file, in parts.

    Args:
        path: The file that grows; empty at first.
        log: The lines to copy.
    """

    def __init__(self, path: Path, log: LogFile) -> None:
        self._path = path
        self._line_count = log.line_count
        self._lines: Iterator[bytes] = log.lines()
        self._written_count = 0
        path.write_bytes(b"")

    def write_up_to(self, share: float, on_written: Callable[[int], None]) -> None:
        """Copies lines until this share of all lines is written.

        Args:
            share: From 0 to 1.
            on_written: Called with the number of lines after each part.
        """
        last = math.ceil(share * self._line_count)
        with self._path.open("ab") as file:
            while pieces := list(islice(self._lines, min(_PIECE_LINES, last - self._written_count))):
                # The last line also needs a line end, without which taildir waits for its rest.
                file.write(b"".join(line + b"\n" for line in pieces))
                file.flush()
                self._written_count += len(pieces)
                on_written(len(pieces))
