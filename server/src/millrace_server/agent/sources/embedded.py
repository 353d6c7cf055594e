"""The source `embedded`, whose events come from the program that runs the agent."""

import asyncio
from typing import Literal

from pydantic import field_validator

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.sources.source import EmbeddedSources, Source, SourceConfig, SourceContext
from millrace_server.agent.supervision import ComponentFailedError


class EmbeddedSourceConfig(SourceConfig):
    """A source that a program writes to through `millrace_server.embedded.EmbeddedAgent`."""

    type: Literal["embedded"]
    """Events of the program that runs the agent."""

    @field_validator("batch_events_max")
    @classmethod
    def _refuse_batch_events_max(cls, _value: object) -> None:
        raise ValueError("has no effect here; events that a program puts together are stored together")

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
            writer.report_running()
            # The caller of `put` does all the work.
            await asyncio.Event().wait()
