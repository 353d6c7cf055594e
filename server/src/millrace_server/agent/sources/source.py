"""What every source is."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Annotated, NamedTuple, Protocol

from pydantic import BaseModel, Field

from millrace_server.agent.intake import Intake
from millrace_server.agent.interceptors.config import AnyInterceptorConfig
from millrace_server.agent.selectors import AnySelectorConfig, ReplicatingConfig
from millrace_server.channels.names import CHANNEL_NAME_PATTERN

ChannelName = Annotated[str, Field(pattern=rf"^(?:{CHANNEL_NAME_PATTERN})$")]


class SourcePlace(NamedTuple):
    """Where a source is."""

    name: str
    """Its name in the configuration."""
    directory: Path
    """A directory for what it must remember; it may not be there yet."""


class Source(Protocol):
    """Brings events."""

    async def run(self, intake: Intake) -> None:
        """Brings events until there will be no more, or until it is cancelled.

        It is cancelled when the agent stops, and may take a moment to end what it has begun. It may be run again after
        it has raised or was cancelled.

        Raises:
            ComponentError: It cannot do its work now; it is run again later.
            ComponentFailedError: It cannot do its work until somebody changes something.
        """


class SourceConfig(BaseModel, ABC, frozen=True, extra="forbid"):
    """What sources of every type have."""

    channels: Annotated[list[ChannelName], Field(min_length=1)]
    """The channels that it fills."""

    selector: AnySelectorConfig = Field(default_factory=lambda: ReplicatingConfig(type="replicating"))
    """Which of them an event goes to."""

    interceptors: list[AnyInterceptorConfig] = Field(default_factory=list)
    """What changes or drops its events, in this order."""

    batch_events_max: int = Field(1_000, ge=1, le=1_000_000)
    """At most so many events in a transaction; fewer where a channel's `transaction_capacity` is smaller."""

    @abstractmethod
    def make(self, place: SourcePlace) -> Source:
        """The source."""
