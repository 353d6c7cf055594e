"""The source `embedded`: events of the program that the agent runs in."""

import asyncio
from typing import Literal

from pydantic import field_validator

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.sources.source import EmbeddedSources, Source, SourceConfig, SourceContext
from millrace_server.agent.supervision import ComponentFailedError


class EmbeddedSourceConfig(SourceConfig):
    """A source into which a program puts events, by `millrace_server.embedded.EmbeddedAgent`."""

    type: Literal["embedded"]
    """Events of the program that the agent runs in."""

    @field_validator("batch_events_max")
    @classmethod
    def _refuse_batch_events_max(cls, _value: object) -> None:
        raise ValueError("has no use here; what a program puts at once is stored at once")

    def make(self, place: SourceContext) -> Source:
        return _EmbeddedSource(place.name, place.embedded_sources)


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
            writer.note_ready()
            # Whoever puts does all the work.
            await asyncio.Event().wait()
