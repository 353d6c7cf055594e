"""Where reading begins and ends: the options `startingSequences` and `endingSequences`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from millrace_spark.errors import OptionError
from millrace_spark.option_values import parse_json_object
from millrace_spark.shards import Shard

Bound: TypeAlias = int | str
"""A sequence, or `earliest` or `latest`: the oldest in the channel, and one past the newest."""

_WORDS = ("earliest", "latest")


@dataclass(frozen=True)
class Bounds:
    """A bound for each shard."""

    otherwise: Bound
    """The bound of what `by_name` does not name."""
    by_name: Mapping[str, Bound] = field(default_factory=dict)
    """Bounds of shards, `orders@127.0.0.1:7070`, and of channels on all servers, `orders`; the shard's own wins."""

    def is_latest(self, shard: Shard) -> bool:
        """Whether the shard's bound is one past the newest, which is another one at another time."""
        return self._bound(shard) == "latest"

    def sequence(self, shard: Shard, first_sequence: int, next_sequence: int) -> int:
        """The bound in a shard that holds events from `first_sequence` to `next_sequence`, excluded."""
        bound = self._bound(shard)
        if isinstance(bound, int):
            return bound
        return first_sequence if bound == "earliest" else next_sequence

    def _bound(self, shard: Shard) -> Bound:
        return self.by_name.get(str(shard), self.by_name.get(shard.channel, self.otherwise))

    def refuse_strangers(self, option: str, shards: Iterable[Shard]) -> None:
        """Makes sure that each name is that of something that is read.

        Raises:
            OptionError: One is not.
        """
        known = {name for shard in shards for name in (str(shard), shard.channel)}
        if strangers := sorted(set(self.by_name) - known):
            raise OptionError(
                f"option {option}: names {strangers[0]}, which is not read; what is read is {', '.join(sorted(known))}"
            )


def parse_bounds(text: str) -> Bounds:
    """`earliest`, `latest`, or a JSON object with a bound for each channel or shard.

    Raises:
        ValueError: It is none of these.
    """
    if text.lower() in _WORDS:
        return Bounds(text.lower())
    allowed = 'earliest, latest, or JSON such as {"orders": 17, "audit@mill-2:7070": "latest"}'
    try:
        named = parse_json_object(text)
        return Bounds("earliest", {name: _bound(value) for name, value in named.items()})
    except ValueError:
        raise ValueError(allowed) from None


def _bound(value: object) -> Bound:
    if isinstance(value, str) and value.lower() in _WORDS:
        return value.lower()
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise ValueError
