"""The range of a read: the options `startingSequences`, `startingTimestamp` and `endingSequences`."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self, TypeAlias

from millrace_spark.errors import DataLossError, OptionError
from millrace_spark.option_values import parse_json_object
from millrace_spark.reading.ranges import ClaimedRange
from millrace_spark.shards import Shard

Bound: TypeAlias = int | str
"""A sequence; or `earliest`, the oldest in the channel; or `latest`, one past the newest."""

_WORDS = ("earliest", "latest")


@dataclass(frozen=True)
class Bounds:
    """A bound for each shard."""

    otherwise: Bound
    """The bound of shards that `by_name` does not name."""
    by_name: Mapping[str, Bound] = field(default_factory=dict)
    """Bounds of shards, `orders@127.0.0.1:7070`, and of channels on all servers, `orders`. A shard's own bound wins."""

    @classmethod
    def since(cls, found: Mapping[Shard, int], next_sequences: Mapping[Shard, int]) -> Self:
        """Returns the bounds at the events that were found in shards; `latest` where only later events were found."""
        return cls("latest", {str(shard): first for shard, first in found.items() if first < next_sequences[shard]})

    def is_latest(self, shard: Shard) -> bool:
        """Whether the bound of a shard is one past the newest event, which changes with time."""
        return self._bound(shard) == "latest"

    def sequence(self, shard: Shard, first_sequence: int, next_sequence: int) -> int:
        """Returns the bound in a shard that holds the events from `first_sequence` to before `next_sequence`."""
        bound = self._bound(shard)
        if isinstance(bound, int):
            return bound
        return first_sequence if bound == "earliest" else next_sequence

    def _bound(self, shard: Shard) -> Bound:
        return self.by_name.get(str(shard), self.by_name.get(shard.channel, self.otherwise))

    def check_names(self, option: str, shards: Iterable[Shard]) -> None:
        """Checks that each name is one of these shards, or of their channels."""
        known = {name for shard in shards for name in (str(shard), shard.channel)}
        if unknown := sorted(set(self.by_name) - known):
            raise OptionError(
                f"option {option}: names {unknown[0]}, which is not read; these are read: {', '.join(sorted(known))}"
            )


def parse_bounds(text: str) -> Bounds:
    """Parses `earliest`, `latest`, or a JSON object with a bound for each channel or shard.

    Raises:
        ValueError: The text has another form. The message describes the allowed values.
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


_log = logging.getLogger("millrace_spark")


def cut_ranges(
    ranges: Iterable[ClaimedRange], starting: Bounds, ending: Bounds, *, fail_on_data_loss: bool
) -> tuple[ClaimedRange, ...]:
    """Cuts claimed ranges to the part between the bounds.

    Raises:
        OptionError: A bound is beyond the end, an end is before its start, or a bound names a channel that is not read.
        DataLossError: Events at the start are gone, and `fail_on_data_loss` is set.
    """
    ranges = tuple(ranges)
    shards = [Shard(claimed.channel, claimed.endpoint) for claimed in ranges]
    starting.check_names("startingSequences", shards)
    ending.check_names("endingSequences", shards)
    cut = []
    for claimed, shard in zip(ranges, shards, strict=True):
        first, following = claimed.first_sequence, claimed.next_sequence
        start, end = starting.sequence(shard, first, following), ending.sequence(shard, first, following)
        _check_order(claimed, shard, start, end)
        if start < min(first, end):
            _report_loss(shard, start, min(first, end), first, is_fatal=fail_on_data_loss)
        start = max(start, first)
        cut.append(replace(claimed, first_sequence=start, next_sequence=max(start, end)))
    return tuple(cut)


def _check_order(claimed: ClaimedRange, shard: Shard, start: int, end: int) -> None:
    first, following = claimed.first_sequence, claimed.next_sequence
    if max(start, end) > following:
        holds = f"holds {first} to {following - 1}" if first < following else "is empty"
        name = "startingSequences" if start > following else "endingSequences"
        raise OptionError(
            f"option {name}: is {max(start, end)}, but channel {shard} {holds} and the next sequence is {following}; "
            "set it to that or less"
        )
    if end < start:
        raise OptionError(
            f"option endingSequences: is {end} for {shard}, before its start, {start}; swap them, or remove one"
        )


def _report_loss(shard: Shard, start: int, end: int, first: int, *, is_fatal: bool) -> None:
    loss = f"channel {shard}: events {start} to {end - 1} have been consumed"
    if is_fatal:
        raise DataLossError(
            f"{loss}; start at {first}, or set the option failOnDataLoss to false to read the events that remain"
        )
    _log.warning("%s; failOnDataLoss is false, so the events that remain are read", loss)
