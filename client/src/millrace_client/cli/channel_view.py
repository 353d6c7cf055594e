"""Channels as people and programs read them: tables, one channel's page, JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime

from rich.table import Table
from rich.text import Text

from millrace_client import ChannelInfo, ChannelState
from millrace_client.cli.screen import plain_table, text
from millrace_client.cli.sizes import format_byte_size
from millrace_client.cli.top_rates import Rates

_BUSY_FILL = 0.8
_FULL_FILL = 0.95


def channel_document(channel: ChannelInfo) -> dict[str, object]:
    """One channel as JSON has it: the names of the wire, durations in seconds, times in ISO 8601."""
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
    """How full a channel is, 0 to 1: in events or in bytes, whichever is nearer to its limit."""
    gauges = channel.gauges
    events = (gauges.queued_events + gauges.taken_events) / max(channel.config.capacity, 1)
    return max(events, gauges.body_bytes / max(gauges.body_bytes_max, 1))


def channels_table(channels: Sequence[ChannelInfo]) -> Table:
    """All channels, one line each."""
    headings = "CHANNEL TYPE STATE QUEUED> TAKEN> CAPACITY> FILL> BYTES> NEXT> TXNS> CLAIM"
    table = plain_table(*headings.split())
    for channel in channels:
        gauges = channel.gauges
        table.add_row(
            text(channel.name),
            text(channel.config.type),
            _state_text(channel),
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
    """What moves, one line a channel; a rate that is not known yet is a dash."""
    table = plain_table(
        *["CHANNEL", "STATE", "DEPTH>", "FILL>", "BYTES>", "IN/S>", "OUT/S>", "TXNS>", "WAITING>", "CLAIM"]
    )
    for channel in channels:
        gauges = channel.gauges
        rate = rates.get(channel.name)
        table.add_row(
            text(channel.name),
            _state_text(channel),
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
    """All that is known of one channel, one line each, under the names that JSON and the wire have."""
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


def _state_text(channel: ChannelInfo) -> Text:
    match channel.state:
        case ChannelState.OPEN | ChannelState.UNKNOWN:
            return text(channel.state)
        case ChannelState.REPLAYING:
            return text(f"{channel.state} {channel.replayed_fraction:.0%}", style="yellow")
        case ChannelState.LOG_FAILED | ChannelState.CORRUPT | ChannelState.STALLED:
            return text(channel.state, style="red")


def _claim_text(channel: ChannelInfo) -> Text:
    return text(channel.claim.reader_id if channel.claim else "-")
