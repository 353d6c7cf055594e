"""Metrics of producers and consumers, as monitoring systems know them."""

from dataclasses import dataclass

_UNITS = {"bytes": "By", "seconds": "s"}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric that is a single number."""

    name: str
    """Its field, and its Prometheus name without the prefix and without the suffix of counters."""
    is_counter: bool
    noun: str
    """What it counts, in the plural."""
    help: str

    @property
    def unit(self) -> str:
        """Its unit for OpenTelemetry, in UCUM: a unit, or the noun in braces."""
        return _UNITS.get(self.noun, f"{{{self.noun}}}")

    def read(self, metrics: object) -> float:
        """Returns its value among a producer's or consumer's metrics."""
        value: float = getattr(metrics, self.name)
        return value
