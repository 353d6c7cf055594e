"""The options of reading: `spark.read` and `spark.readStream`."""

import enum
import getpass
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from millrace_spark.errors import OptionError
from millrace_spark.option_values import (
    LEASE_SECONDS_MAX,
    PLAINTEXT,
    RETRY_SECONDS_MAX,
    SECURITY_OPTIONS,
    OptionValues,
    Security,
    parse_choice,
    parse_count,
    parse_flag,
    parse_lease,
    parse_retry,
    parse_seconds,
    parse_timestamp,
    security_of,
)
from millrace_spark.reading.bounds import Bounds, parse_bounds
from millrace_spark.reading.ranges import ClaimedRange, ranges_from_json
from millrace_spark.shards import parse_channels, parse_endpoints
from millrace_spark.tracing import TRACING_OPTIONS, JobTracing

_LENGTH_MAX = 128


def reader_id_of(process_id: int) -> str:
    """Returns a name with user, machine and process, so that other readers can find the holder of a claim."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        # A container may run under a user id without a name.
        user = "unknown"
    name = f"spark-{user}@{platform.node()}-{process_id}"
    return re.sub(r"[^!-~]", "_", name)[-_LENGTH_MAX:]


EVENTS_PER_PARTITION = 250_000
"""In a batch read. Each Python task costs some 50 ms of processor time. With events of 512 bytes, this is as much as
Spark reads from a file in one task."""

STREAM_EVENTS_PER_PARTITION = 100_000
"""In a stream, where a micro-batch is to occupy several cores."""

BATCH_LEASE_SECONDS = 5.0
"""Covers the time between the reads of two tasks, without blocking other readers long after the last one."""

STREAM_LEASE_SECONDS = 30.0
"""Covers a pause of the process or a short network outage."""

RETRY_SECONDS = 120.0
"""Covers the restart of a server that replays a long log."""

TRIGGER_DELAY_SECONDS = 900.0
"""The default of Spark's Kafka source."""

OPTIONS: Mapping[str, str] = {
    "endpoints": (
        "servers that hold the channels: host:port, comma-separated; those that share replicated channels are one of "
        "them, with slashes between: mill-1:7070/mill-2:7070"
    ),
    "channels": "channels to read: names or patterns such as orders-*, comma-separated, looked up on each server",
    "startingSequences": (
        "where a new query or a batch read starts: earliest (default), latest, or JSON by channel or shard: "
        '{"orders": 17, "audit@mill-2:7070": "latest"}'
    ),
    "startingTimestamp": (
        "where it starts instead: at the first event of each channel committed at or after this time, or latest if "
        "there is none; ISO 8601 with a zone such as 2026-01-31T08:00:00Z, or milliseconds since 1970"
    ),
    "endingSequences": "batch: where the read ends, exclusive: latest (default), or JSON in the same form",
    "maxEventsPerTrigger": "streams: maximum events of a micro-batch, over all channels; default: no limit",
    "maxBytesPerTrigger": "streams: maximum bytes of bodies in a micro-batch, by the mean body size of each channel",
    "minEventsPerTrigger": "streams: minimum events of a micro-batch, for which it waits up to maxTriggerDelay",
    "maxTriggerDelay": "streams: the longest wait for minEventsPerTrigger: seconds, or such as 90s; default: 15m",
    "minPartitions": "minimum number of tasks, if there are enough events; default: as few as possible",
    "maxEventsPerPartition": (
        f"larger ranges are split among tasks; default: {EVENTS_PER_PARTITION:,}, "
        f"in streams {STREAM_EVENTS_PER_PARTITION:,}"
    ),
    "failOnDataLoss": (
        "true (default): fail if events are gone that were not read, as far as this can be detected; false: log a "
        "warning, and continue with the remaining events"
    ),
    "ackMode": (
        "streams: when events are removed: progress (default), when Spark asks for the next batch, after it has "
        "committed the last one; commit, only in Spark's commit call, for async progress tracking; never"
    ),
    "ack": "batch: never (default); to remove the events that were read, use claim_ranges(ack='onSuccess')",
    "readerId": "the reader that claims the channels; default: a name with user, machine and process",
    "leaseSeconds": (
        f"how long a claim outlives its reader; default: {BATCH_LEASE_SECONDS:.0f}, "
        f"in streams {STREAM_LEASE_SECONDS:.0f}; at most {LEASE_SECONDS_MAX:,.0f}"
    ),
    "takeover": "true: end another reader's claim on the channels; default: false",
    "retrySeconds": (
        f"how long the driver and each task retry calls to a server that is unreachable; default: {RETRY_SECONDS:.0f}, "
        f"at most {RETRY_SECONDS_MAX:,.0f}"
    ),
    "ranges": (
        "batch: the ranges of claim_ranges(); goes with endpoints, failOnDataLoss, maxEventsPerPartition, "
        "minPartitions, retrySeconds, tls.*, token* and tracing* only"
    ),
    **SECURITY_OPTIONS,
    **TRACING_OPTIONS,
}
"""The options of reading, with their descriptions."""

