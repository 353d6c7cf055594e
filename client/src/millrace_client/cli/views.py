"""Channels and components, as tables for people and as JSON for programs."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import typer
from rich.table import Table
from rich.text import Text

from millrace.command_line.tables import PlainTable, plain_table, show
from millrace.units import format_age, format_byte_size
from millrace_client import ChannelInfo, ChannelState, ChannelType, ComponentInfo, ComponentState, FsyncPolicy
from millrace_client.cli.terminal import note_to_terminal

RowT = TypeVar("RowT")

BUSY_FILL = 0.8
FULL_FILL = 0.95


def document_of(info: Any) -> dict[str, object]:
    """Returns what the server reports, for JSON: names as on the wire, durations in seconds, times in ISO 8601."""
    return {key: _json_value(value) for key, value in asdict(info).items()}


def _json_value(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case dict():
            return {key: _json_value(one) for key, one in value.items()}
        case tuple():
            return list(value)
        case _:
            return value


def write_list(
    listed: Sequence[RowT], table: Callable[[Sequence[RowT]], PlainTable], none: str, *, as_json: bool
) -> None:
    """Writes what the server has listed to standard output; a note on a terminal says that there is nothing."""
    if as_json:
        typer.echo(json.dumps([document_of(one) for one in listed], indent=2))
        return
    show(table(listed))
    if not listed:
        note_to_terminal(none)


def fill_of(channel: ChannelInfo) -> float:
    """Returns how full a channel is, 0 to 1: in events or in bytes, whichever is nearer to its limit."""
    gauges = channel.gauges
    events = (gauges.queued_events + gauges.taken_events) / max(channel.config.capacity, 1)
    return max(events, gauges.body_bytes / max(gauges.body_bytes_max, 1))


def _channel_state_text(channel: ChannelInfo) -> Text:
    match channel.state:
        case ChannelState.OPEN | ChannelState.UNKNOWN:
            return Text(channel.state)
        case ChannelState.REPLAYING:
            return Text(f"{channel.state} {channel.replayed_fraction:.0%}", style="yellow")
        case ChannelState.STANDING_BY:
            return Text(f"owned by {channel.owner}" if channel.owner else "standing_by")
        case ChannelState.LOG_FAILED | ChannelState.CORRUPT | ChannelState.STALLED | ChannelState.DISK_FULL:
            return Text(channel.state, style="red")


def _fill_text(channel: ChannelInfo) -> Text:
    fill = fill_of(channel)
    style = "red" if fill >= FULL_FILL else "yellow" if fill >= BUSY_FILL else ""
    return Text(f"{fill:.0%}", style=style)


CHANNEL_CELLS: Mapping[str, Callable[[ChannelInfo], str | Text]] = {
    "CHANNEL": lambda channel: Text(channel.name),
    "TYPE": lambda channel: Text(channel.config.type),
    "STATE": _channel_state_text,
    "QUEUED>": lambda channel: f"{channel.gauges.queued_events:,}",
    "TAKEN>": lambda channel: f"{channel.gauges.taken_events:,}",
    "DEPTH>": lambda channel: f"{channel.gauges.queued_events + channel.gauges.taken_events:,}",
    "CAPACITY>": lambda channel: f"{channel.config.capacity:,}",
    "FILL>": _fill_text,
    "BYTES>": lambda channel: format_byte_size(channel.gauges.body_bytes),
    "AGE>": lambda channel: format_age(age_seconds(channel.gauges.oldest_commit_time)),
    "NEXT>": lambda channel: f"{channel.gauges.next_sequence:,}",
    "TXNS>": lambda channel: f"{channel.gauges.open_transactions:,}",
    "WAITING>": lambda channel: f"{channel.gauges.waiting_takes + channel.gauges.waiting_commits:,}",
    "CLAIM": lambda channel: Text(channel.claim.reader_id if channel.claim else "-"),
}
"""The cells of channels by their headings."""


def cells_of_info(headings: str) -> dict[str, Callable[[Any], str | Text]]:
    """Returns the cells of rows that have a channel as their `info`, by their headings."""

    def cell(heading: str, row: Any) -> str | Text:
        return CHANNEL_CELLS[heading](row.info)

    return {heading: partial(cell, heading) for heading in headings.split()}


_FAULT: Mapping[str, Callable[[ChannelInfo], str]] = {"FAULT": lambda channel: channel.fault}
_OVERRIDDEN: Mapping[str, Callable[[ChannelInfo], str]] = {
    "NOTE": lambda channel: (
        "has other limits than the server's file, and the next start or reload restores those"
        if channel.is_overridden
        else ""
    )
}


def channels_table(channels: Sequence[ChannelInfo]) -> PlainTable:
    """Returns all channels, one per line."""
    headings = "CHANNEL STATE QUEUED> FILL> AGE> BYTES> TYPE CAPACITY> TAKEN> TXNS> NEXT> CLAIM"
    cells = {heading: CHANNEL_CELLS[heading] for heading in headings.split()}
    return plain_table(channels, cells, {**_FAULT, **_OVERRIDDEN})


def top_table(channels: Sequence[ChannelInfo], rates: Mapping[str, Sequence[float]]) -> PlainTable:
    """Returns the rates of channels, one per line; an unknown rate is a dash."""
    cells = {
        **CHANNEL_CELLS,
        "IN/S>": lambda channel: rate_text(rates[channel.name][0] if channel.name in rates else None),
        "OUT/S>": lambda channel: rate_text(rates[channel.name][1] if channel.name in rates else None),
    }
    headings = "CHANNEL STATE DEPTH> FILL> IN/S> OUT/S> AGE> BYTES> TXNS> WAITING> CLAIM"
    return plain_table(channels, {heading: cells[heading] for heading in headings.split()}, _FAULT)


def channel_page(channel: ChannelInfo) -> Table:
    """Returns all fields of a channel, one per line, under their names in JSON and on the wire."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(2):
        table.add_column(overflow="fold")
    for key, value in document_of(channel).items():
        if isinstance(value, dict):
            table.add_row(Text(key, style="bold"), "")
            for name, item in value.items():
                # An epoch is a name, which people copy.
                table.add_row(Text(f"  {name}"), Text(str(item) if name == "epoch" else _page_value(item)))
        else:
            table.add_row(Text(key, style="bold"), Text(_page_value(value)))
    return table


