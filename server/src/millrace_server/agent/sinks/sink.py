"""The sink interface and the settings that all sinks share; the sinks `custom` and `null`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import BaseModel, Field, Secret, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.channel_reader import ChannelReader, EventsRejectedError
from millrace_server.agent.setting_types import FactoryPath, KnownChannelName, load_factory, revealed
from millrace_server.channels.batches import StoredBatch


class SinkContext(NamedTuple):
    """The context of a sink, apart from its configuration."""

    name: str
    """Its name in the configuration."""
    directory: Path
    """A directory for its own state, which may not exist yet."""


class Sink(Protocol):
    """Delivers events to another system."""

    async def run(self, reader: ChannelReader) -> None:
        """Takes deliveries and settles them until the reader returns None.

        Deliveries that are still open when this ends are nacked. It is cancelled if it does not stop in time, and may
        be run again after it has raised or was cancelled.

        Raises ComponentError if it cannot work now; it is run again later. Raises ComponentFailedError if it cannot
        work until an operator changes something.
        """


_CLASSES = {
    "avro": "millrace_server.agent.sinks.avro.sink:AvroSink",
    "http": "millrace_server.agent.sinks.http.sink:HttpSink",
    "kafka": "millrace_server.agent.sinks.kafka.sink:KafkaSink",
    "millrace": "millrace_server.agent.sinks.millrace.sink:ForwardingSink",
}
"""The classes of sinks that are imported on first use, by type."""


def sink_class(type_name: str) -> Callable[..., Sink]:
    """Imports and returns the class of a sink."""
    found: Callable[..., Sink] = resolve_name(_CLASSES[type_name])
    return found


class SinkConfig(BaseModel, ABC, frozen=True, extra="forbid", defer_build=True):
    """Settings of every sink."""

    channel: KnownChannelName
    """The channel to take events from."""

    batch_events_max: int = Field(1_000, ge=1, le=1_000_000)
    """The maximum number of events in a delivery; fewer if the channel's `transaction_capacity` is smaller."""

    deliveries_max: int = Field(5, ge=1, le=1_000_000)
    """How often an event that the sink rejects is delivered before it goes to the dead-letter channel. After each of
    these rejections but the last, the sink pauses: half a second, then twice as long each time, up to 30 seconds. With
    1, it never pauses."""

    dead_letter_channel: KnownChannelName | None = None
    """The channel for events that were rejected `deliveries_max` times. Without it, they are delivered again
    indefinitely."""

    @field_validator("dead_letter_channel")
    @classmethod
    def _check_elsewhere(cls, dead_letter_channel: str | None, info: ValidationInfo) -> str | None:
        if dead_letter_channel is not None and dead_letter_channel == info.data.get("channel"):
            raise ValueError(f"is {shown_value(dead_letter_channel)}; it must be a channel other than the sink's own")
        return dead_letter_channel

    @abstractmethod
    def make(self, context: SinkContext) -> Sink:
        """Creates the sink."""

    def check_files(self) -> None:
        """Reads the files of certificates and tokens; raises ComponentError if the sink could not connect with them."""


class NonRejectingSinkConfig(SinkConfig, ABC):
    """Settings of sinks that never reject an event."""

    @field_validator("deliveries_max", "dead_letter_channel")
    @classmethod
    def _refuse_unused(cls, _value: object) -> None:
        raise ValueError("has no effect here; a sink of this type never rejects an event")


class BatchSink(ABC):
    """A sink that completes each delivery before it takes the next one."""

    async def run(self, reader: ChannelReader) -> None:
        await self.open()
        try:
            while (delivery := await reader.take()) is not None:
                try:
                    await self.write(delivery.batches)
                except EventsRejectedError as error:
                    await reader.reject(delivery, error)
                else:
                    await delivery.settle()
        finally:
            await self.close()

    async def open(self) -> None:  # noqa: B027 - most sinks have nothing to open
        """Prepares for `write`. Raises ComponentError if that is not possible."""

    @abstractmethod
    async def write(self, batches: Sequence[StoredBatch]) -> None:
        """Writes the events durably to another system; they leave the channel once this returns.

        Raises EventsRejectedError if some events can never be written: these are found and stored as dead letters.
        Raises ComponentError if no events can be written now.
        """

    async def close(self) -> None:  # noqa: B027 - most sinks have nothing to close
        """Releases the resources that `open` acquired."""


class CustomSinkConfig(SinkConfig):
    """A sink created by the user's factory."""

    type: Literal["custom"]
    """A user-defined sink."""

    factory: FactoryPath
    """Called with the sink's context (`name`, `directory`) and `options`; returns the sink."""

    options: dict[str, Secret[Any]] = Field(default_factory=dict)
    """Keyword arguments of the factory."""

    def make(self, context: SinkContext) -> Sink:
        sink: Sink = load_factory(self.factory)(context, **revealed(self.options))
        return sink


class NullSinkConfig(NonRejectingSinkConfig):
    """A sink that drops its events."""

    type: Literal["null"]
    """Drops all events."""

    def make(self, _context: SinkContext) -> Sink:
        return _NullSink()


class _NullSink(BatchSink):
    async def write(self, batches: Sequence[StoredBatch]) -> None:
        """Drops the events."""
