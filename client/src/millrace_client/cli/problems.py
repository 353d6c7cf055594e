"""What is wrong with channels and components, and how urgent it is."""

from enum import IntEnum

from millrace.units import counted
from millrace_client import ChannelInfo, ChannelState, ComponentInfo, ComponentState
from millrace_client.cli.views import BUSY_FILL, FULL_FILL, fill_of


class Severity(IntEnum):
    """How urgent a problem is."""

    ERROR = 0
    WARNING = 1
    NONE = 2


def channel_problem(channel: ChannelInfo) -> tuple[Severity, str]:
    """Returns how urgent a channel's problem is, and a sentence about it; empty if there is none."""
    if channel.state is ChannelState.REPLAYING:
        return Severity.WARNING, f"replaying its log, {channel.replayed_fraction:.0%} so far"
    if channel.state is ChannelState.STANDING_BY:
        # Its owner's report tells how it is.
        return (Severity.NONE, "") if channel.owner else (Severity.ERROR, "no server owns it")
    if channel.state not in {ChannelState.OPEN, ChannelState.UNKNOWN}:
        return Severity.ERROR, channel.fault
    fill, waiting_count = fill_of(channel), channel.gauges.waiting_commits
    if fill < BUSY_FILL and not waiting_count:
        return Severity.NONE, ""
    waiting = f", and {counted(waiting_count, 'commit')} waiting for room" if waiting_count else ""
    return Severity.ERROR if fill >= FULL_FILL else Severity.WARNING, f"{fill:.0%} full{waiting}"


def component_severity(component: ComponentInfo) -> Severity:
    """Returns how urgent a component's problem is."""
    if component.state is ComponentState.FAILED or component.counters.lost_count:
        return Severity.ERROR
    return Severity.WARNING if component.state is ComponentState.BACKING_OFF else Severity.NONE


def component_problem(component: ComponentInfo) -> str:
    """Returns what a component's problem is; empty if there is none."""
    lost = component.counters.lost_count
    return component.reason or (f"lost {counted(lost, 'event')}" if lost else "")