_STREAM_ONLY = {
    "maxEventsPerTrigger",
    "maxBytesPerTrigger",
    "minEventsPerTrigger",
    "maxTriggerDelay",
    "ackMode",
}
_BATCH_ONLY = {"endingSequences", "ack", "ranges"}
_WITH_RANGES = {
    "ranges",
    "endpoints",
    "failOnDataLoss",
    "maxEventsPerPartition",
    "minPartitions",
    "retrySeconds",
    *SECURITY_OPTIONS,
    *TRACING_OPTIONS,
}
"""With ranges, endpoints tell which servers share the channels of an endpoint."""


class AckMode(enum.Enum):
    """When a stream removes events from their channels."""

    PROGRESS = "progress"
    """When Spark asks for the next batch: the one before is in its commit log by then."""
    COMMIT = "commit"
    """When Spark calls the source's commit, one batch later. The next run removes the last batch of this one."""
    NEVER = "never"


@dataclass(frozen=True, kw_only=True)
class ClaimOptions:
    """The channels to claim, and how to claim them."""

    endpoints: tuple[str, ...]
    channels: tuple[str, ...]
    reader_id: str
    """The reader; empty if the process that claims chooses a default."""
    lease_seconds: float | None
    """The lease of a claim; None for the channel's default."""
    takeover: bool
    retry_seconds: float = RETRY_SECONDS
    security: Security = PLAINTEXT


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """How tasks read their ranges."""

    fail_on_data_loss: bool = True
    retry_seconds: float = RETRY_SECONDS
    security: Security = PLAINTEXT
    tracing: JobTracing | None = None


@dataclass(frozen=True, kw_only=True)
class PartitionLimits:
    """Limits on the ranges of tasks."""

    events_max: int
    count_min: int = 1
    """The fewest tasks, if there are enough events."""


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """The options of a batch read."""

    source: ClaimOptions | tuple[ClaimedRange, ...]
    """The channels to claim when Spark plans the read, or ranges that are already claimed."""
    partitions: PartitionLimits
    starting: Bounds | datetime
    ending: Bounds
    tasks: TaskOptions = TaskOptions()


@dataclass(frozen=True, kw_only=True)
class TriggerLimits:
    """Limits on the size of a micro-batch."""

    events_max: int | None
    bytes_max: int | None
    """The maximum number of bytes of bodies, by their mean size; None for no limit."""
    events_min: int
    """The fewest events, unless the batch has waited for `delay_seconds_max`."""
    delay_seconds_max: float


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """The options of a stream."""

    claim: ClaimOptions
    partitions: PartitionLimits
    limits: TriggerLimits
    starting: Bounds | datetime
    ack_mode: AckMode
    tasks: TaskOptions = TaskOptions()


def check_options(options: Mapping[str, str]) -> None:
    """Checks options before Spark says whether the read is a batch or a stream."""
    values = OptionValues(options, OPTIONS)
    if _STREAM_ONLY.intersection(values.names):
        parse_stream_options(options)
    else:
        parse_batch_options(options, "")


