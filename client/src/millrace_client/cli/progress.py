"""The progress of a put or a replay: a bar on a terminal, notes elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from millrace.command_line.notes import printable
from millrace_client import MillraceError
from millrace_client.cli.terminal import note


class PutProgress:
    """Writes a note when a put or a replay begins to wait."""

    def __init__(self) -> None:
        self._is_waiting = False

    def committed(self, _line_count: int, _input_bytes: int, /) -> None:
        """Adds lines that the server has committed, and their bytes of the input."""
        self._is_waiting = False

    def waiting(self, error: MillraceError, patience_seconds: float, /) -> None:
        """Reports an error that the put retries for at most this time."""
        if not self._is_waiting:
            note(f"{error.message}; trying again for up to {patience_seconds:g} s")
        self._is_waiting = True


class BarProgress(PutProgress):
    """A progress bar with bytes, lines, lines per second and time; a spinner if the input's size is not known."""

    def __init__(self, progress: Progress, label: str, total_bytes: int | None) -> None:
        super().__init__()
        self._progress = progress
        self._label = printable(label)
        self._task = progress.add_task(self._label, total=total_bytes, lines=0)
        self._lines = 0

    def committed(self, line_count: int, input_bytes: int, /) -> None:
        self._lines += line_count
        self._progress.update(self._task, advance=input_bytes, lines=self._lines, description=self._label)

    def waiting(self, error: MillraceError, patience_seconds: float, /) -> None:
        # Short, so that the bar fits the line: CHANNEL_FULL becomes "channel full".
        trouble = error.reason.replace("_", " ").lower()
        text = f"{self._label}: {trouble}, waiting up to {patience_seconds:g} s"
        self._progress.update(self._task, description=printable(text))


class _LinesColumn(ProgressColumn):
    def __init__(self, noun: str) -> None:
        super().__init__()
        self._noun = noun

    def render(self, task: Task) -> Text:
        lines = int(task.fields["lines"])
        rate = lines / task.elapsed if task.elapsed else 0.0
        return Text(f"{lines:,} {self._noun} {rate:,.0f}/s")


def progress_columns(total_bytes: int | None, noun: str = "lines") -> list[ProgressColumn]:
    """Returns the columns of the display; without a total there is no bar."""
    measure = [BarColumn(), DownloadColumn(), TimeRemainingColumn()] if total_bytes else [SpinnerColumn()]
    return [TextColumn("{task.description}", markup=False), *measure, _LinesColumn(noun), TimeElapsedColumn()]


@contextmanager
def shown_progress(label: str, total_bytes: int | None, noun: str = "lines") -> Iterator[PutProgress]:
    """Shows progress on standard error until the block ends: a bar if the input's size is known."""
    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield PutProgress()
        return
    progress = Progress(*progress_columns(total_bytes, noun), console=console, transient=True)
    # Not `with progress`: an interrupt during `start` would leave the cursor hidden.
    try:
        progress.start()
        yield BarProgress(progress, label, total_bytes)
    finally:
        progress.stop()
