"""The options of reading: `spark.read` and `spark.readStream`."""

import enum
import getpass
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass

from millrace_spark.errors import OptionError
from millrace_spark.option_values import (
    OptionValues,
    parse_choice,
    parse_count,
    parse_endpoints,
    parse_flag,
    parse_seconds,
)
from millrace_spark.reading.bounds import Bounds, parse_bounds
from millrace_spark.reading.ranges import ClaimedRange, ranges_from_json
from millrace_spark.shards import parse_channels

_LENGTH_MAX = 128


def reader_id_of(process_id: int) -> str:
    """A name that tells whoever is refused by the claim where to look: user, machine and process."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        # A container may run under a number that has no name.
        user = "unknown"
    name = f"spark-{user}@{platform.node()}-{process_id}"
    return re.sub(r"[^!-~]", "_", name)[-_LENGTH_MAX:]


EVENTS_PER_PARTITION = 50_000
"""Each more Python task costs Spark 15 to 20 ms, which is what reading so many events costs."""

BATCH_LEASE_SECONDS = 5.0
"""Bridges the time from one task's read to the next, and does not keep others waiting for long after the last."""

STREAM_LEASE_SECONDS = 30.0
"""Outlives a pause of the process or a network that is away for a while."""

RETRY_SECONDS = 120.0
"""Bridges the restart of a server that has a long log to read."""

TRIGGER_DELAY_SECONDS = 900.0
"""As long as Kafka's source waits."""

OPTIONS: Mapping[str, str] = {
    "endpoints": "servers that hold the channels: host:port, several with commas between",
    "channels": "channels to read: names with commas between, or a pattern such as orders-*, looked up on each server",
    "startingSequences": (
        "where a new query or a batch read begins: earliest (without it), latest, or JSON by channel or shard: "
        '{"orders": 17, "audit@mill-2:7070": "latest"}'
    ),
    "endingSequences": "batch: where the read ends, excluded: latest (without it), or JSON in the same form",
    "maxEventsPerTrigger": "streams: most events of a micro-batch, all channels together; no limit without it",
    "maxBytesPerTrigger": "streams: most bytes of bodies of a micro-batch, by the mean size of each channel's bodies",
    "minEventsPerTrigger": "streams: a micro-batch waits for so many events, but not longer than maxTriggerDelay",
    "maxTriggerDelay": "streams: how long minEventsPerTrigger may hold events back: seconds, or 90s; 15m without it",
    "minPartitions": "at least so many tasks read, where there are events enough; as many as there must be without it",
    "maxEventsPerPartition": f"larger ranges are split among tasks; {EVENTS_PER_PARTITION:,} without it",
    "failOnDataLoss": (
        "true (without it): stop with a sentence where events are seen to be gone that were not read; false: warn, and "
        "go on from what is there"
    ),
    "ackMode": (
        "streams: when events are removed: progress (without it), when Spark asks for more, which is after it has "
        "logged the batch as done; commit, only in Spark's commit call, for async progress tracking; never"
    ),
    "ack": "batch: never (without it); to remove what was read, use claim_ranges(ack='onSuccess')",
    "readerId": "who claims the channels; without it a name made of user, machine and process",
    "leaseSeconds": (
        f"how long a claim outlives its reader; {BATCH_LEASE_SECONDS:.0f} without it, {STREAM_LEASE_SECONDS:.0f} in "
        "streams"
    ),
    "takeover": "true: end another reader's claim on the channels",
    "retrySeconds": (
        f"how long a server that cannot be reached is tried again, by the driver and by each task; {RETRY_SECONDS:.0f} "
        "without it"
    ),
    "ranges": (
        "batch: what claim_ranges() claimed; only maxEventsPerPartition, minPartitions and retrySeconds go with it"
    ),
}
"""Each option of reading and what it says."""

