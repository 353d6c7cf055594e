"""What every sink is."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.channel_reader import ChannelReader, EventsRejectedError
from millrace_server.agent.setting_types import FactoryPath, KnownChannelName, load_factory
from millrace_server.channels.batches import StoredBatch


class SinkContext(NamedTuple):
    """Where a sink is."""

    name: str
    """Its name in the configuration."""
    directory: Path
    """A directory for what it must remember; it may not be there yet."""


class Sink(Protocol):
    """Takes events on."""

    async def run(self, reader: ChannelReader) -> None:
        """Takes deliveries and settles them, until the reader has no more to give.

        A delivery that is neither settled nor given back when this ends is given back. It may be cancelled when the
        time for stopping is over, and may be run again after it has raised or was cancelled.

        Raises:
            ComponentError: It cannot do its work now; it is run again later.
            ComponentFailedError: It cannot do its work until somebody changes something.
        """


class SinkConfig(BaseModel, ABC, frozen=True, extra="forbid"):
    """What sinks of every type have."""

    channel: KnownChannelName
    """The channel that it empties."""

    batch_events_max: int = Field(1_000, ge=1, le=1_000_000)
    """At most so many events in a delivery; fewer where the channel's `transaction_capacity` is smaller."""

    deliveries_max: int = Field(5, ge=1, le=1_000_000)
    """So often an event is delivered that the sink rejects; then it goes to the dead-letter channel."""

    dead_letter_channel: KnownChannelName | None = None
    """Where events go that were rejected `deliveries_max` times. Without it they are delivered for ever."""

    @field_validator("dead_letter_channel")
    @classmethod
    def _check_elsewhere(cls, dead_letter_channel: str | None, info: ValidationInfo) -> str | None:
        if dead_letter_channel is not None and dead_letter_channel == info.data.get("channel"):
            raise ValueError(f"is {shown_value(dead_letter_channel)}; it must be another channel than the sink's own")
        return dead_letter_channel

    @abstractmethod
    def make(self, place: SinkContext) -> Sink:
        """The sink."""


class TakingSinkConfig(SinkConfig, ABC):
    """What sinks have that never reject an event."""

    @field_validator("deliveries_max", "dead_letter_channel")
    @classmethod
    def _refuse_what_has_no_use(cls, _value: object) -> None:
        raise ValueError("has no use here; a sink of this type rejects no event")


class BatchSink(ABC):
    """A sink that is done with each delivery before it takes the next."""

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
        """Gets ready; raises ComponentError where that cannot be."""

    @abstractmethod
    async def write(self, batches: Sequence[StoredBatch]) -> None:
        """Has the events be safe elsewhere; they leave the channel once this returns.

        Raises:
            EventsRejectedError: Some of the events will never be taken; they are found out and set aside.
            ComponentError: None of them can be taken now.
        """

    async def close(self) -> None:  # noqa: B027 - most sinks have nothing to close
        """Gives back what it has opened."""


class CustomSinkConfig(SinkConfig):
    """A sink that is made by a factory of the user's."""

    type: Literal["custom"]
    """A user's own."""

    factory: FactoryPath
    """Called with the sink's place and `options`, returns the sink."""

    options: dict[str, Any] = Field(default_factory=dict)
    """What the factory gets as keyword arguments."""

    def make(self, place: SinkContext) -> Sink:
        sink: Sink = load_factory(self.factory)(place, **self.options)
        return sink


class NullSinkConfig(TakingSinkConfig):
    """A sink that drops what it takes."""

    type: Literal["null"]
    """Drops all events."""

    def make(self, _place: SinkContext) -> Sink:
        return _NullSink()


class _NullSink(BatchSink):
    async def write(self, batches: Sequence[StoredBatch]) -> None:
        """Nothing is to be done."""
