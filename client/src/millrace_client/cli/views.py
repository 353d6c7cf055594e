"""Channels and components as tables for people and as JSON for programs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from rich.table import Table
from rich.text import Text

from millrace_client import ChannelInfo, ChannelState, ComponentInfo, ComponentState
from millrace_client.cli.formatting import format_byte_size
from millrace_client.cli.terminal import plain_table, text

_BUSY_FILL = 0.8
_FULL_FILL = 0.95


@dataclass(frozen=True, slots=True)
class Rates:
    """Events per second between two updates."""

    put: float
    """Events stored by commits."""
    taken: float
    """Events removed by commits, acks and acknowledgements."""


def channel_document(channel: ChannelInfo) -> dict[str, object]:
    """Returns a channel for JSON: the names of the wire, durations in seconds, times in ISO 8601."""
    return {key: _json_value(value) for key, value in asdict(channel).items()}


def _json_value(value: object) -> object:
    match value:
        case dict():
            return {key: _json_value(item) for key, item in value.items()}
        case datetime():
            return value.isoformat()
        case _:
            return value


def fill_of(channel: ChannelInfo) -> float:
    """Returns how full a channel is, 0 to 1: in events or in bytes, whichever is nearer to its limit."""
    gauges = channel.gauges
    events = (gauges.queued_events + gauges.taken_events) / max(channel.config.capacity, 1)
    return max(events, gauges.body_bytes / max(gauges.body_bytes_max, 1))


def channels_table(channels: Sequence[ChannelInfo]) -> Table:
    """Returns all channels, one per line."""
    headings = "CHANNEL TYPE STATE QUEUED> TAKEN> CAPACITY> FILL> BYTES> NEXT> TXNS> CLAIM"
    table = plain_table(*headings.split())
    for channel in channels:
        gauges = channel.gauges
        table.add_row(
            text(channel.name),
            text(channel.config.type),
            _channel_state_text(channel),
            f"{gauges.queued_events:,}",
            f"{gauges.taken_events:,}",
            f"{channel.config.capacity:,}",
            _fill_text(channel),
            format_byte_size(gauges.body_bytes),
            f"{gauges.next_sequence:,}",
            f"{gauges.open_transactions:,}",
            _claim_text(channel),
        )
    return table


def top_table(channels: Sequence[ChannelInfo], rates: Mapping[str, Rates]) -> Table:
    """Returns the rates of channels, one per line; an unknown rate is a dash."""
    table = plain_table(
        *["CHANNEL", "STATE", "DEPTH>", "FILL>", "BYTES>", "IN/S>", "OUT/S>", "TXNS>", "WAITING>", "CLAIM"]
    )
    for channel in channels:
        gauges = channel.gauges
        rate = rates.get(channel.name)
        table.add_row(
            text(channel.name),
            _channel_state_text(channel),
            f"{gauges.queued_events + gauges.taken_events:,}",
            _fill_text(channel),
            format_byte_size(gauges.body_bytes),
            f"{rate.put:,.0f}" if rate else "-",
            f"{rate.taken:,.0f}" if rate else "-",
            f"{gauges.open_transactions:,}",
            f"{gauges.waiting_takes + gauges.waiting_commits:,}",
            _claim_text(channel),
        )
    return table


def channel_page(channel: ChannelInfo) -> Table:
    """Returns all fields of a channel, one per line, under their names in JSON and on the wire."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for key, value in channel_document(channel).items():
        if isinstance(value, dict):
            table.add_row(text(key, style="bold"), "")
            for name, item in value.items():
                table.add_row(text(f"  {name}"), text(_page_value(item)))
        else:
            table.add_row(text(key, style="bold"), text(_page_value(value)))
    return table


def _page_value(value: object) -> str:
    match value:
        case None | "":
            return "-"
        case bool():
            return str(value).lower()
        case int():
            return f"{value:,}"
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _fill_text(channel: ChannelInfo) -> Text:
    fill = fill_of(channel)
    style = "red" if fill >= _FULL_FILL else "yellow" if fill >= _BUSY_FILL else ""
    return text(f"{fill:.0%}", style=style)


def _channel_state_text(channel: ChannelInfo) -> Text:
    match channel.state:
        case ChannelState.OPEN | ChannelState.UNKNOWN:
            return text(channel.state)
        case ChannelState.REPLAYING:
            return text(f"{channel.state} {channel.replayed_fraction:.0%}", style="yellow")
        case ChannelState.LOG_FAILED | ChannelState.CORRUPT | ChannelState.STALLED:
            return text(channel.state, style="red")


def _claim_text(channel: ChannelInfo) -> Text:
    return text(channel.claim.reader_id if channel.claim else "-")


_MINUTE_SECONDS = 60
_HOUR_SECONDS = 3_600
_DAY_SECONDS = 86_400
_UNITS = ((_DAY_SECONDS, "d"), (_HOUR_SECONDS, "h"), (_MINUTE_SECONDS, "min"))


def component_document(component: ComponentInfo) -> dict[str, object]:
    """Returns a component for JSON: the names of the wire, durations in seconds, times in ISO 8601."""
    document = asdict(component)
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in document.items()}


def component_path(component: ComponentInfo) -> str:
    """Returns a component's name in health checks and in the server's log, such as `sources/access`."""
    return f"{component.kind}s/{component.name}"


def components_table(components: Sequence[ComponentInfo], rates: Mapping[str, float] | None = None) -> Table:
    """Returns all components, one per line.

    Args:
        components: Their current state.
        rates: Events per second by the component's path; None to omit the column.
    """
    rate_heading = [] if rates is None else ["EVENTS/S>"]
    headings = ["COMPONENT", "TYPE", "STATE", *rate_heading, "EVENTS>", "BYTES>", "LOST>", "FAILURES>", "LAST>", "WHY"]
    table = plain_table(*headings)
    for component in components:
        counters = component.counters
        rate = () if rates is None else (_rate_text(rates.get(component_path(component))),)
        table.add_row(
            text(component_path(component)),
            text(component.type),
            _component_state_text(component.state),
            *rate,
            f"{counters.event_count:,}",
            format_byte_size(counters.body_bytes),
            text(f"{counters.lost_count:,}", style="red" if counters.lost_count else ""),
            f"{counters.failure_count:,}",
            _age_text(component.progress_age_seconds),
            text(component.reason or "-"),
        )
    return table


def _rate_text(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}"


def _age_text(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit_seconds, unit in _UNITS:
        if seconds >= unit_seconds:
            return f"{seconds / unit_seconds:.0f} {unit}"
    return f"{seconds:.0f} s"


def _component_state_text(state: ComponentState) -> Text:
    match state:
        case ComponentState.STARTING | ComponentState.RUNNING | ComponentState.STANDING_BY | ComponentState.UNKNOWN:
            return text(state)
        case ComponentState.BACKING_OFF | ComponentState.STOPPED:
            return text(state, style="yellow")
        case ComponentState.FAILED:
            return text(state, style="red")