_STREAM_ONLY = {
    "maxEventsPerTrigger",
    "maxBytesPerTrigger",
    "minEventsPerTrigger",
    "maxTriggerDelay",
    "ackMode",
}
_BATCH_ONLY = {"endingSequences", "ack", "ranges"}
_WITH_RANGES = {"ranges", "maxEventsPerPartition", "minPartitions", "retrySeconds"}


class AckMode(enum.Enum):
    """When a stream removes events from their channels."""

    PROGRESS = "progress"
    """When Spark asks for the next batch: what came before is in its commit log then."""
    COMMIT = "commit"
    """When Spark calls the source's commit, one batch later; a run's last batch is removed when a next run has planned
    one."""
    NEVER = "never"
    """Not at all."""


@dataclass(frozen=True, kw_only=True)
class ClaimOptions:
    """Which channels to claim, and how."""

    endpoints: tuple[str, ...]
    """Servers."""
    channels: tuple[str, ...]
    """Names and patterns."""
    reader_id: str
    """Who claims; empty where the user gave no name and the process that claims makes one."""
    lease_seconds: float | None
    """How long a claim outlives its reader; None for the channel's own lease."""
    takeover: bool
    """Whether another reader's claim is ended."""
    retry_seconds: float = RETRY_SECONDS
    """How long servers that cannot be reached are tried again."""


@dataclass(frozen=True, kw_only=True)
class PartitionLimits:
    """How ranges are split among tasks."""

    events_max: int = EVENTS_PER_PARTITION
    """Most events of a task."""
    count_min: int = 1
    """Fewest tasks, where there are as many events."""


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """What a batch read was asked for."""

    source: ClaimOptions | tuple[ClaimedRange, ...]
    """What is to be claimed when Spark plans the read, or what was claimed before."""
    partitions: PartitionLimits
    """How it is split."""
    starting: Bounds
    """From where."""
    ending: Bounds
    """To where."""
    fail_on_data_loss: bool
    """Whether a range that is gone in part is refused."""
    retry_seconds: float
    """How long tasks try a server again."""


@dataclass(frozen=True, kw_only=True)
class TriggerLimits:
    """What a micro-batch may and must hold."""

    events_max: int | None
    """Most events; None for any number."""
    bytes_max: int | None
    """Most bytes of bodies, by their mean size; None for any number."""
    events_min: int
    """Fewest events, unless they have been held back for `delay_seconds_max`."""
    delay_seconds_max: float
    """How long events may be held back."""


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """What a stream was asked for."""

    claim: ClaimOptions
    """What is to be claimed."""
    partitions: PartitionLimits
    """How a micro-batch is split."""
    limits: TriggerLimits
    """What a micro-batch holds."""
    starting: Bounds
    """From where a new query reads."""
    ack_mode: AckMode
    """When events are removed."""
    fail_on_data_loss: bool
    """Whether the query ends where events are gone that it has not read."""


def check_options(options: Mapping[str, str]) -> None:
    """Makes sure that options can be those of some read, as far as can be told before Spark says of which.

    Raises:
        OptionError: One is unknown, or has a value that is not allowed.
    """
    values = OptionValues(options, OPTIONS)
    if _STREAM_ONLY.intersection(values.names):
        parse_stream_options(options)
    else:
        parse_batch_options(options, "")


