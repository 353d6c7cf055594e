"""Components of the server's agent as people and programs read them: a table, JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime

from rich.table import Table
from rich.text import Text

from millrace_client import ComponentInfo, ComponentState
from millrace_client.cli.screen import plain_table, text
from millrace_client.cli.sizes import format_byte_size

_MINUTE_SECONDS = 60
_HOUR_SECONDS = 3_600
_DAY_SECONDS = 86_400
_UNITS = ((_DAY_SECONDS, "d"), (_HOUR_SECONDS, "h"), (_MINUTE_SECONDS, "min"))


def component_document(component: ComponentInfo) -> dict[str, object]:
    """One component as JSON has it: the names of the wire, durations in seconds, times in ISO 8601."""
    document = asdict(component)
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in document.items()}


def component_path(component: ComponentInfo) -> str:
    """What names a component in health, in the server's log and here: `sources/access`."""
    return f"{component.kind}s/{component.name}"


def components_table(components: Sequence[ComponentInfo], rates: Mapping[str, float] | None = None) -> Table:
    """All components, one line each.

    Args:
        components: As they stand.
        rates: Events a second by the component's path; None to leave the column out.
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
            _state_text(component.state),
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


def _state_text(state: ComponentState) -> Text:
    match state:
        case ComponentState.STARTING | ComponentState.RUNNING | ComponentState.STANDING_BY | ComponentState.UNKNOWN:
            return text(state)
        case ComponentState.BACKING_OFF | ComponentState.STOPPED:
            return text(state, style="yellow")
        case ComponentState.FAILED:
            return text(state, style="red")
