from typing import Any

import structlog
from structlog.testing import capture_logs

from millrace_server.agent.sources.exec.command import LINE_BYTES_MAX, LINES_BURST, SECONDS_PER_LINE, StderrLog


class LogLines:
    """The logged lines, with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stderr_log = StderrLog(structlog.stdlib.get_logger("test"), lambda: self.now)

    def log_of(self, *pieces: bytes, is_end: bool = False) -> list[Any]:
        with capture_logs() as log:
            for piece in pieces:
                self.stderr_log.add(piece)
            if is_end:
                self.stderr_log.end()
        return log


def lines_of(log: list[Any]) -> list[str]:
    return [entry["line"] for entry in log]


def test_add_of_lines_in_pieces_reports_each_once() -> None:
    """The pieces do not matter; empty lines are not logged."""
    log = LogLines().log_of(b"one\r\ntw", b"o\n\n  \nthr", b"ee", is_end=True)
    assert lines_of(log) == ["one", "two", "three"]
    assert {entry["log_level"] for entry in log} == {"warning"}


def test_add_of_a_flood_reports_some_and_counts_the_rest() -> None:
    """The count is logged with the next line, or at the end."""
    reported = LogLines()
    log = reported.log_of(b"flood\n" * 1_000)
    assert len(log) == LINES_BURST
    reported.now += SECONDS_PER_LINE
    [entry] = reported.log_of(b"later\n")
    assert (entry["line"], entry["lines_suppressed"]) == ("later", 1_000 - LINES_BURST)
    [last] = reported.log_of(b"untold\n" * 3, is_end=True)
    assert (last["event"], last["lines_suppressed"]) == ("lines of the command were suppressed", 3)
    reported.now += 1_000 * SECONDS_PER_LINE
    assert len(reported.log_of(b"flood\n" * 1_000)) == LINES_BURST


def test_add_of_an_endless_line_keeps_and_reports_its_beginning() -> None:
    """Memory holds no more of the line than the log shows."""
    reported = LogLines()
    for _ in range(100):
        assert reported.log_of(b"x" * 100_000) == []
        assert len(reported.stderr_log._partial_line) <= LINE_BYTES_MAX + 1
    assert lines_of(reported.log_of(b"\nshort\n")) == ["x" * LINE_BYTES_MAX + "...", "short"]


def test_add_of_bytes_that_are_no_text_reports_them_nevertheless() -> None:
    """Invalid UTF-8 is logged too."""
    assert lines_of(LogLines().log_of(b"caf\xe9\n")) == ["caf\ufffd"]
