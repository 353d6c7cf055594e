"""How far a tool is: a bar on a terminal, nothing elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class ToolProgress(Protocol):
    """What a tool tells while it works."""

    def begin(self, label: str, total_bytes: int) -> None:
        """The next part of the work begins, which has about so many bytes."""

    def advance(self, byte_count: int) -> None:
        """So many bytes more are done."""


class NoProgress:
    """Tells nobody."""

    def begin(self, _label: str, _total_bytes: int) -> None:
        """Nobody waits for it."""

    def advance(self, _byte_count: int) -> None:
        """Nobody waits for it."""


class BarProgress:
    """A bar for each part of the work, one after the other in the same place."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def begin(self, label: str, total_bytes: int) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(label, total=total_bytes)

    def advance(self, byte_count: int) -> None:
        assert self._task is not None, "a part has begun"
        self._progress.advance(self._task, byte_count)


@contextmanager
def shown_progress() -> Iterator[ToolProgress]:
    """Shows progress on standard error until the block ends, where that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield NoProgress()
        return
    columns = [TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=console, transient=True) as progress:
        yield BarProgress(progress)
