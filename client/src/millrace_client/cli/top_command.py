"""`millrace top`: the rates of channels and the state of components, live."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live

from millrace_client import ChannelInfo, Client, ComponentInfo, MillraceError
from millrace_client.cli.exit_status import CommandError, ExitCode, sentence_of, unwrapped_interrupts
from millrace_client.cli.session import JsonOption, seconds_option, with_client
from millrace_client.cli.terminal import is_on_terminal, keyboard_input, show, text
from millrace_client.cli.views import Rates, channel_document, component_path, components_table, top_table


class RateMeter:
    """Measures rates of channels since the previous call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._measured_at = 0.0
        self._last: dict[str, ChannelInfo] = {}

    def measure(self, channels: Iterable[ChannelInfo]) -> dict[str, Rates]:
        """Returns the rates since the last call, by channel.

        A channel that is new, or whose counters have restarted from 0, has none.
        """
        now = self._clock()
        seconds = now - self._measured_at
        looked = {channel.name: channel for channel in channels}
        rates = {
            name: measured
            for name, channel in looked.items()
            if (last := self._last.get(name)) and (measured := _rates(last, channel, seconds))
        }
        self._measured_at, self._last = now, looked
        return rates


class ComponentRateMeter:
    """Measures rates of components since the previous call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._measured_at = 0.0
        self._last: dict[str, int] = {}

    def measure(self, components: Iterable[ComponentInfo]) -> dict[str, float]:
        """Returns the events per second since the last call, by the component's path.

        A component that is new, or whose counter has restarted from 0, has none.
        """
        now = self._clock()
        seconds = now - self._measured_at
        counts = {component_path(component): component.counters.event_count for component in components}
        rates = {
            path: (count - self._last[path]) / seconds
            for path, count in counts.items()
            if seconds > 0 and count >= self._last.get(path, count + 1)
        }
        self._measured_at, self._last = now, counts
        return rates


def _rates(last: ChannelInfo, channel: ChannelInfo, seconds: float) -> Rates | None:
    put = channel.counters.event_put_success_count - last.counters.event_put_success_count
    taken = channel.counters.event_take_success_count - last.counters.event_take_success_count
    is_same = channel.channel_id == last.channel_id and channel.start_time == last.start_time
    if seconds <= 0 or not is_same or put < 0 or taken < 0:
        return None
    return Rates(put / seconds, taken / seconds)


INTERVAL_SECONDS = 1.0
INTERVAL_SECONDS_MIN = 0.1
INTERVAL_SECONDS_MAX = 3600

NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="CHANNEL", help="Channels to show; by default all.", show_default=False)
]
IntervalOption = Annotated[
    float,
    seconds_option(min=INTERVAL_SECONDS_MIN, max=INTERVAL_SECONDS_MAX, help="Time between two updates."),
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

    TXNS are open transactions, WAITING are takes and commits that wait. If channels are named, only they are shown.
    With --json, or if standard output is not a terminal, it measures over one interval and writes once.
    """
    watch = ChannelWatch(client, names or [])
    watch.update()
    if as_json or not is_on_terminal():
        time.sleep(interval)
        watch.update()
        _write_once(watch, as_json=as_json)
        return
    try:
        with unwrapped_interrupts():
            _show_live(watch, interval)
    except KeyboardInterrupt:
        # Ctrl-C is the normal end of a top.
        return


class ChannelWatch:
    """Channels and components at the last update, and their rates since the one before."""

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

    def update(self) -> None:
        """Gets the current state from the server.

        Raises:
            CommandError: A named channel does not exist.
            MillraceError: The server did not answer; nothing has changed.
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
    with keyboard_input() as keyboard:
        # Not `with live`: an interrupt during `start` would leave the terminal on the alternate screen.
        try:
            live.start(refresh=True)
            while not keyboard.quits_within(interval_seconds):
                live.update(_screen(watch, try_to_update(watch)), refresh=True)
        finally:
            live.stop()


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
    heading = text(f"millrace top  {time.strftime('%H:%M:%S')}  q or Ctrl-C ends", style="dim")
    return Group(heading, _tables(watch), *([text(trouble, style="red")] if trouble else []))


def _tables(watch: ChannelWatch) -> RenderableType:
    channels = top_table(watch.channels, watch.rates)
    if not watch.components:
        return channels
    return Group(channels, "", components_table(watch.components, watch.component_rates))
