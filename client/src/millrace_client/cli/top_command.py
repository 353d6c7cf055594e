"""`millrace top`: the rates of channels and the state of components, live."""

import json
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from millrace.command_line.notes import is_on_terminal
from millrace.command_line.tables import show
from millrace_client import ChannelInfo, Client, ComponentInfo, MillraceError
from millrace_client.cli.exit_status import CommandError, ExitCode, sentence_of, unwrapped_interrupts
from millrace_client.cli.session import JsonOption, channel_names, completed, seconds_option, with_client
from millrace_client.cli.similar_names import question
from millrace_client.cli.terminal import Keyboard, keyboard_input
from millrace_client.cli.views import component_path, components_table, document_of, top_table

KeyT = TypeVar("KeyT", bound=Hashable)


class RateMeter:
    """Measures how fast counters grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._measured_at = 0.0
        self._last: Mapping[Any, Sequence[int]] = {}

    def measure(self, counters: Mapping[KeyT, Sequence[int]]) -> dict[KeyT, Sequence[float]]:
        """Returns the rates per second since the last call; a key that is new, or has restarted from 0, has none."""
        now = self._clock()
        seconds = now - self._measured_at
        rates: dict[KeyT, Sequence[float]] = {}
        for key, counts in counters.items():
            growth = [count - before for count, before in zip(counts, self._last.get(key, ()), strict=False)]
            if growth and min(growth) >= 0 and seconds > 0:
                rates[key] = [count / seconds for count in growth]
        self._measured_at, self._last = now, counters
        return rates


def channel_counters(channels: Iterable[ChannelInfo]) -> dict[tuple[str, str, datetime], tuple[int, int]]:
    """Returns the events stored in and removed from each channel, by what changes if it restarts or is replaced."""
    return {
        (channel.name, channel.channel_id, channel.start_time): (
            channel.counters.event_put_success_count,
            channel.counters.event_take_success_count,
        )
        for channel in channels
    }


@with_client
def top(
    client: Client,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CHANNEL", help="Channels to show; by default all.", autocompletion=completed(channel_names)
        ),
    ] = None,
    *,
    interval: Annotated[float, seconds_option(min=0.1, max=3600, help="Time between two updates.")] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Watch depth, fill and rates of channels, and the server's sources and sinks, until `q` or Ctrl-C.

    AGE is how long ago the oldest event was committed, TXNS are open transactions, WAITING are takes and commits that
    wait. If channels are named, only they are shown.
    With --json, or if standard output is not a terminal, it measures over one interval and writes once.
    """
    watch = ChannelWatch(client, names or [])
    watch.update()
    if as_json or not is_on_terminal():
        time.sleep(interval)
        watch.update()
        _write_once(watch, as_json=as_json)
        return
    # Ctrl-C is the normal end of a top.
    with suppress(KeyboardInterrupt), unwrapped_interrupts():
        _show_live(watch, interval)


class ChannelWatch:
    """Channels and components at the last update, and their rates since the one before."""

    def __init__(self, client: Client, names: Sequence[str]) -> None:
        self._client = client
        self.endpoint = client.endpoint
        self._names = names
        self._channel_meter = RateMeter()
        self._component_meter = RateMeter()
        self.channels: list[ChannelInfo] = []
        self.rates: Mapping[str, Sequence[float]] = {}
        self.components: list[ComponentInfo] = []
        self.component_rates: Mapping[str, float] = {}

    def update(self) -> None:
        """Gets the current state from the server; if that fails, nothing has changed."""
        channels = self._client.admin.list_channels()
        known = {channel.name for channel in channels}
        if missing := [name for name in self._names if name not in known]:
            advice = f"{question(missing[0], lambda: known)}see the names with `millrace channels`"
            raise CommandError(ExitCode.REFUSED, f"there is no channel {', '.join(missing)}; {advice}")
        components = [] if self._names else self._client.admin.list_components()
        self.channels = [channel for channel in channels if not self._names or channel.name in self._names]
        measured = self._channel_meter.measure(channel_counters(self.channels))
        self.rates = {name: rates for (name, _, _), rates in measured.items()}
        self.components = components
        counters = {component_path(component): [component.counters.event_count] for component in components}
        self.component_rates = {path: rate for path, (rate,) in self._component_meter.measure(counters).items()}


def _write_once(watch: ChannelWatch, *, as_json: bool) -> None:
    if not as_json:
        show(_tables(watch))
        return
    documents = []
    for channel in watch.channels:
        rates = watch.rates.get(channel.name)
        events_per_second = dict(zip(("in", "out"), rates, strict=True)) if rates else None
        documents.append({**document_of(channel), "events_per_second": events_per_second})
    typer.echo(json.dumps(documents, indent=2))


def _show_live(watch: ChannelWatch, interval_seconds: float) -> None:
    live = Live(_screen(watch, ""), screen=True, auto_refresh=False)
    with keyboard_input() as keyboard:
        if live.console.is_dumb_terminal:
            _show_repeatedly(watch, keyboard, interval_seconds)
            return
        # Not `with live`: an interrupt during `start` would leave the terminal on the alternate screen.
        try:
            live.start(refresh=True)
            while not keyboard.quits_within(interval_seconds):
                live.update(_screen(watch, try_to_update(watch)), refresh=True)
        finally:
            live.stop()


def _show_repeatedly(watch: ChannelWatch, keyboard: Keyboard, interval_seconds: float) -> None:
    """Writes one screen below the other, for a terminal that cannot move its cursor."""
    show(_screen(watch, ""))
    while not keyboard.quits_within(interval_seconds):
        typer.echo()
        show(_screen(watch, try_to_update(watch)))


def try_to_update(watch: ChannelWatch) -> str:
    """Updates; returns why it failed, or an empty string."""
    try:
        watch.update()
    except MillraceError as error:
        # A restarted server becomes available again, and the user wants to see that.
        return f"trying again: {sentence_of(error, watch.endpoint)}"
    except CommandError as error:
        return f"trying again: {error}"
    return ""


def _screen(watch: ChannelWatch, trouble: str) -> RenderableType:
    heading = Text(f"millrace top  {time.strftime('%H:%M:%S')}  q or Ctrl-C ends", style="dim")
    return Group(heading, *([Text(trouble, style="red")] if trouble else []), _tables(watch))


def _tables(watch: ChannelWatch) -> RenderableType:
    channels = top_table(watch.channels, watch.rates)
    if not watch.components:
        return channels
    return Group(channels, "", components_table(watch.components, watch.component_rates))
