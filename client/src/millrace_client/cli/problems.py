"""What is wrong with channels and components, and how urgent it is."""

from datetime import UTC, datetime, timedelta
from enum import IntEnum

from millrace.units import counted
from millrace_client import ChannelInfo, ChannelState, ComponentInfo, ComponentState
from millrace_client.cli.views import BUSY_FILL, FULL_FILL, fill_of

_IDLE_TIME = timedelta(minutes=15)
"""How long events may wait while nothing is taken."""


class Severity(IntEnum):
    """How urgent a problem is."""

    ERROR = 0
    WARNING = 1
    NONE = 2


def channel_problem(channel: ChannelInfo) -> tuple[Severity, str]:
    """Returns how urgent a channel's problem is, and a sentence about it; empty if there is none."""
    if channel.state is ChannelState.REPLAYING:
        obstacle = f": {channel.fault}" if channel.fault else ""
        return Severity.WARNING, f"replaying its log, {channel.replayed_fraction:.0%} so far{obstacle}"
    if channel.state is ChannelState.STANDING_BY:
        # Its owner's report shows how it is.
        obstacle = f": {channel.fault}" if channel.fault else ""
        return (Severity.NONE, "") if channel.owner else (Severity.ERROR, f"no server owns it{obstacle}")
    if channel.state not in {ChannelState.OPEN, ChannelState.UNKNOWN}:
        return Severity.ERROR, channel.fault
    fill, waiting_count = fill_of(channel), channel.gauges.waiting_commits
    if fill < BUSY_FILL and not waiting_count:
        idle = _idle_problem(channel)
        return Severity.WARNING if idle else Severity.NONE, idle
    waiting = f", and {counted(waiting_count, 'commit')} waiting for space" if waiting_count else ""
    return Severity.ERROR if fill >= FULL_FILL else Severity.WARNING, f"{fill:.0%} full{waiting}"


def _idle_problem(channel: ChannelInfo) -> str:
    """Returns that events wait although the channel has had a consumer; without any, it may be a store."""
    gauges, claim = channel.gauges, channel.claim
    has_consumer = claim or gauges.open_transactions or channel.counters.event_take_success_count
    last_take_time = gauges.last_take_time or channel.start_time
    idle_time = datetime.now(UTC) - max(last_take_time, gauges.oldest_commit_time or last_take_time)
    if not has_consumer or gauges.oldest_commit_time is None or idle_time < _IDLE_TIME:
        return ""
    holder = f"; reader {claim.reader_id} holds a claim" if claim else ""
    return f"nothing was taken for {counted(idle_time // timedelta(minutes=1), 'minute')} while events wait{holder}"


def component_severity(component: ComponentInfo) -> Severity:
    """Returns how urgent a component's problem is."""
    if component.state is ComponentState.FAILED or component.counters.lost_count:
        return Severity.ERROR
    return Severity.WARNING if component.state is ComponentState.BACKING_OFF else Severity.NONE


def component_problem(component: ComponentInfo) -> str:
    """Returns what a component's problem is; empty if there is none."""
    lost = component.counters.lost_count
    return component.reason or (f"lost {counted(lost, 'event')}" if lost else "")
