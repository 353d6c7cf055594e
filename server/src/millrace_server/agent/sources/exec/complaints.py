"""What a command writes to its standard error, told by the log."""

import time
from collections.abc import Callable

import structlog

from millrace_server.agent.rate_limited_log import LineAllowance
from millrace_server.agent.sources.exec.pipes import PipeReader

LINES_AT_ONCE = 20
"""So many lines are told as they come."""

LINE_SECONDS = 1.0
"""Beyond these, one more is told after so long."""

LINE_BYTES_MAX = 1_000
"""The rest of a longer line is left out."""

_READ_BYTES = 1 << 16


class ComplaintLog:
    """Logs lines, but never a flood of them: what is too much is counted, and the count is told with the next line.

    Args:
        log: Where to.
        clock: Seconds on a clock that only goes forward.
    """

    def __init__(self, log: structlog.stdlib.BoundLogger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._allowance = LineAllowance(LINES_AT_ONCE, LINE_SECONDS, clock)
        self._begun_line = b""
        self._untold_count = 0

    async def follow(self, errors: PipeReader) -> None:
        """Logs what comes until there will be no more; reads it even where it is too much, so that nobody waits."""
        while data := await errors.read(_READ_BYTES):
            self.add(data)
        self.end()

    def add(self, data: bytes) -> None:
        """Takes the next bytes."""
        *lines, self._begun_line = (self._begun_line + data).split(b"\n")
        for line in lines:
            self._tell(line)
        # One byte more than is told, so that it is known to be too long.
        self._begun_line = self._begun_line[: LINE_BYTES_MAX + 1]

    def end(self) -> None:
        """There will be no more: tells a last line without its end, and what was left out."""
        if self._begun_line:
            self._tell(self._begun_line)
            self._begun_line = b""
        if self._untold_count:
            self._log.warning("the command said more", lines_not_told=self._untold_count)
            self._untold_count = 0

    def _tell(self, line: bytes) -> None:
        if not line.strip():
            return
        if not self._allowance.take():
            self._untold_count += 1
            return
        text = line[:LINE_BYTES_MAX].decode(errors="replace").rstrip("\r")
        untold = {"lines_not_told": self._untold_count} if self._untold_count else {}
        self._untold_count = 0
        self._log.warning("the command says", line=f"{text}..." if len(line) > LINE_BYTES_MAX else text, **untold)
