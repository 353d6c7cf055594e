"""A clock for what takes one as an argument."""

from dataclasses import dataclass


@dataclass
class FakeClock:
    """Stands still unless a test moves it."""

    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now
