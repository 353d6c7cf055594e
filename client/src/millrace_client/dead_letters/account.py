"""What a replay did, and what it left."""

from collections import Counter
from dataclasses import dataclass, field

REASONS_MAX = 100
"""Different reasons that are told apart."""

_OTHER_REASONS = "other reasons"


@dataclass(slots=True)
class ReplayAccount:
    """Counts while dead letters go back."""

    replayed: Counter[str] = field(default_factory=Counter)
    """Events that went back, by the channel that has them now; in a dry run those that would."""
    left: Counter[str] = field(default_factory=Counter)
    """Events that were meant and stay all the same, by why that is so, in a sentence."""
    passed_over: int = 0
    """Events that were not meant: other dead letters, and events that are none."""
    held_elsewhere: int = 0
    """Events that others' open transactions held when it began."""

    @property
    def replayed_count(self) -> int:
        """Events that went back."""
        return self.replayed.total()

    @property
    def left_count(self) -> int:
        """Events that were meant and stay."""
        return self.left.total()

    def leave(self, reason: str, count: int = 1) -> None:
        """Counts events that stay."""
        is_known = reason in self.left or len(self.left) < REASONS_MAX
        self.left[reason if is_known else _OTHER_REASONS] += count
