"""The metrics of channels, for Prometheus and in the layout of Flume's JSON."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_handle import ChannelHandle, ChannelState
from millrace_server.channels.log_store import LogStore
from millrace_server.http_service.channel_table import SLICE_CHANNELS, ChannelTable
from millrace_server.http_service.occasional_gauges import OCCASIONAL_GAUGES, occasional_values

_CHANNEL_PREFIX = "millrace_channel_"
_MILLISECONDS = 1000


@dataclass(frozen=True, slots=True)
class Measure:
    """A metric of a channel, or of its files."""

    key: str
    """Its name in JSON; Flume's name if Flume has the same metric."""
    name: str
    """Its name for Prometheus, after `millrace_channel_`; `_total` is appended to a counter's."""
    help: str
    path: str
    """The attribute that is read, such as `disk_space.min_free_bytes`."""
    is_flumes: bool = False
    """Whether Flume has the same metric under this key."""

    def describe(self) -> str:
        return f"{self.help} Flume: {self.key}." if self.is_flumes else self.help


class Measures:
    """Measures that are read together, in a fraction of the time of reading them one by one."""

    def __init__(self, *measures: Measure) -> None:
        self.read: Callable[[object], tuple[float, ...]] = attrgetter(*(one.path for one in measures))
        self._measures = measures

    def __iter__(self) -> Iterator[Measure]:
        return iter(self._measures)

    def describe(self, measured: object) -> dict[str, float]:
        return {measure.key: value for measure, value in zip(self, self.read(measured), strict=True)}


GAUGES = Measures(
    Measure("ChannelCapacity", "capacity_events", "Maximum number of events.", "capacity", True),
    Measure("ChannelSize", "queued_events", "Events not taken.", "queued_events", True),
    Measure("TakenEvents", "taken_events", "Events taken by transactions.", "taken_events"),
    Measure("MemoryEvents", "memory_events", "Events that a crash would lose.", "memory_events"),
    Measure("BodyBytes", "body_bytes", "Bytes of all bodies.", "body_bytes"),
    Measure("BodyBytesMax", "body_bytes_max", "Maximum bytes of bodies.", "body_bytes_max"),
    Measure("OpenTransactions", "open_transactions", "Open transactions.", "open_transactions"),
    Measure("WaitingTakes", "waiting_takes", "Takes that wait for an event.", "waiting_takes"),
    Measure("WaitingCommits", "waiting_commits", "Commits waiting for space.", "waiting_commits"),
    Measure("Producers", "producers", "Producers whose stamps are remembered.", "producers"),
    Measure("Claims", "claims", "1 while a reader holds a claim, else 0.", "claims"),
    Measure("FirstSequence", "first_sequence", "Oldest queued sequence.", "first_sequence"),
    Measure("NextSequence", "next_sequence", "Sequence of the next event.", "next_sequence"),
)

COUNTERS = Measures(
    Measure("EventPutAttemptCount", "put_attempts", "Events offered.", "put_attempts", True),
    Measure("EventPutSuccessCount", "put_successes", "Events stored.", "put_successes", True),
    Measure("EventTakeAttemptCount", "take_attempts", "Events asked for.", "take_attempts", True),
    Measure("EventTakeSuccessCount", "take_successes", "Events removed.", "take_successes", True),
    Measure("CommitCount", "commits", "Transactions committed.", "commits"),
    Measure("RollbackCount", "rollbacks", "Transactions rolled back.", "rollbacks"),
    Measure(
        "LeaseExpiredCount", "leases_expired", "Transactions rolled back because their lease expired.", "leases_expired"
    ),
    Measure("DeduplicatedCount", "deduplicated", "Events dropped as repeats.", "deduplicated"),
    Measure("EventExpiredCount", "expired", "Events older than the retention.", "expired"),
)
"""Counters start at 0 when the server opens the channel."""


STORE_GAUGES = Measures(
    Measure("LogBytes", "log_bytes", "Bytes of the log on disk.", "log_bytes"),
    Measure("Segments", "segments", "Files of the log.", "segment_count"),
    Measure("ReplayBytes", "replay_bytes", "Bytes of the log that a restart would read.", "replay_bytes"),
    Measure("DiskMinFreeBytes", "disk_min_free_bytes", "Bytes that puts leave free.", "disk_space.min_free_bytes"),
)


_Described = str | float | dict[str, int] | None


def describe_channel(handle: ChannelHandle) -> dict[str, dict[str, _Described]]:
    """Returns a channel under `CHANNEL.name`, as Flume's JSON reporting does, but with numbers as numbers.

    Flume's keys have Flume's meanings; the other keys are Millrace's. A channel that is not open has few of them.
    """
    return {f"CHANNEL.{handle.name}": _describe_handle(handle)}


def _describe_handle(handle: ChannelHandle) -> dict[str, _Described]:
    description: dict[str, _Described] = {
        "Type": "CHANNEL",
        "ChannelType": handle.config.type,
        "State": handle.state.value,
        "Fault": handle.trouble,
        "ReplayedPercentage": 100.0 * handle.replayed_fraction,
    }
    if (channel := handle.channel_if_open) is not None:
        description |= _describe_open(channel, handle.store)
    if (store := handle.store) is not None:
        description |= STORE_GAUGES.describe(store)
        description["DiskFreeBytes"] = store.disk_space.free_bytes
    return description


