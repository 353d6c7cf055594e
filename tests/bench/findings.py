"""Single figures, each with its target, for a table of their own."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class Line:
    """One figure."""

    what: str
    value: float
    unit: str
    most: float | None = None
    """The target, if it is a maximum."""
    least: float | None = None
    """The target, if it is a minimum."""

    @property
    def shown(self) -> str:
        """The figure as shown in the table."""
        digits = 3 if abs(self.value) < 10 else 0
        return f"{self.value:,.{digits}f} {self.unit}".rstrip()

    @property
    def target(self) -> str:
        """The target in words; empty if there is none."""
        if self.most is not None:
            return f"at most {self.most:g}"
        return "" if self.least is None else f"at least {self.least:g}"

    @property
    def is_reached(self) -> bool:
        """Whether it meets its target."""
        is_below = self.most is None or self.value <= self.most
        return is_below and (self.least is None or self.value >= self.least)


@dataclass(frozen=True)
class Section:
    """A group of figures."""

    title: str
    lines: Sequence[Line]


class Plan(Protocol):
    """The extent of a survey."""

    @property
    def step_count(self) -> int:
        """The number of progress reports."""


Measure = Callable[[Path, Any, Callable[[], None]], Awaitable[list[Section]]]
"""Called with an empty directory on the disk that is measured, a plan, and what is to be called after each step."""


def on_thread(measure: Callable[[Path, Any, Callable[[], None]], list[Section]]) -> Measure:
    """The same on a thread, for what blocks."""

    async def run(scratch: Path, plan: Plan, on_step: Callable[[], None]) -> list[Section]:
        return await asyncio.to_thread(measure, scratch, plan, on_step)

    return run


@dataclass(frozen=True)
class Survey:
    """Measurements with servers of their own."""

    title: str
    measure: Measure
    plan: Plan
    quick_plan: Plan
