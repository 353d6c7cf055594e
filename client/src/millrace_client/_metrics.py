"""Metrics of producers and consumers, as monitoring systems know them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

StateT = TypeVar("StateT")

_UNITS = {"bytes": "By", "seconds": "s"}


@dataclass(frozen=True, slots=True)
class Metric(Generic[StateT]):
    """One metric that is a single number."""

    name: str
    """Its Prometheus name, without the prefix and without the suffix of counters."""
    is_counter: bool
    """Whether it only grows."""
    noun: str
    """What it counts, in the plural."""
    help: str
    read: Callable[[StateT], float]

    @property
    def unit(self) -> str:
        """Its unit for OpenTelemetry, in UCUM: a unit, or the noun in braces."""
        return _UNITS.get(self.noun, f"{{{self.noun}}}")