def _describe_open(channel: Channel, store: LogStore | None) -> dict[str, _Described]:
    gauges, counters = channel.gauges(), channel.counters
    values = occasional_values(channel, gauges, store)
    return {
        "ChannelId": channel.channel_id,
        **GAUGES.describe(gauges),
        **COUNTERS.describe(counters),
        **{gauge.key: value for gauge, value in zip(OCCASIONAL_GAUGES, values, strict=True)},
        "RefusedCounts": dict(counters.refused),
        "ChannelFillPercentage": 100.0 * gauges.queued_events / gauges.capacity,
        "StartTime": int(channel.start_time * _MILLISECONDS),
        "StopTime": 0,
    }


_LABELS = ("channel",)
_STATE = GaugeMetricFamily(
    _CHANNEL_PREFIX + "state", "1 for the channel's state, 0 for the others.", labels=(*_LABELS, "state")
)
_REPLAYED = GaugeMetricFamily(
    _CHANNEL_PREFIX + "replayed_fraction", "Replayed fraction of the log, 0 to 1.", labels=_LABELS
)
_FREE = GaugeMetricFamily(
    _CHANNEL_PREFIX + "disk_free_bytes", "Free bytes of a directory.", labels=(*_LABELS, "directory")
)
_REFUSALS = CounterMetricFamily(
    _CHANNEL_PREFIX + "refusals", "Calls of clients that were refused, by reason.", labels=(*_LABELS, "reason")
)
_INFO = InfoMetricFamily(_CHANNEL_PREFIX.removesuffix("_"), "Attributes of a channel.", labels=_LABELS)


def _table(kind: type[GaugeMetricFamily] | type[CounterMetricFamily], measures: Measures) -> ChannelTable:
    return ChannelTable([kind(_CHANNEL_PREFIX + one.name, one.describe(), labels=_LABELS) for one in measures])


def _joined(lines: Sequence[str]) -> Iterator[str]:
    return ("".join(lines[start : start + SLICE_CHANNELS]) for start in range(0, len(lines), SLICE_CHANNELS))


def _state_lines(state: ChannelState) -> list[str]:
    """Returns the sample lines of a state, split where the channel's name belongs."""
    lines = (
        f'{_STATE.name}{{channel="\0",state="{possible.name.lower()}"}} {int(state is possible)}\n'
        for possible in ChannelState
    )
    return "".join(lines).split("\0")


_STATE_LINES = {state: _state_lines(state) for state in ChannelState}


class ChannelSamples:
    """The samples of channels as text."""

    def __init__(self) -> None:
        self._states = list[str]()
        self._replayed = ChannelTable([_REPLAYED])
        self._free = list[str]()
        self._of_stores = _table(GaugeMetricFamily, STORE_GAUGES)
        self._gauges = _table(GaugeMetricFamily, GAUGES)
        self._counters = _table(CounterMetricFamily, COUNTERS)
        self._occasional = ChannelTable(
            [GaugeMetricFamily(gauge.name, gauge.help, labels=_LABELS) for gauge in OCCASIONAL_GAUGES]
        )
        self._refusals = list[str]()
        self._info = list[str]()

    def add(self, handle: ChannelHandle) -> None:
        name, label, state = handle.name, f'channel="{handle.name}"', handle.state
        self._states.append(name.join(_STATE_LINES[state]))
        self._replayed.add(name, (handle.replayed_fraction if state is ChannelState.REPLAYING else 1.0,))
        if (store := handle.store) is not None:
            self._of_stores.add(name, STORE_GAUGES.read(store))
            for path, free_bytes in store.disk_space.directories.items():
                directory = json.dumps(str(path).encode(errors="replace").decode(), ensure_ascii=False)
                self._free.append(f"{_FREE.name}{{{label},directory={directory}}} {free_bytes}\n")
        if (channel := handle.channel_if_open) is not None:
            gauges, counters = channel.gauges(), channel.counters
            self._gauges.add(name, GAUGES.read(gauges))
            self._counters.add(name, COUNTERS.read(counters))
            self._occasional.add(name, occasional_values(channel, gauges, store))
            for reason, count in counters.refused.items():
                self._refusals.append(f'{_REFUSALS.name}_total{{{label},reason="{reason}"}} {count}\n')
            what = f'channel_id="{channel.channel_id}",type="{channel.config.type}"'
            self._info.append(f"{_INFO.name}_info{{{label},{what}}} 1\n")

    def families(self) -> Iterator[tuple[Metric, Iterator[str]]]:
        """Yields each metric, without samples, and its samples in pieces, each of which takes about a millisecond."""
        yield _STATE, _joined(self._states)
        yield from self._replayed.families()
        yield _FREE, _joined(self._free)
        for table in (self._of_stores, self._gauges, self._counters, self._occasional):
            yield from table.families()
        yield _REFUSALS, _joined(self._refusals)
        yield _INFO, _joined(self._info)
