"""A server and its channels as the console shows them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from millrace_server.agent.components import Component
from millrace_server.channels.channel import ChannelGauges
from millrace_server.channels.channel_handle import ChannelHandle
from millrace_server.channels.forecast import Forecast
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.configuration.settings import Settings
from millrace_server.console.documents import time_of
from millrace_server.console.history import History, channel_key, sample_of_channel
from millrace_server.hosting.lifecycle import flows_of

_NO_FORECAST = Forecast(None, None)


@dataclass(frozen=True)
class ShownServer:
    """The parts of a server that the console shows."""

    registry: ChannelRegistry
    components: Iterable[Component]
    settings: Callable[[], Settings]
    """Returns the configuration in force."""
    has_tls: bool = False
    """Whether its HTTP port has TLS."""

    @cached_property
    def history(self) -> History:
        """The samples of the last hour."""
        return History(self.registry, self.components)

    def read(self, handle: ChannelHandle) -> "ChannelReading":
        return ChannelReading(handle, self.history)

    def dead_letter_channels(self) -> set[str]:
        """Returns the channels in which some component sets events aside."""
        return flows_of(self.settings()).dead_letter_channels()


class ChannelReading:
    """A channel at one moment. Values that few pages show are read on first access."""

    def __init__(self, handle: ChannelHandle, history: History) -> None:
        channel = handle.channel_if_open
        sample = sample_of_channel(channel)
        self.handle = handle
        self.name = handle.name
        self.channel = channel
        self.queued_count = 0 if channel is None else channel.queued_count
        self.depth = 0 if channel is None else int(sample.depth)
        self.fill = 0.0 if channel is None else channel.used_fraction
        self.rates = history.rates(channel_key(handle.name), sample)

    @cached_property
    def gauges(self) -> ChannelGauges | None:
        return None if self.channel is None else self.channel.gauges()

    @cached_property
    def forecast(self) -> Forecast:
        return _NO_FORECAST if self.channel is None else self.channel.forecast()

    @property
    def oldest_time(self) -> float | None:
        return time_of(self.gauges.oldest_commit_time if self.gauges else 0)

    @property
    def last_put_time(self) -> float | None:
        return time_of(self.channel.last_put_time if self.channel else 0)

    @property
    def last_take_time(self) -> float | None:
        return time_of(self.channel.last_take_time if self.channel else 0)
