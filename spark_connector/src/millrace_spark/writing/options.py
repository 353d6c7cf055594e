"""The options of writing: `df.write` and `df.writeStream`."""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

from millrace_spark.errors import OptionError
from millrace_spark.option_values import OptionValues, parse_choice, parse_endpoints, parse_flag, parse_seconds
from millrace_spark.reading.options import OPTIONS, RETRY_SECONDS

LEASE_SECONDS = 600.0
"""From a task's last put to the driver's commit, the slowest task of a batch included."""

LEASE_SECONDS_MAX = 3_600.0
"""Servers grant no longer lease."""

WRITE_OPTIONS: Mapping[str, str] = {
    "endpoints": "servers that hold the channels: host:port, several with commas between",
    "channel": "the channel that all rows go to, whatever the column channel says; without it that column says",
    "producerId": (
        "who writes, in the stamps by which servers know repeats; without it a stream's is spark-<query id>, and each "
        "batch save has one of its own"
    ),
    "batchNumber": "batch saves: the save's number among those of its producerId, from 0 on; 0 without it",
    "batchNumbersRise": (
        "batch saves: true: a save of a lower batchNumber never comes any more, so the channel need not remember which "
        "of those it has had; one that comes all the same may be taken for a repeat, and lost"
    ),
    "routing": (
        "to which of several servers rows go: key, by the column key (without it, where there is that column), or "
        "roundRobin"
    ),
    "leaseSeconds": (
        f"how long what tasks have put waits for the commit; {LEASE_SECONDS:.0f} without it, at most "
        f"{LEASE_SECONDS_MAX:,.0f}"
    ),
    "retrySeconds": (
        "how long a server that cannot be reached, or a channel without room, is tried again, by the driver and by "
        f"each task; {RETRY_SECONDS:.0f} without it"
    ),
}
"""Each option of writing and what it says."""

_OF_SPARK = {"checkpointlocation", "queryname"}
_ASYNC_PROGRESS = "asyncprogresstrackingenabled"
_PRODUCER_ID = re.compile(r"[!-~]{1,100}")


class WriteRouting(enum.Enum):
    """How rows are shared out among several servers."""

    KEY = "key"
    """By the column `key`: equal keys go to the same server."""
    ROUND_ROBIN = "roundRobin"
    """A stream's batches by turns; a batch save's tasks by turns."""


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """What a write was asked for."""

    endpoints: tuple[str, ...]
    """Servers, sorted: their order says nothing."""
    channel: str
    """Where all rows go; empty where the column `channel` says."""
    producer_id: str
    """Who writes; empty where it was not said."""
    batch_number: int
    """The number of a batch save."""
    batch_numbers_increase: bool
    """Whether no batch of a lower number comes any more, as with streams."""
    routing: WriteRouting | None
    """How rows are shared out; None where the columns decide."""
    lease_seconds: float
    """How long open transactions wait for a call."""
    retry_seconds: float
    """How long servers that cannot serve are tried again."""


def parse_write_options(options: Mapping[str, str], *, is_streaming: bool) -> WriteOptions:
    """Reads the options of a write; names in any case.

    Raises:
        OptionError: An option is unknown, missing, one of reading, or has a value that is not allowed.
    """
    values = OptionValues(_own(options, is_streaming=is_streaming), WRITE_OPTIONS)
    if not values.text("endpoints"):
        raise OptionError(f"option endpoints: is missing; give {WRITE_OPTIONS['endpoints']}")
    if "batchNumber" in values:
        if is_streaming:
            raise OptionError(
                "option batchNumber: is for batch saves; leave it out, since a stream's batches have theirs"
            )
        if "producerId" not in values:
            raise OptionError("option batchNumber: goes with producerId only; give that too, or leave both out")
    if "batchNumbersRise" in values:
        if is_streaming:
            raise OptionError(
                "option batchNumbersRise: is for batch saves; leave it out, since those of a stream always do"
            )
        if "batchNumber" not in values:
            raise OptionError("option batchNumbersRise: goes with batchNumber only; give that too, or leave both out")
    return WriteOptions(
        endpoints=tuple(sorted(parse_endpoints(values.text("endpoints")))),
        channel=values.text("channel"),
        producer_id=values.value("producerId", _parse_producer_id, ""),
        batch_number=values.value("batchNumber", _parse_number, 0),
        batch_numbers_increase=values.value("batchNumbersRise", parse_flag, default=is_streaming),
        routing=values.value("routing", _parse_routing, None),
        lease_seconds=values.value("leaseSeconds", _parse_lease, LEASE_SECONDS),
        retry_seconds=values.value("retrySeconds", parse_seconds, RETRY_SECONDS),
    )


def _own(options: Mapping[str, str], *, is_streaming: bool) -> Mapping[str, str]:
    """The options that are not Spark's own; refuses those that are another's."""
    own = {}
    known = {name.lower() for name in WRITE_OPTIONS}
    reading = {name.lower(): name for name in OPTIONS}
    for name, value in options.items():
        lower = name.lower()
        if lower == "path":
            raise OptionError(
                f"path {value!r}: is none that Millrace has; name servers by endpoints, and the channel by channel"
            )
        if lower == "channels":
            raise OptionError("option channels: is one of reading; did you mean channel?")
        if lower == _ASYNC_PROGRESS and value.strip().lower() == "true":
            # Then a repeated batch may have other rows than the first time, and they would be taken for stored.
            raise OptionError(
                "option asyncProgressTrackingEnabled: is true, and then Spark may repeat a batch with other rows under "
                "the same number, which would be lost; leave it out"
            )
        if lower in reading and lower not in known:
            raise OptionError(
                f"option {reading[lower]}: is one of reading; the options of writing are {', '.join(WRITE_OPTIONS)}"
            )
        if not (is_streaming and lower in _OF_SPARK) and not lower.startswith("asyncprogresstracking"):
            own[name] = value
    return own


def _parse_routing(text: str) -> WriteRouting:
    return WriteRouting(parse_choice(*(routing.value for routing in WriteRouting))(text))


def _parse_producer_id(text: str) -> str:
    # What names the servers comes behind it, and a server takes 128 characters.
    if not _PRODUCER_ID.fullmatch(text):
        raise ValueError("1 to 100 printable ASCII characters without spaces")
    return text


def _parse_lease(text: str) -> float:
    seconds = parse_seconds(text)
    if seconds > LEASE_SECONDS_MAX:
        raise ValueError(f"at most {LEASE_SECONDS_MAX:,.0f} seconds, which is all that servers grant")
    return seconds


def _parse_number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError("a whole number from 0 on")
    return int(text)
