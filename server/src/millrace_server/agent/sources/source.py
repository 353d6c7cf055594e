"""Where a program hands its events to the sources of type `embedded`."""

import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.interceptors.config import AnyInterceptorConfig
from millrace_server.agent.selectors import AnySelectorConfig, ReplicatingConfig
from millrace_server.agent.setting_types import FactoryPath, KnownChannelName, load_factory
from millrace_server.agent.supervision import ComponentError
from millrace_server.errors import StartError
from millrace_server.network.addresses import Address, open_socket


class EmbeddedSources:
    """The writers of embedded sources, by the source's name, while they are at work."""

    def __init__(self) -> None:
        self._writers: dict[str, ChannelWriter] = {}

    @contextmanager
    def open_for(self, name: str, writer: ChannelWriter) -> Iterator[None]:
        """Inside, a program finds the writer."""
        self._writers[name] = writer
        try:
            yield
        finally:
            del self._writers[name]

    def find(self, name: str) -> ChannelWriter | None:
        """The writer of a source; None while the source is not at work."""
        return self._writers.get(name)


class SourceContext(NamedTuple):
    """Where a source is."""

    name: str
    """Its name in the configuration."""
    directory: Path
    """A directory for what it must remember; it may not be there yet."""
    embedded_sources: EmbeddedSources | None = None
    """Where the program that the agent runs in hands its events over; None in a daemon."""


class Source(Protocol):
    """Brings events."""

    async def run(self, writer: ChannelWriter) -> None:
        """Brings events until there will be no more, or until it is cancelled.

        It is cancelled when the agent stops, and may take a moment to end what it has begun. It may be run again after
        it has raised or was cancelled.

        Raises:
            ComponentError: It cannot do its work now; it is run again later.
            ComponentFailedError: It cannot do its work until somebody changes something.
        """


class SourceConfig(BaseModel, ABC, frozen=True, extra="forbid"):
    """What sources of every type have."""

    channels: Annotated[list[KnownChannelName], Field(min_length=1)]
    """The channels that it fills."""

    selector: AnySelectorConfig = Field(default_factory=lambda: ReplicatingConfig(type="replicating"))
    """Which of them an event goes to."""

    interceptors: list[AnyInterceptorConfig] = Field(default_factory=list)
    """What changes or drops its events, in this order."""

    batch_events_max: int = Field(1_000, ge=1, le=1_000_000)
    """At most so many events in a transaction; fewer where a channel's `transaction_capacity` is smaller."""

    dead_letter_channel: KnownChannelName | None = None
    """Where events go that a channel can never take, such as one that is too large, and those that an interceptor
    cannot let through. Without it the former are dropped, and the log says so."""

    @field_validator("channels")
    @classmethod
    def _check_apart(cls, channels: list[str]) -> list[str]:
        if twice := [name for name in dict.fromkeys(channels) if channels.count(name) > 1]:
            raise ValueError(f"names {' and '.join(map(shown_value, twice))} twice; each may come once")
        return channels

    @field_validator("selector")
    @classmethod
    def _check_required(cls, selector: AnySelectorConfig, info: ValidationInfo) -> AnySelectorConfig:
        optional = selector.optional_channels
        if both := optional & selector.required_channels:
            names = " and ".join(map(shown_value, sorted(both)))
            raise ValueError(f"sends events to {names} both as optional and as required; a channel is one or the other")
        if optional.issuperset(info.data.get("channels", [""])):
            raise ValueError("makes all channels optional; at least one of them must be required")
        return selector

    @field_validator("dead_letter_channel")
    @classmethod
    def _check_elsewhere(cls, dead_letter_channel: str | None, info: ValidationInfo) -> str | None:
        if dead_letter_channel in info.data.get("channels", ()):
            raise ValueError(f"is {shown_value(dead_letter_channel)}; it must be none of the source's own channels")
        return dead_letter_channel

    @abstractmethod
    def make(self, place: SourceContext) -> Source:
        """The source."""


class ListeningSourceConfig(SourceConfig, ABC):
    """What sources have that others connect to."""

    allow_plaintext: bool = False
    """Listen where other machines can connect, although nothing is encrypted and nobody is asked who they are."""


def check_reach(shown: str, address: Address, *, allow_plaintext: bool | None) -> None:
    """Raises ValueError where other machines can reach an address and nobody has said that they may.

    Args:
        shown: The address as the configuration has it.
        address: The same, parsed.
        allow_plaintext: What was said; None where that was no answer, which is told already.
    """
    if not address.is_loopback and allow_plaintext is False:
        raise ValueError(
            f"is {shown_value(shown)}, which other machines can reach, and nothing is encrypted; it must be a loopback "
            "address, or allow_plaintext must be true"
        )


async def open_source_socket(
    address: Address, source: str, kind: socket.SocketKind = socket.SOCK_STREAM
) -> socket.socket:
    """A socket that is bound for a source.

    Raises:
        ComponentError: It cannot be had now.
    """
    try:
        return await open_socket(address, f"sources.{source}.listen", kind)
    except StartError as error:
        raise ComponentError(str(error)) from None


def address_of(bound: socket.socket) -> Address:
    """Where a socket is bound."""
    return Address(*bound.getsockname()[:2])


class CustomSourceConfig(SourceConfig):
    """A source that is made by a factory of the user's."""

    type: Literal["custom"]
    """A user's own."""

    factory: FactoryPath
    """Called with the source's place and `options`, returns the source."""

    options: dict[str, Any] = Field(default_factory=dict)
    """What the factory gets as keyword arguments."""

    def make(self, place: SourceContext) -> Source:
        source: Source = load_factory(self.factory)(place, **self.options)
        return source
