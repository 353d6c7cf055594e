"""A log that grows: plays the program whose lines are collected."""

import math
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from examples.access_log.log_file import LogFile

_PIECE_LINES = 500


class LiveLog:
    """Writes the lines of a log file into another file, bit by bit.

    Args:
        path: The file that grows; it begins empty.
        log: Whose lines.
    """

    def __init__(self, path: Path, log: LogFile) -> None:
        self._path = path
        self._line_count = log.line_count
        self._lines: Iterator[bytes] = log.lines()
        self._written_count = 0
        path.write_bytes(b"")

    def write_up_to(self, share: float, on_written: Callable[[int], None]) -> None:
        """Goes on until this share of all lines is written.

        Args:
            share: From 0 to 1.
            on_written: Is called with the count of lines, now and then.
        """
        last = math.ceil(share * self._line_count)
        with self._path.open("ab") as file:
            while pieces := list(islice(self._lines, min(_PIECE_LINES, last - self._written_count))):
                # A line end also behind the last line: one without waits for its rest.
                file.write(b"".join(line + b"\n" for line in pieces))
                file.flush()
                self._written_count += len(pieces)
                on_written(len(pieces))
