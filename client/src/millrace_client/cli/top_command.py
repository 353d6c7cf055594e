"""`millrace top`: what moves in the channels, and how what moves it is, live."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live

from millrace_client import ChannelInfo, Client, ComponentInfo, MillraceError
from millrace_client.cli.channel_view import channel_document, top_table
from millrace_client.cli.component_view import components_table
from millrace_client.cli.exit_codes import ExitCode
from millrace_client.cli.failures import CommandError, sentence_of
from millrace_client.cli.interrupts import undisguised_interrupts
from millrace_client.cli.keyboard import heard_keys
from millrace_client.cli.screen import is_on_terminal, show, text
from millrace_client.cli.session import JsonOption, seconds_option, with_client
from millrace_client.cli.top_rates import ComponentRateMeter, RateMeter, Rates

INTERVAL_SECONDS = 1.0
INTERVAL_SECONDS_MIN = 0.1
INTERVAL_SECONDS_MAX = 3600

NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="CHANNEL", help="Channels to show; nothing: all.", show_default=False)
]
IntervalOption = Annotated[
    float,
    seconds_option(min=INTERVAL_SECONDS_MIN, max=INTERVAL_SECONDS_MAX, help="Time between two looks."),
]


@with_client
def top(
    client: Client,
    names: NamesArgument = None,
    *,
    interval: IntervalOption = INTERVAL_SECONDS,
    as_json: JsonOption = False,
) -> None:
    """Watch depth, fill and rates of channels, and the server's sources and sinks, until `q` or Ctrl-C.

    TXNS are open transactions, WAITING are takes and commits that wait. Where channels are named, only they are shown.
    Where standard output is no terminal, and with
    --json, it looks twice, an interval apart, and writes once.
    """
    watch = ChannelWatch(client, names or [])
    watch.look()
    if as_json or not is_on_terminal():
        time.sleep(interval)
        watch.look()
        _write_once(watch, as_json=as_json)
        return
    try:
        with undisguised_interrupts():
            _show_live(watch, interval)
    except KeyboardInterrupt:
        # Ctrl-C is how a top ends, not how it fails.
        return


class ChannelWatch:
    """Channels and components as they were at the last look, and what moved since the one before."""

    def __init__(self, client: Client, names: Sequence[str]) -> None:
        self._client = client
        self.endpoint = client.endpoint
        self._names = names
        self._meter = RateMeter()
        self._component_meter = ComponentRateMeter()
        self.channels: list[ChannelInfo] = []
        self.rates: Mapping[str, Rates] = {}
        self.components: list[ComponentInfo] = []
        self.component_rates: Mapping[str, float] = {}

    def look(self) -> None:
        """Asks the server.

        Raises:
            CommandError: A channel that was named is not there.
            MillraceError: The server did not answer; the last look stays as it is.
        """
        channels = self._client.admin.list_channels()
        known = {channel.name for channel in channels}
        if missing := [name for name in self._names if name not in known]:
            raise CommandError(
                ExitCode.REFUSED, f"there is no channel {', '.join(missing)}; see the names with `millrace channels`"
            )
        components = [] if self._names else self._client.admin.list_components()
        self.channels = [channel for channel in channels if not self._names or channel.name in self._names]
        self.rates = self._meter.measure(self.channels)
        self.components = components
        self.component_rates = self._component_meter.measure(components)


def _write_once(watch: ChannelWatch, *, as_json: bool) -> None:
    if not as_json:
        show(_tables(watch))
        return
    documents = []
    for channel in watch.channels:
        rates = watch.rates.get(channel.name)
        events_per_second = {"in": rates.put, "out": rates.taken} if rates else None
        documents.append({**channel_document(channel), "events_per_second": events_per_second})
    typer.echo(json.dumps(documents, indent=2))


def _show_live(watch: ChannelWatch, interval_seconds: float) -> None:
    live = Live(_screen(watch, ""), screen=True, auto_refresh=False)
    with heard_keys() as keyboard:
        # Not `with live`: an interrupt inside its beginning would leave the terminal on the other screen.
        try:
            live.start(refresh=True)
            while not keyboard.quits_within(interval_seconds):
                live.update(_screen(watch, try_to_look(watch)), refresh=True)
        finally:
            live.stop()


def try_to_look(watch: ChannelWatch) -> str:
    """What keeps the screen from being new; empty where nothing does."""
    try:
        watch.look()
    except MillraceError as error:
        # A server that restarts comes back, and whoever watches wants to see that.
        return f"trying again: {sentence_of(error, watch.endpoint)}"
    except CommandError as error:
        return f"trying again: {error}"
    return ""


def _screen(watch: ChannelWatch, trouble: str) -> RenderableType:
    heading = text(f"millrace top  {time.strftime('%H:%M:%S')}  q or Ctrl-C ends", style="dim")
    return Group(heading, _tables(watch), *([text(trouble, style="red")] if trouble else []))


def _tables(watch: ChannelWatch) -> RenderableType:
    channels = top_table(watch.channels, watch.rates)
    if not watch.components:
        return channels
    return Group(channels, "", components_table(watch.components, watch.component_rates))
