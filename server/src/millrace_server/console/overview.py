"""The overview of all channels, those with troubles first."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from millrace_server.console.history import channel_key
from millrace_server.console.readings import ChannelReading, ShownServer
from millrace_server.console.slow_syncs import SlowSyncs
from millrace_server.console.troubles import (
    Severity,
    Trouble,
    trouble_of_channel,
    trouble_of_component,
    trouble_of_disks,
    troubles_of_certificates,
)

_TROUBLES_MAX = 100
_SPARKLINE_POINTS = 60

# A response with `_CHANNELS_OF_A_POLL` channels takes less than a hundredth of `_POLL_SECONDS`.
_POLL_SECONDS = 2.0
_CHANNELS_OF_A_POLL = 1_000

_WEIGHTS = {Severity.ERROR: 2, Severity.WARNING: 1}


class OverviewQuery(BaseModel, extra="forbid"):
    """Which channels to show, and in which order."""

    search: Annotated[str, Field(max_length=64)] = ""
    sort: Literal["name", "depth", "fill", "put_rate", "take_rate", "oldest_age", "time_to_full", "trouble"] = "trouble"
    descending: bool = False
    offset: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=200)] = 50


class Overview:
    """Reads all channels for each response, and describes those of one page."""

    def __init__(self, shown: ShownServer) -> None:
        self._shown = shown
        self._slow_syncs = SlowSyncs(shown.registry.histograms.syncs)

    async def document(self, query: OverviewQuery) -> dict[str, Any]:
        dead_letter_channels = self._shown.dead_letter_channels()
        readings = [self._shown.read(handle) async for handle in self._shown.registry.visit()]
        troubles = {one.name: trouble for one in readings if (trouble := trouble_of_channel(one, dead_letter_channels))}
        shown = [one for one in readings if query.search.lower() in one.name]
        _sort(shown, query, troubles)
        all_troubles = [*self._other_troubles(), *troubles.values()]
        all_troubles.sort(key=lambda trouble: (-_weight(trouble), trouble.kind, trouble.name))
        return {
            "time": time.time(),
            "poll_seconds": _POLL_SECONDS * max(math.ceil(len(readings) / _CHANNELS_OF_A_POLL), 1),
            "channel_count": len(readings),
            "total": len(shown),
            "put_rate": sum(one.rates.put or 0.0 for one in readings),
            "take_rate": sum(one.rates.take or 0.0 for one in readings),
            "queued_events": sum(one.queued_count for one in readings),
            "channels": [
                row_document(one, troubles.get(one.name))
                | {"depths": self._shown.history.depths(channel_key(one.name), _SPARKLINE_POINTS)}
                for one in shown[query.offset : query.offset + query.limit]
            ],
            "troubles": [trouble.document() for trouble in all_troubles[:_TROUBLES_MAX]],
            "trouble_count": len(all_troubles),
            "open_transactions": self._shown.registry.transactions.limit.open_count,
        }

    def _other_troubles(self) -> Iterator[Trouble]:
        yield from troubles_of_certificates()
        of_disks = trouble_of_disks(self._shown.registry.handles()), self._slow_syncs.trouble()
        yield from filter(None, [*of_disks, *map(trouble_of_component, self._shown.components)])


def row_document(reading: ChannelReading, trouble: Trouble | None) -> dict[str, Any]:
    """Returns what the overview shows of a channel."""
    config, gauges, counters = reading.handle.config, reading.gauges, reading.channel and reading.channel.counters
    return {
        "name": reading.name,
        "type": config.type,
        "state": reading.handle.state.name.lower(),
        "severity": trouble and trouble.severity.value,
        "reason": trouble and trouble.reason,
        "queued_events": gauges and gauges.queued_events,
        "taken_events": gauges and gauges.taken_events,
        "capacity": config.capacity,
        "fill": reading.fill,
        "body_bytes": gauges and gauges.body_bytes,
        "body_bytes_max": config.body_bytes_max,
        "put_count": counters and counters.put_successes,
        "take_count": counters and counters.take_successes,
        "put_rate": reading.rates.put,
        "take_rate": reading.rates.take,
        "oldest_time": reading.oldest_time,
        "last_put_time": reading.last_put_time,
        "last_take_time": reading.last_take_time,
        "seconds_to_full": reading.forecast.seconds_to_full,
        "seconds_to_empty": reading.forecast.seconds_to_empty,
    }


_KEYS: Mapping[str, Callable[[ChannelReading], float | None]] = {
    "depth": lambda one: one.depth,
    "fill": lambda one: one.fill,
    "put_rate": lambda one: one.rates.put,
    "take_rate": lambda one: one.rates.take,
    "oldest_age": lambda one: one.oldest_time and -one.oldest_time,
    "time_to_full": lambda one: one.forecast.seconds_to_full,
}


def _sort(readings: list[ChannelReading], query: OverviewQuery, troubles: Mapping[str, Trouble]) -> None:
    """Sorts readings, which are ordered by name; those without a value come last."""
    if query.sort == "name":
        if query.descending:
            readings.reverse()
        return
    if query.sort == "trouble":
        readings.sort(key=lambda one: -_weight(troubles.get(one.name)))
        return
    key = _KEYS[query.sort]
    sign = -1 if query.descending else 1

    def order(reading: ChannelReading) -> tuple[bool, float]:
        value = key(reading)
        return value is None, sign * (value or 0.0)

    readings.sort(key=order)


def _weight(trouble: Trouble | None) -> int:
    return 0 if trouble is None else _WEIGHTS[trouble.severity]
