"""The progress line and the report of a landing."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from millrace.units import counted, format_byte_size
from millrace_spark.landing.config import LandingConfig
from millrace_spark.landing.landing_run import LandingState


def report_json(state: LandingState, config: LandingConfig, seconds: float, outcome: str) -> dict[str, Any]:
    """Returns the report for scripts."""
    return {
        "outcome": outcome,
        "path": config.target.path,
        "seconds": round(seconds, 3),
        **asdict(state.totals),
        "lag": state.lag,
        "compacted_files_before": state.compaction.files_before,
        "compacted_files_after": state.compaction.files_after,
        "not_compacted": list(state.compaction.refusals),
        "swaps_finished": state.swaps_finished,
    }


def report_table(state: LandingState, config: LandingConfig, seconds: float) -> Table:
    """Returns the report for people."""
    totals, compaction = state.totals, state.compaction
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="bold")
    made.add_column(overflow="fold")
    for name, value in (
        ("landed in", config.target.path),
        ("events", f"{totals.events:,} in {counted(totals.batches, 'batch', 'batches')}"),
        ("rows", f"{totals.rows:,}"),
        ("bad lines", _bad_lines(state, config)),
        ("files", _files(state)),
        (
            "compacted",
            f"{compaction.files_before:,} files into {compaction.files_after:,}" if compaction.files_before else "",
        ),
        ("finished", _finished(state)),
        ("left", f"{state.lag:,} events that arrived in the meantime" if state.lag else ""),
        ("time", f"{seconds:.1f} s, {rate(totals.events, seconds)}"),
        *(("note", refusal) for refusal in compaction.refusals),
    ):
        if value:
            # Text, since a path may look like markup.
            made.add_row(name, Text(value))
    return made


def rate(count: int, seconds: float) -> str:
    """Returns the rate of events per second."""
    return f"{count / max(seconds, 0.001):,.0f} events/s"


def _bad_lines(state: LandingState, config: LandingConfig) -> str:
    count = state.totals.bad_lines
    place = f"channel {config.bad_lines.channel}" if config.bad_lines.channel else config.bad_lines_path
    return f"{count:,} in {place}" if count else "0"


def _files(state: LandingState) -> str:
    totals = state.totals
    folders = counted(totals.partitions, "folder")
    return f"{totals.files:,} in {folders}, {format_byte_size(totals.files_bytes)}" if totals.files else "0"


def _finished(state: LandingState) -> str:
    finished = []
    if state.totals.decided_before:
        finished.append(counted(state.totals.decided_before, "batch", "batches"))
    if state.swaps_finished:
        finished.append(counted(state.swaps_finished, "compaction"))
    return f"{' and '.join(finished)} that an earlier run had left unfinished" if finished else ""


_WINDOW_SECONDS = 10.0
_LINE_SECONDS = 10.0


class ProgressDisplay:
    """Shows the progress of a landing, as a context manager: one live line on a terminal, else a line every 10 s.

    A terminal that cannot move its cursor gets lines, too.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._clock = clock
        self._state = LandingState()
        self._seen: deque[tuple[float, int]] = deque()
        self._spinner = Spinner("dots")
        self._live = Live(console=console, get_renderable=self._shown, transient=True, refresh_per_second=8)
        self._line_at = clock()
        self._line = ""

    def show(self, state: LandingState) -> None:
        self._state = state

    def refresh(self) -> None:
        """Updates the rate, and writes a line if there is no terminal and the line has changed. Called periodically."""
        now = self._clock()
        self._seen.append((now, self._state.totals.events))
        while self._seen[0][0] < now - _WINDOW_SECONDS and len(self._seen) > 1:
            self._seen.popleft()
        if not self._is_live and now - self._line_at >= _LINE_SECONDS:
            self._line_at = now
            if (line := self.line()) != self._line:
                self._line = line
                self._console.print(line, soft_wrap=True, markup=False, highlight=False)

    def line(self) -> str:
        state, totals = self._state, self._state.totals
        parts = [state.phase]
        if totals.batches:
            parts += [
                counted(totals.batches, "batch", "batches"),
                f"{totals.events:,} events",
                f"{self._rate():,.0f}/s",
                counted(totals.files, "file"),
            ]
        if totals.bad_lines:
            parts.append(counted(totals.bad_lines, "bad line"))
        if state.lag is not None:
            parts.append(f"lag {state.lag:,}")
        return " · ".join(parts)

    def _rate(self) -> float:
        if len(self._seen) < 2:  # noqa: PLR2004 - a rate needs two samples
            return 0.0
        (began_at, before), (ended_at, after) = self._seen[0], self._seen[-1]
        return (after - before) / max(ended_at - began_at, 0.001)

    def _shown(self) -> Spinner:
        self._spinner.update(text=Text(self.line(), no_wrap=True, overflow="ellipsis"))
        return self._spinner

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._is_live:
            self._live.stop()
