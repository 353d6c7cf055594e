"""The source interface and the settings that all sources share; the sources `custom` and `embedded`."""

import asyncio
from abc import ABC
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol

from pydantic import AfterValidator, BaseModel, Field, Secret, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.interceptors import AnyInterceptorConfig
from millrace_server.agent.selectors import AnySelectorConfig, ReplicatingConfig
from millrace_server.agent.setting_types import FactoryPath, KnownChannelName, check_unique, load_factory, revealed
from millrace_server.agent.supervision import ComponentFailedError
from millrace_server.channels.entrance import Entrance


class EmbeddedSources:
    """The writers of the running sources of type `embedded`, by source name."""

    def __init__(self) -> None:
        self._writers: dict[str, ChannelWriter] = {}

    @contextmanager
    def open_for(self, name: str, writer: ChannelWriter) -> Iterator[None]:
        self._writers[name] = writer
        try:
            yield
        finally:
            del self._writers[name]

    def find(self, name: str) -> ChannelWriter | None:
        """Returns the writer of a source, or None while the source is not running."""
        return self._writers.get(name)


class SourceContext(NamedTuple):
    """The context of a source, apart from its configuration."""

    name: str
    directory: Path
    """A directory for its own state, which may not exist yet."""
    embedded_sources: EmbeddedSources | None = None
    """The writers of sources of type `embedded`, for the embedding program; None in a daemon."""
    entrance: Entrance | None = None
    """The entrance for callers of a source of type `grpc`; None in an embedding program."""


class Source(Protocol):
    """Reads events and writes them into channels."""

    async def run(self, writer: ChannelWriter) -> None:
        """Writes events until the input ends, or until it is cancelled.

        It is cancelled when the agent stops, and may then take a moment to complete what it has begun. It may be run
        again after it has raised or was cancelled.

        Raises:
            ComponentError: It cannot work at the moment; it is run again later.
            ComponentFailedError: It cannot work until an operator changes something.
        """


_CLASSES = {
    "avro": "millrace_server.agent.sources.avro.source:AvroSource",
    "grpc": "millrace_server.agent.sources.grpc.source:GrpcSource",
    "http": "millrace_server.agent.sources.http.source:HttpSource",
    "kafka": "millrace_server.agent.sources.kafka.source:KafkaSource",
    "netcat": "millrace_server.agent.sources.netcat.source:NetcatSource",
    "spooldir": "millrace_server.agent.sources.spooldir.source:SpooldirSource",
    "syslog": "millrace_server.agent.sources.syslog.source:SyslogSource",
    "taildir": "millrace_server.agent.sources.taildir.source:TaildirSource",
}
"""The classes of sources that are imported on first use, by type."""


def source_class(type_name: str) -> Callable[..., Source]:
    """Imports and returns the class of a source."""
    found: Callable[..., Source] = resolve_name(_CLASSES[type_name])
    return found


class SourceConfig(BaseModel, ABC, frozen=True, extra="forbid", defer_build=True):
    """Settings of every source."""

    if TYPE_CHECKING:
        # The field of each subclass, with the name of the type as its only value.
        type: str

    channels: Annotated[list[KnownChannelName], Field(min_length=1), AfterValidator(check_unique)]
    """The channels to write to."""

    selector: AnySelectorConfig = Field(default_factory=lambda: ReplicatingConfig(type="replicating"))
    """Selects the channels for each event."""

    interceptors: list[AnyInterceptorConfig] = Field(default_factory=list)
    """The interceptors, which change or drop events in this order."""

    batch_events_max: int = Field(1_000, ge=1, le=1_000_000)
    """The maximum number of events in a transaction; fewer if the `transaction_capacity` of a channel is smaller."""

    dead_letter_channel: KnownChannelName | None = None
    """The channel for events that a channel can never accept, for example because they are too large, and for events
    that an interceptor refuses. Without it, such events are dropped and logged."""

    @field_validator("selector")
    @classmethod
    def _check_required(cls, selector: AnySelectorConfig, info: ValidationInfo) -> AnySelectorConfig:
        optional = selector.optional_channels
        if both := optional & selector.required_channels:
            names = " and ".join(map(shown_value, sorted(both)))
            raise ValueError(
                f"sends events to {names} both as optional and as required; a channel must be one or the other"
            )
        if optional.issuperset(info.data.get("channels", [""])):
            raise ValueError("makes all channels optional; at least one of them must be required")
        return selector

    @field_validator("dead_letter_channel")
    @classmethod
    def _check_elsewhere(cls, dead_letter_channel: str | None, info: ValidationInfo) -> str | None:
        if dead_letter_channel in info.data.get("channels", ()):
            raise ValueError(f"is {shown_value(dead_letter_channel)}; it must not be one of the source's own channels")
        return dead_letter_channel

    def make(self, context: SourceContext) -> Source:
        return source_class(self.type)(context.name, self)


class CustomSourceConfig(SourceConfig):
    """A source created by the user's factory."""

    type: Literal["custom"]
    """A user-defined source."""

    factory: FactoryPath
    """Called with the source's `SourceContext` and `options`; returns the source."""

    options: dict[str, Secret[Any]] = Field(default_factory=dict)
    """Keyword arguments of the factory."""

    def make(self, context: SourceContext) -> Source:
        source: Source = load_factory(self.factory)(context, **revealed(self.options))
        return source


class EmbeddedSourceConfig(SourceConfig):
    """A source that a program writes to through `millrace_server.embedded.EmbeddedAgent`."""

    type: Literal["embedded"]
    """Events of the program that runs the agent."""

    @field_validator("batch_events_max")
    @classmethod
    def _refuse_batch_events_max(cls, _value: object) -> None:
        raise ValueError("has no effect here; events that a program puts together are stored together")

    def make(self, context: SourceContext) -> Source:
        return _EmbeddedSource(context.name, context.embedded_sources)


class _EmbeddedSource:
    def __init__(self, name: str, embedded_sources: EmbeddedSources | None) -> None:
        self._name = name
        self._embedded_sources = embedded_sources

    async def run(self, writer: ChannelWriter) -> None:
        if self._embedded_sources is None:
            raise ComponentFailedError(
                "no program puts events into a daemon's source of type embedded; use millrace_server.embedded in a "
                "program, or a source of another type here"
            )
        with self._embedded_sources.open_for(self._name, writer):
            writer.report_running()
            # The callers of `put` do all the work.
            await asyncio.Event().wait()