def parse_batch_options(options: Mapping[str, str], default_reader_id: str) -> BatchOptions:
    """Parses the options of `spark.read`; names in any case."""
    values = OptionValues(options, OPTIONS)
    _refuse(values, _STREAM_ONLY, "is for streams; leave it out, or use spark.readStream")
    if values.value("ack", parse_choice("never", "onSuccess"), "never") != "never":
        raise OptionError(
            "option ack: is onSuccess, but Spark does not tell a batch source whether its rows were written; use "
            "with millrace_spark.claim_ranges(..., ack='onSuccess') as claimed: and claimed.load(spark) instead"
        )
    if "ranges" in values:
        if others := sorted(set(values.names) - _WITH_RANGES):
            raise OptionError(f"option ranges: names ranges that are already claimed; remove {', '.join(others)}")
        source: ClaimOptions | tuple[ClaimedRange, ...] = ranges_from_json(values.text("ranges"))
    else:
        source = _claim_options(values, default_reader_id, BATCH_LEASE_SECONDS)
    return BatchOptions(
        source=source,
        partitions=_partition_limits(values, EVENTS_PER_PARTITION),
        starting=_starting(values),
        ending=values.value("endingSequences", _parse_ending, Bounds("latest")),
        tasks=_task_options(values),
    )


def parse_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Parses the options of `spark.readStream`; names in any case."""
    values = OptionValues(options, OPTIONS)
    _refuse(values, _BATCH_ONLY, "is for batch reads; leave it out, or use spark.read")
    if "maxTriggerDelay" in values and "minEventsPerTrigger" not in values:
        raise OptionError("option maxTriggerDelay: needs minEventsPerTrigger; set both, or neither")
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
        partitions=_partition_limits(values, STREAM_EVENTS_PER_PARTITION),
        limits=limits,
        starting=_starting(values),
        ack_mode=AckMode(values.value("ackMode", parse_choice(*(mode.value for mode in AckMode)), "progress")),
        tasks=_task_options(values),
    )


def _starting(values: OptionValues) -> Bounds | datetime:
    if "startingTimestamp" in values and "startingSequences" in values:
        raise OptionError("option startingTimestamp: excludes startingSequences; remove one of them")
    since: datetime | None = values.value("startingTimestamp", parse_timestamp, None)
    return since or values.value("startingSequences", parse_bounds, Bounds("earliest"))


def _claim_options(values: OptionValues, default_reader_id: str, lease_seconds: float) -> ClaimOptions:
    for name in ("endpoints", "channels"):
        if not values.text(name):
            raise OptionError(f"option {name}: is missing; give {OPTIONS[name]}")
    return ClaimOptions(
        endpoints=parse_endpoints(values.text("endpoints")),
        channels=parse_channels(values.text("channels")),
        reader_id=values.text("readerId") or default_reader_id,
        lease_seconds=values.value("leaseSeconds", parse_lease, lease_seconds),
        takeover=values.value("takeover", parse_flag, default=False),
        retry_seconds=values.value("retrySeconds", parse_retry, RETRY_SECONDS),
        security=security_of(values),
    )


def _task_options(values: OptionValues) -> TaskOptions:
    return TaskOptions(
        fail_on_data_loss=values.value("failOnDataLoss", parse_flag, default=True),
        retry_seconds=values.value("retrySeconds", parse_retry, RETRY_SECONDS),
        security=security_of(values),
        tracing=JobTracing.of(values),
    )


def _partition_limits(values: OptionValues, events_max: int) -> PartitionLimits:
    return PartitionLimits(
        events_max=values.value("maxEventsPerPartition", parse_count, events_max),
        count_min=values.value("minPartitions", parse_count, 1),
    )


def _parse_ending(text: str) -> Bounds:
    if text.lower() == "earliest":
        raise ValueError('latest, or JSON such as {"orders": 17}')
    bounds = parse_bounds(text)
    return Bounds("latest", bounds.by_name)


def _refuse(values: OptionValues, names: set[str], why: str) -> None:
    if refused := sorted(names.intersection(values.names)):
        raise OptionError(f"option {refused[0]}: {why}")
