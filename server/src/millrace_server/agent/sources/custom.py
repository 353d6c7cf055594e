"""The source `custom`: a user's own."""

from typing import Any, Literal

from pydantic import Field

from millrace_server.agent.setting_types import FactoryPath, load_factory
from millrace_server.agent.sources.source import Source, SourceConfig, SourcePlace


class CustomSourceConfig(SourceConfig):
    """A source that is made by a factory of the user's."""

    type: Literal["custom"]
    """A user's own."""

    factory: FactoryPath
    """Called with the source's place and `options`, returns the source."""

    options: dict[str, Any] = Field(default_factory=dict)
    """What the factory gets as keyword arguments."""

    def make(self, place: SourcePlace) -> Source:
        source: Source = load_factory(self.factory)(place, **self.options)
        return source
