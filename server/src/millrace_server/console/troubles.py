"""Troubles of channels, components and the server, with their causes and what an operator can do."""

import enum
import math
from collections.abc import Collection, Iterable, Iterator
from time import time
from typing import NamedTuple

from millrace.units import counted, format_byte_size
from millrace_server.agent.components import Component, ComponentState
from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_handle import ChannelHandle, ChannelState
from millrace_server.channels.disk_space import DiskSpace
from millrace_server.console.readings import ChannelReading
from millrace_server.network.tls import expiry_times

_IDLE_SECONDS = 900.0
"""How long events may wait while nothing is taken."""

_NEARLY_FULL = 0.9
_SOON_SECONDS = 600.0
_SOON_FILL_MIN = 0.5
_CLOCK_SECONDS = 5.0
_CERTIFICATE_DAYS = 14
_DAY_SECONDS = 86_400
_BACKING_OFF_SECONDS = 60.0
_SPARE_BYTES_MIN = 2e9


class Severity(enum.Enum):
    """The severity of a trouble."""

    ERROR = "error"
    """Events are refused, not delivered, or may be lost."""
    WARNING = "warning"
    """An error may follow, or something is not as intended."""


class Trouble(NamedTuple):
    """Something that needs the attention of an operator."""

    kind: str
    """`channel`, `source`, `sink`, `sink_group` or `server`."""
    name: str
    severity: Severity
    reason: str
    advice: str
    since_time: float | None = None
    """Seconds since 1970; None if that is not known."""

    def document(self) -> dict[str, object]:
        return self._asdict() | {"severity": self.severity.value}


_STATE_ADVICE = {
    ChannelState.CORRUPT: "Run `millraced log verify` on the channel's directory, then stop the server and run "
    "`millraced log repair`, or restore a backup.",
    ChannelState.LOG_FAILED: "See the server's log for the cause, fix it, and restart the server; committed events "
    "are in the log.",
    ChannelState.STALLED: "Check the disk: it does not respond to reads or writes. Commits continue once it does.",
    ChannelState.STANDING_BY: "Check the engine's nodes and this server's credentials; the channel recovers by itself.",
    ChannelState.REPLAYING: "Check the engine's nodes and this server's credentials; the channel recovers by itself.",
    ChannelState.DISK_FULL: "Free space on the disk, or take or purge events; takes are still served.",
}


def trouble_of_channel(reading: ChannelReading, dead_letter_channels: Collection[str]) -> Trouble | None:
    """Returns the worst trouble of a channel; None if it has none."""
    return next(_troubles_of_channel(reading, dead_letter_channels), None)


def _troubles_of_channel(reading: ChannelReading, dead_letter_channels: Collection[str]) -> Iterator[Trouble]:
    handle, name, channel = reading.handle, reading.name, reading.channel
    # Standing by and replaying need no operator unless something prevents the server from continuing.
    if handle.trouble and (advice := _STATE_ADVICE.get(handle.state)) is not None:
        yield Trouble("channel", name, Severity.ERROR, handle.trouble, advice)
    if channel is None or not reading.depth:
        return
    yield from _capacity_troubles(reading, channel)
    if name in dead_letter_channels:
        reason = counted(reading.depth, "dead letter waits", "dead letters wait")
        advice = "Check why they were set aside, fix the cause, and replay or purge them."
        yield Trouble("channel", name, Severity.WARNING, reason, advice, reading.oldest_time)
    else:
        yield from _consumer_troubles(reading, channel)
    ahead_seconds = (reading.last_put_time or 0.0) - time()
    if ahead_seconds > _CLOCK_SECONDS:
        reason = f"commit times are {ahead_seconds:,.0f} s ahead of the server's clock, which was set back"
        advice = "Check the clock's synchronization. Sequences and order are not affected; retention runs late."
        yield Trouble("channel", name, Severity.WARNING, reason, advice)