def created_sentences(channel: ChannelInfo) -> str:
    """Returns three lines about a new channel: what it holds, what survives, and what to do next."""
    limits, name = channel.config, channel.name
    match limits.type:
        case ChannelType.MEMORY:
            durability = "its events are in memory only: a stop of the server loses them"
        case ChannelType.SPILLABLE:
            durability = (
                f"up to {limits.memory_capacity:,} events are in memory only, and a crash of the server loses them"
            )
        case ChannelType.REPLICATED:
            durability = "its commits survive the loss of a machine; the servers where it is created can take it over"
        case ChannelType.FILE if limits.fsync is FsyncPolicy.INTERVAL:
            lost = f"{limits.fsync_interval_seconds:g} s"
            durability = f"its commits survive crashes of the server; a power failure may lose those of the last {lost}"
        case _:
            durability = "its commits survive crashes and power failures"
    space = f"{limits.capacity:,} events and {format_byte_size(limits.byte_capacity)}"
    return (
        f"{name}: created, a {limits.type} channel for {space}\n{durability}\n"
        f"put events with `millrace put {name}`, see all settings with `millrace channel show {name}`"
    )


def updated_sentences(channel: ChannelInfo, fields: Iterable[str]) -> str:
    """Returns a line for each limit that an update has changed."""
    limits = document_of(channel)["config"]
    assert isinstance(limits, dict)
    changed = {field: limits[field] for field in fields}
    return "\n".join(
        f"{channel.name}: {field} is {'none' if value is None else _page_value(value)}"
        for field, value in changed.items()
    )


def _page_value(value: object) -> str:
    match value:
        case None | "":
            return "-"
        case dict():
            return ", ".join(f"{name} {count:,}" for name, count in value.items()) or "-"
        case bool():
            return str(value).lower()
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.15g}"
        case _:
            return str(value)


def component_path(component: ComponentInfo) -> str:
    """Returns a component's name in health checks and in the server's log, such as `sources/access`."""
    return f"{component.kind}s/{component.name}"


def components_table(components: Sequence[ComponentInfo], rates: Mapping[str, float] | None = None) -> PlainTable:
    """Returns all components, one per line; with a column of the given rates by the components' paths."""
    columns: dict[str, Callable[[ComponentInfo], str | Text]] = {
        "COMPONENT": component_path,
        "STATE": lambda component: _component_state_text(component.state),
        "EVENTS/S>": lambda component: rate_text((rates or {}).get(component_path(component))),
        "EVENTS>": lambda component: f"{component.counters.event_count:,}",
        "LAST>": lambda component: format_age(component.progress_age_seconds),
        "LOST>": lambda component: Text(
            f"{component.counters.lost_count:,}", style="red" if component.counters.lost_count else ""
        ),
        "FAILURES>": lambda component: f"{component.counters.failure_count:,}",
        "BYTES>": lambda component: format_byte_size(component.counters.body_bytes),
        "TYPE": lambda component: component.type,
    }
    if rates is None:
        del columns["EVENTS/S>"]
    return plain_table(components, columns, {"REASON": lambda component: component.reason})


def rate_text(rate: float | None) -> str:
    """Returns a rate of events, or a dash where it is not known."""
    return "-" if rate is None else f"{rate:,.0f}"


def age_seconds(time: datetime | None) -> float | None:
    """Returns how long ago something was, by this machine's clock."""
    # The server's clock may be ahead of this one.
    return max((datetime.now(UTC) - time).total_seconds(), 0) if time else None


def _component_state_text(state: ComponentState) -> Text:
    match state:
        case ComponentState.STARTING | ComponentState.RUNNING | ComponentState.STANDING_BY | ComponentState.UNKNOWN:
            return Text(state)
        case ComponentState.BACKING_OFF | ComponentState.STOPPED:
            return Text(state, style="yellow")
        case ComponentState.FAILED:
            return Text(state, style="red")
