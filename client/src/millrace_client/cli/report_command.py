"""`millrace report`: the channels and components of several servers, what is wrong first."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from millrace.command_line.tables import plain_table, show
from millrace.units import counted
from millrace_client import ChannelInfo, ComponentInfo, MillraceError
from millrace_client.cli.exit_status import CommandError, ExitCode, sentence_of
from millrace_client.cli.problems import Severity, channel_problem, component_problem, component_severity
from millrace_client.cli.session import JsonOption, Session, seconds_option, with_session
from millrace_client.cli.several_servers import ask_together, servers_argument, sessions_of
from millrace_client.cli.terminal import note
from millrace_client.cli.top_command import ChannelWatch
from millrace_client.cli.views import cells_of_info, component_path, document_of, rate_text

_CHANNELS_SHOWN = 50


@dataclass(frozen=True)
class ServerReport:
    """One server; `watch` has its channels and components, unless `trouble` says why nothing is known."""

    name: str
    watch: ChannelWatch | None
    trouble: str = ""

    @property
    def components(self) -> Sequence[ComponentInfo]:
        return [] if self.watch is None else self.watch.components


@dataclass(frozen=True)
class ChannelRow:
    """A channel of one of the servers, with its rates in and out, if they are known."""

    server: str
    info: ChannelInfo
    rates: Sequence[float] | None
    severity: Severity
    problem: str

    @property
    def depth(self) -> int:
        return self.info.gauges.queued_events + self.info.gauges.taken_events


@with_session
def report(
    session: Session,
    servers: Annotated[list[str] | None, servers_argument("Contexts, or addresses; by default all contexts.")] = None,
    *,
    interval: Annotated[float, seconds_option(min=0.1, max=3600, help="Time over which rates are measured.")] = 1.0,
    limit: Annotated[
        int, typer.Option(metavar="COUNT", min=1, help="Channels to show; with --json all are shown.")
    ] = _CHANNELS_SHOWN,
    as_json: JsonOption = False,
) -> None:
    """Report on the channels of several servers, with problems first.

    Without servers, and unless options or the environment name one, it reports on the servers of all contexts. AGE is
    how long ago the oldest event was committed. Exits with 3 if a server does not respond.
    """
    asked = ask_together(sessions_of(session, servers or []), partial(_reported, interval_seconds=interval))
    reports = [one.result() for one in asked.values()]
    if as_json:
        typer.echo(json.dumps([_document(one) for one in reports], indent=2))
    else:
        show(_page(reports, limit))
    if unknown := [one for one in reports if one.watch is None]:
        raise CommandError(ExitCode.UNREACHABLE, f"{counted(len(unknown), 'server')} of {len(reports)} did not respond")


def _reported(name: str, session: Session, interval_seconds: float) -> ServerReport:
    try:
        with session.open() as client:
            watch = ChannelWatch(client, [])
            watch.update()
            time.sleep(interval_seconds)
            watch.update()
    except MillraceError as error:
        return ServerReport(name, None, sentence_of(error, session.address))
    return ServerReport(name, watch)


def channel_rows(reports: Sequence[ServerReport]) -> list[ChannelRow]:
    """Returns the channels of all servers: the most urgent first, then the deepest."""
    rows = [
        ChannelRow(one.name, channel, one.watch.rates.get(channel.name), *channel_problem(channel))
        for one in reports
        if one.watch is not None
        for channel in one.watch.channels
    ]
    return sorted(rows, key=lambda row: (row.severity, -row.depth, row.info.name, row.server))


def _page(reports: Sequence[ServerReport], limit: int) -> RenderableType:
    rows = channel_rows(reports)
    if len(rows) > limit:
        note(f"{len(rows) - limit:,} more channels are left out; show them with --limit {len(rows)}")
    tables: list[RenderableType] = [_server_table(reports, rows), "", _channel_table(rows[:limit])]
    troubled = [
        (one.name, component)
        for one in reports
        for component in one.components
        if component_severity(component) is not Severity.NONE
    ]
    if troubled:
        tables += ["", _component_table(sorted(troubled, key=lambda named: component_severity(named[1])))]
    return Group(*tables)


def _server_table(reports: Sequence[ServerReport], rows: Sequence[ChannelRow]) -> RenderableType:
    def total(count: Callable[[ChannelRow], float], one: ServerReport) -> str:
        return "-" if one.watch is None else rate_text(sum(count(row) for row in rows if row.server == one.name))

    columns: dict[str, Callable[[ServerReport], str | Text]] = {
        "SERVER": lambda one: Text(one.name),
        "STATE": lambda one: Text("no response", style="red") if one.watch is None else Text("up"),
        "CHANNELS>": partial(total, lambda _row: 1),
        "DEPTH>": partial(total, lambda row: row.depth),
        "IN/S>": partial(total, partial(_rate, 0)),
        "OUT/S>": partial(total, partial(_rate, 1)),
        "TXNS>": partial(total, lambda row: row.info.gauges.open_transactions),
        "PROBLEMS>": lambda one: "-" if one.watch is None else f"{_problem_count(one):,}",
    }
    listed = sorted(reports, key=lambda one: one.watch is not None)
    return plain_table(listed, columns, {"REASON": lambda one: one.trouble})


def _problem_count(one: ServerReport) -> int:
    channels = [row.severity for row in channel_rows([one])]
    components = [component_severity(component) for component in one.components]
    return sum(severity is not Severity.NONE for severity in channels + components)


def _rate(direction: int, row: ChannelRow) -> float:
    return row.rates[direction] if row.rates else 0.0


def _channel_table(rows: Sequence[ChannelRow]) -> RenderableType:
    def rate(direction: int, row: ChannelRow) -> str:
        return rate_text(row.rates[direction] if row.rates else None)

    columns: dict[str, Callable[[ChannelRow], str | Text]] = {
        **cells_of_info("CHANNEL STATE"),
        "SERVER": lambda row: Text(row.server),
        **cells_of_info("DEPTH> FILL>"),
        "IN/S>": partial(rate, 0),
        "OUT/S>": partial(rate, 1),
        **cells_of_info("AGE> BYTES> TXNS> CLAIM"),
    }
    return plain_table(rows, columns, {"PROBLEM": lambda row: row.problem})


def _component_table(named: Sequence[tuple[str, ComponentInfo]]) -> RenderableType:
    columns: dict[str, Callable[[tuple[str, ComponentInfo]], str | Text]] = {
        "COMPONENT": lambda one: Text(component_path(one[1])),
        "STATE": lambda one: one[1].state,
        "SERVER": lambda one: Text(one[0]),
        "FAILURES>": lambda one: f"{one[1].counters.failure_count:,}",
    }
    return plain_table(named, columns, {"PROBLEM": lambda one: component_problem(one[1])})


def _document(one: ServerReport) -> dict[str, Any]:
    return {
        "server": one.name,
        "error": one.trouble or None,
        "channels": [
            {
                **document_of(row.info),
                "events_per_second": dict(zip(("in", "out"), row.rates, strict=True)) if row.rates else None,
                "problem": row.problem or None,
            }
            for row in channel_rows([one])
        ],
        "components": [document_of(component) for component in one.components],
    }