def _capacity_troubles(reading: ChannelReading, channel: Channel) -> Iterator[Trouble]:
    advice = "Check whether its consumers keep up; add consumers, or raise the channel's capacity."
    if reading.fill >= 1.0 or channel.has_waiting_commits:
        waiting = channel.gauges().waiting_commits
        commits = f"; {counted(waiting, 'commit waits', 'commits wait')} for space" if waiting else ""
        yield Trouble("channel", reading.name, Severity.ERROR, f"it is full{commits}", advice)
    elif reading.fill >= _NEARLY_FULL:
        yield Trouble("channel", reading.name, Severity.WARNING, f"it is {reading.fill:.0%} full", advice)
    elif reading.fill >= _SOON_FILL_MIN and (seconds := reading.forecast.seconds_to_full or math.inf) < _SOON_SECONDS:
        reason = f"it will be full in {counted(math.ceil(seconds / 60), 'minute')}"
        yield Trouble("channel", reading.name, Severity.WARNING, reason, advice)


def _consumer_troubles(reading: ChannelReading, channel: Channel) -> Iterator[Trouble]:
    """Yields a warning if events wait although the channel has had consumers; without any, it may be a store."""
    claim = channel.claims.claim
    has_consumer = claim is not None or channel.open_transactions or channel.counters.take_successes
    now = time()
    if not has_consumer or now - (reading.last_take_time or channel.start_time) < _IDLE_SECONDS:
        return
    since_time = max(reading.last_take_time or channel.start_time, reading.oldest_time or 0.0)
    if now - since_time < _IDLE_SECONDS:
        return
    waiting = counted(reading.depth, "event waits", "events wait")
    reason = f"nothing was taken for {(now - since_time) / 60:,.0f} minutes while {waiting}"
    advice = "Check whether its consumers are running and can reach the server."
    if claim is not None:
        reason += f"; reader {claim.reader_id} holds a claim"
        advice = "Check whether that reader is still working; if not, release the claim."
    elif channel.taken_count:
        reason += f", {channel.taken_count:,} of them held by open transactions"
        advice = "Check its transactions and consumers; end the transaction of a consumer that is stuck."
    yield Trouble("channel", reading.name, Severity.WARNING, reason, advice, since_time)


def trouble_of_component(component: Component) -> Trouble | None:
    """Returns the trouble of a component; None if it has none."""
    state, kind, name = component.state, component.kind.key, component.name
    reason = component.reason or state.value
    if state is ComponentState.FAILED:
        advice = "Fix the problem given as the reason, then retry it or reload the configuration."
        return Trouble(kind, name, Severity.ERROR, reason, advice, component.since)
    if state is ComponentState.BACKING_OFF:
        is_long = time() - component.since >= _BACKING_OFF_SECONDS
        severity = Severity.ERROR if is_long else Severity.WARNING
        return Trouble(
            kind,
            name,
            severity,
            reason,
            "It retries automatically; fix the problem given as the reason.",
            component.since,
        )
    if state is ComponentState.STOPPED and component.reason:
        return Trouble(kind, name, Severity.WARNING, reason, "Reload the configuration to start it.", component.since)
    return None


def trouble_of_disks(handles: Iterable[ChannelHandle]) -> Trouble | None:
    """Returns a warning if a disk is nearly full, about the one with the least space; None otherwise."""
    spaces = [handle.store.disk_space for handle in handles if handle.store is not None]
    if not spaces:
        return None
    space = min(spaces, key=_spare_bytes)
    spare_bytes = _spare_bytes(space)
    if spare_bytes >= _SPARE_BYTES_MIN:
        return None
    directory = min(space.directories, key=lambda path: space.directories[path])
    reason = f"the disk of {directory} has {format_byte_size(max(spare_bytes, 0))} left, then channels refuse puts"
    advice = "Free space on it, enlarge it, or take or purge events."
    return Trouble("server", "disk", Severity.WARNING, reason, advice)


def _spare_bytes(space: DiskSpace) -> int:
    return space.free_bytes - space.min_free_bytes


def troubles_of_certificates() -> Iterator[Trouble]:
    """Yields the certificates of the server and its sources that have expired or will expire soon."""
    for path, expiry_time in expiry_times().items():
        days = (expiry_time.timestamp() - time()) / _DAY_SECONDS
        if days >= _CERTIFICATE_DAYS:
            continue
        severity, when = (
            (Severity.WARNING, f"expires in {days:.1f} days") if days > 0 else (Severity.ERROR, "has expired")
        )
        advice = "Replace the file; the server rereads it automatically."
        yield Trouble("server", path.name, severity, f"a certificate in {path} {when}", advice)