def parse_batch_options(options: Mapping[str, str], default_reader_id: str) -> BatchOptions:
    """Reads the options of `spark.read`; names in any case.

    Raises:
        OptionError: An option is unknown, missing, for streams, or has a value that is not allowed.
    """
    values = OptionValues(options, OPTIONS)
    _refuse(values, _STREAM_ONLY, "is for streams; leave it out, or use spark.readStream")
    if values.value("ack", parse_choice("never", "onSuccess"), "never") != "never":
        raise OptionError(
            "option ack: is onSuccess, but Spark does not tell a batch source whether what it read was written; use "
            "with millrace_spark.claim_ranges(..., ack='onSuccess') as claimed: and claimed.load(spark) instead"
        )
    if "ranges" in values:
        if others := sorted(set(values.names) - _WITH_RANGES):
            raise OptionError(f"option ranges: says what was claimed already; leave out {', '.join(others)}")
        source: ClaimOptions | tuple[ClaimedRange, ...] = ranges_from_json(values.text("ranges"))
    else:
        source = _claim_options(values, default_reader_id, BATCH_LEASE_SECONDS)
    return BatchOptions(
        source=source,
        partitions=_partition_limits(values),
        starting=values.value("startingSequences", parse_bounds, Bounds("earliest")),
        ending=values.value("endingSequences", _parse_ending, Bounds("latest")),
        fail_on_data_loss=values.value("failOnDataLoss", parse_flag, default=True),
        retry_seconds=values.value("retrySeconds", parse_seconds, RETRY_SECONDS),
    )


def parse_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Reads the options of `spark.readStream`; names in any case.

    Raises:
        OptionError: An option is unknown, missing, for batch reads, or has a value that is not allowed.
    """
    values = OptionValues(options, OPTIONS)
    _refuse(values, _BATCH_ONLY, "is for batch reads; leave it out, or use spark.read")
    if "maxTriggerDelay" in values and "minEventsPerTrigger" not in values:
        raise OptionError(
            "option maxTriggerDelay: goes with minEventsPerTrigger only; give that too, or leave both out"
        )
    limits = TriggerLimits(
        events_max=values.value("maxEventsPerTrigger", parse_count, None),
        bytes_max=values.value("maxBytesPerTrigger", parse_count, None),
        events_min=values.value("minEventsPerTrigger", parse_count, 1),
        delay_seconds_max=values.value("maxTriggerDelay", parse_seconds, TRIGGER_DELAY_SECONDS),
    )
    if limits.events_max is not None and limits.events_min > limits.events_max:
        raise OptionError(
            f"option minEventsPerTrigger: is {limits.events_min}, above maxEventsPerTrigger, which is "
            f"{limits.events_max}; make it no larger than that"
        )
    return StreamOptions(
        claim=_claim_options(values, "", STREAM_LEASE_SECONDS),
        partitions=_partition_limits(values),
        limits=limits,
        starting=values.value("startingSequences", parse_bounds, Bounds("earliest")),
        ack_mode=AckMode(values.value("ackMode", parse_choice(*(mode.value for mode in AckMode)), "progress")),
        fail_on_data_loss=values.value("failOnDataLoss", parse_flag, default=True),
    )


def _claim_options(values: OptionValues, default_reader_id: str, lease_seconds: float) -> ClaimOptions:
    for name in ("endpoints", "channels"):
        if not values.text(name):
            raise OptionError(f"option {name}: is missing; give {OPTIONS[name]}")
    return ClaimOptions(
        endpoints=parse_endpoints(values.text("endpoints")),
        channels=parse_channels(values.text("channels")),
        reader_id=values.text("readerId") or default_reader_id,
        lease_seconds=values.value("leaseSeconds", parse_seconds, lease_seconds),
        takeover=values.value("takeover", parse_flag, default=False),
        retry_seconds=values.value("retrySeconds", parse_seconds, RETRY_SECONDS),
    )


def _partition_limits(values: OptionValues) -> PartitionLimits:
    return PartitionLimits(
        events_max=values.value("maxEventsPerPartition", parse_count, EVENTS_PER_PARTITION),
        count_min=values.value("minPartitions", parse_count, 1),
    )


def _parse_ending(text: str) -> Bounds:
    if text.lower() == "earliest":
        raise ValueError('latest, or JSON such as {"orders": 17}')
    bounds = parse_bounds(text)
    return Bounds("latest", bounds.by_name)


def _refuse(values: OptionValues, names: set[str], why: str) -> None:
    if strangers := sorted(names.intersection(values.names)):
        raise OptionError(f"option {strangers[0]}: {why}")
