"""What is shown while a landing runs: one line that changes on a terminal, a line now and then elsewhere."""

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from millrace_spark.landing.landing_run import LandingState
from millrace_spark.landing.report import counted

_WINDOW_SECONDS = 10.0
_LINE_SECONDS = 10.0


class Screen:
    """Shows how a landing stands. A context manager, within which it is shown."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        """Shows nothing yet.

        Args:
            console: Where; standard error, since standard output is the report's.
            clock: Seconds.
        """
        self._console = console
        self._clock = clock
        self._state = LandingState()
        self._seen: deque[tuple[float, int]] = deque()
        self._spinner = Spinner("dots")
        self._live = Live(console=console, get_renderable=self._shown, transient=True, refresh_per_second=8)
        self._line_at = clock()
        self._line = ""

    def watch(self, state: LandingState) -> None:
        """From now on shows this one."""
        self._state = state

    def look(self) -> None:
        """Called again and again; writes a line where there is no terminal and something is new."""
        now = self._clock()
        self._seen.append((now, self._state.account.events))
        while self._seen[0][0] < now - _WINDOW_SECONDS and len(self._seen) > 1:
            self._seen.popleft()
        if not self._console.is_terminal and now - self._line_at >= _LINE_SECONDS:
            self._line_at = now
            if (line := self.line()) != self._line:
                self._line = line
                self._console.print(line, soft_wrap=True, markup=False, highlight=False)

    def line(self) -> str:
        """How it stands."""
        state, account = self._state, self._state.account
        parts = [state.phase]
        if account.batches:
            parts += [
                counted(account.batches, "batch", "batches"),
                f"{account.events:,} events",
                f"{self._rate():,.0f}/s",
                counted(account.files, "file", "files"),
            ]
        if account.bad_lines:
            parts.append(counted(account.bad_lines, "bad line", "bad lines"))
        if state.lag is not None:
            parts.append(f"lag {state.lag:,}")
        return " · ".join(parts)

    def _rate(self) -> float:
        if len(self._seen) < 2:  # noqa: PLR2004 - a rate needs two looks
            return 0.0
        (began_at, before), (ended_at, after) = self._seen[0], self._seen[-1]
        return (after - before) / max(ended_at - began_at, 0.001)

    def _shown(self) -> Spinner:
        self._spinner.update(text=Text(self.line(), no_wrap=True, overflow="ellipsis"))
        return self._spinner

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()
