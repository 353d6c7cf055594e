"""The options of `format("millrace")`."""

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from millrace_spark.errors import OptionError
from millrace_spark.ranges import ClaimedRange, ranges_from_json

EVENTS_PER_PARTITION = 50_000
"""Each more Python task costs Spark 15 to 20 ms, which is what reading so many events costs."""

LOOK_LEASE_SECONDS = 5.0
"""Bridges the time from one task's read to the next, and does not keep others waiting for long after the last."""

OPTIONS: Mapping[str, str] = {
    "endpoints": "servers that hold the channel: host:port, several with commas between",
    "channel": "the channel's name, the same on each server",
    "readerId": "who claims the channel; without it a name made of user, machine and Spark application",
    "leaseSeconds": f"how long the claim lives without a read; {LOOK_LEASE_SECONDS:.0f} without it",
    "takeover": "true: end another reader's claim on the channel",
    "maxEventsPerPartition": f"larger ranges are split among tasks; {EVENTS_PER_PARTITION:,} without it",
    "ranges": "what millrace_spark.claim_ranges() claimed; stands for all options but maxEventsPerPartition",
}
"""Each option and what it says."""

_NAMES = {name.lower(): name for name in OPTIONS}
_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\],]+):[0-9]{1,5}")

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class ClaimOptions:
    """Whose channel to claim, and how."""

    endpoints: tuple[str, ...]
    channel: str
    reader_id: str
    lease_seconds: float | None
    takeover: bool


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What a read was asked for."""

    source: ClaimOptions | tuple[ClaimedRange, ...]
    """What is to be claimed when Spark plans the read, or what was claimed before."""
    events_per_partition_max: int


def parse_options(options: Mapping[str, str], default_reader_id: str) -> ReadOptions:
    """Reads the options that a user gave; names in any case.

    Raises:
        OptionError: An option is unknown, missing, or has a value that is not allowed.
    """
    values = {_known_name(name): value.strip() for name, value in options.items()}
    events_per_partition_max = _value(values, "maxEventsPerPartition", parse_count) or EVENTS_PER_PARTITION
    if "ranges" in values:
        if others := sorted(set(values) - {"ranges", "maxEventsPerPartition"}):
            raise OptionError(f"option ranges: says what was claimed already; leave out {', '.join(others)}")
        ranges = ranges_from_json(values["ranges"])
        return ReadOptions(source=ranges, events_per_partition_max=events_per_partition_max)
    for name in ("endpoints", "channel"):
        if not values.get(name):
            raise OptionError(f"option {name}: is missing; give {OPTIONS[name]}")
    source = ClaimOptions(
        endpoints=parse_endpoints(values["endpoints"]),
        channel=values["channel"],
        reader_id=values.get("readerId") or default_reader_id,
        lease_seconds=_value(values, "leaseSeconds", parse_seconds) or LOOK_LEASE_SECONDS,
        takeover=_value(values, "takeover", parse_flag) or False,
    )
    return ReadOptions(source=source, events_per_partition_max=events_per_partition_max)


def parse_endpoints(text: str) -> tuple[str, ...]:
    """Servers, with commas between.

    Raises:
        OptionError: One is no `host:port`, comes twice, or there is none.
    """
    endpoints = [endpoint.strip() for endpoint in text.split(",")]
    for endpoint in endpoints:
        if not _ENDPOINT.fullmatch(endpoint):
            raise OptionError(f"option endpoints: {endpoint!r} is no host:port such as 127.0.0.1:7070")
        if endpoints.count(endpoint) > 1:
            raise OptionError(f"option endpoints: {endpoint} comes twice; its events would too")
    return tuple(endpoints)


def parse_count(text: str) -> int:
    """A count of at least 1."""
    if not re.fullmatch(r"[0-9]{1,18}", text) or not int(text):
        raise ValueError("a whole number from 1 on")
    return int(text)


def parse_seconds(text: str) -> float:
    """A duration above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError("a number of seconds above 0")
    return seconds


def parse_flag(text: str) -> bool:
    """True or false, in any case."""
    if text.lower() not in {"true", "false"}:
        raise ValueError("true or false")
    return text.lower() == "true"


def _known_name(name: str) -> str:
    known = _NAMES.get(name.lower())
    if known is None:
        near = difflib.get_close_matches(name.lower(), _NAMES, n=1)
        hint = f"did you mean {_NAMES[near[0]]}?" if near else f"the options are {', '.join(OPTIONS)}"
        raise OptionError(f"option {name}: is unknown; {hint}")
    return known


def _value(values: Mapping[str, str], name: str, parse: Callable[[str], Value]) -> Value | None:
    if name not in values:
        return None
    try:
        return parse(values[name])
    except ValueError as error:
        raise OptionError(f"option {name}: is {values[name]!r}; it must be {error}") from None
