"""The options of writing: `df.write` and `df.writeStream`."""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

from millrace_spark.errors import OptionError
from millrace_spark.option_values import (
    LEASE_SECONDS_MAX,
    PLAINTEXT,
    RETRY_SECONDS_MAX,
    SECURITY_OPTIONS,
    OptionValues,
    Security,
    parse_choice,
    parse_flag,
    parse_lease,
    parse_retry,
    security_of,
)
from millrace_spark.reading.options import OPTIONS, RETRY_SECONDS
from millrace_spark.shards import parse_endpoints
from millrace_spark.tracing import WRITE_TRACING_OPTIONS, JobTracing

LEASE_SECONDS = 600.0
"""Covers the time from a task's last put to the driver's commit, which waits for the slowest task."""

WRITE_OPTIONS: Mapping[str, str] = {
    "endpoints": (
        "servers that hold the channels: host:port, comma-separated; those that share replicated channels are one of "
        "them, with slashes between: mill-1:7070/mill-2:7070"
    ),
    "channel": "the channel for all rows, which overrides the column channel; default: the column channel",
    "producerId": (
        "the producer's id in the stamps by which servers recognize repeats; default: spark-<query id> for a stream, "
        "and a new one for each batch save"
    ),
    "batchNumber": "batch saves: the number of the save among those of its producerId; default: 0",
    "batchNumbersRise": (
        "batch saves: true: no save with a lower batchNumber follows, so the channel need not remember which of them "
        "it has stored; a save that follows nevertheless may be taken for a repeat, and lost; default: false"
    ),
    "routing": (
        "how rows are distributed among several servers: key, by the column key (default if there is that column), or "
        "roundRobin"
    ),
    "leaseSeconds": (
        f"how long the transactions of tasks wait for the commit; default: {LEASE_SECONDS:.0f}, at most "
        f"{LEASE_SECONDS_MAX:,.0f}"
    ),
    "retrySeconds": (
        "how long the driver and each task retry calls to a server that is unreachable, or a channel that is full; "
        f"default: {RETRY_SECONDS:.0f}, at most {RETRY_SECONDS_MAX:,.0f}"
    ),
    **SECURITY_OPTIONS,
    **WRITE_TRACING_OPTIONS,
}
"""The options of writing, with their descriptions."""

_OF_SPARK = {"checkpointlocation", "queryname"}
_ASYNC_PROGRESS = "asyncprogresstrackingenabled"
_PRODUCER_ID = re.compile(r"[!-~]{1,100}")


class WriteRouting(enum.Enum):
    """How rows are distributed among several servers."""

    KEY = "key"
    """By the column `key`: rows with equal keys go to the same server."""
    ROUND_ROBIN = "roundRobin"
    """The batches of a stream, or the tasks of a batch save, go to the servers in turn."""


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """The options of a write."""

    endpoints: tuple[str, ...]
    """The servers, sorted, since their order has no meaning."""
    channel: str
    """The channel for all rows; empty if the column `channel` names it."""
    producer_id: str
    batch_number: int
    batch_numbers_increase: bool
    """Whether no batch with a lower number follows, as in streams."""
    routing: WriteRouting | None
    """How rows are distributed; None if the columns decide."""
    lease_seconds: float
    retry_seconds: float
    security: Security = PLAINTEXT
    tracing: JobTracing | None = None


def parse_write_options(options: Mapping[str, str], *, is_streaming: bool) -> WriteOptions:
    """Parses the options of a write; names in any case."""
    values = OptionValues(_own(options, is_streaming=is_streaming), WRITE_OPTIONS)
    if not values.text("endpoints"):
        raise OptionError(f"option endpoints: is missing; give {WRITE_OPTIONS['endpoints']}")
    for name, needed in (("batchNumber", "producerId"), ("batchNumbersRise", "batchNumber")):
        if name in values and is_streaming:
            raise OptionError(f"option {name}: is for batch saves; remove it, since Spark numbers a stream's batches")
        if name in values and needed not in values:
            raise OptionError(f"option {name}: needs {needed}; set both, or neither")
    return WriteOptions(
        endpoints=tuple(sorted(parse_endpoints(values.text("endpoints")))),
        channel=values.text("channel"),
        producer_id=values.value("producerId", _parse_producer_id, ""),
        batch_number=values.value("batchNumber", _parse_number, 0),
        batch_numbers_increase=values.value("batchNumbersRise", parse_flag, default=is_streaming),
        routing=values.value("routing", _parse_routing, None),
        lease_seconds=values.value("leaseSeconds", parse_lease, LEASE_SECONDS),
        retry_seconds=values.value("retrySeconds", parse_retry, RETRY_SECONDS),
        security=security_of(values),
        tracing=JobTracing.of(values),
    )


def _own(options: Mapping[str, str], *, is_streaming: bool) -> Mapping[str, str]:
    """Returns the options of this source, without those of Spark."""
    own = {}
    known = {name.lower() for name in WRITE_OPTIONS}
    reading = {name.lower(): name for name in OPTIONS}
    for name, value in options.items():
        lower = name.lower()
        if lower == "path":
            raise OptionError(
                f"path {value!r}: is not supported; name the servers by the option endpoints, the channel by channel"
            )
        if lower == "channels":
            raise OptionError("option channels: is for reading; did you mean channel?")
        if lower == _ASYNC_PROGRESS and value.strip().lower() == "true":
            # Then a repeated batch may have other rows than at first, which would be taken for stored.
            raise OptionError(
                "option asyncProgressTrackingEnabled: is true; Spark may then repeat a batch with other rows under "
                "the same number, which would be lost; remove it"
            )
        if lower in reading and lower not in known:
            raise OptionError(
                f"option {reading[lower]}: is for reading; the options of writing are {', '.join(WRITE_OPTIONS)}"
            )
        if not (is_streaming and lower in _OF_SPARK) and not lower.startswith("asyncprogresstracking"):
            own[name] = value
    return own


def _parse_routing(text: str) -> WriteRouting:
    return WriteRouting(parse_choice(*(routing.value for routing in WriteRouting))(text))


def _parse_producer_id(text: str) -> str:
    # A suffix that identifies the servers follows, and a server accepts 128 characters.
    if not _PRODUCER_ID.fullmatch(text):
        raise ValueError("1 to 100 printable ASCII characters without spaces")
    return text


def _parse_number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError("a whole number from 0 on")
    return int(text)
