"""Single figures, each with its target, for a table of their own."""

from collections.abc import Sequence
from dataclasses import dataclass


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
