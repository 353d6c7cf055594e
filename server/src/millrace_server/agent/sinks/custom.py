"""The sink `custom`: a user's own."""

from typing import Any, Literal

from pydantic import Field

from millrace_server.agent.factories import FactoryPath, load_factory
from millrace_server.agent.sinks.sink import Sink, SinkConfig, SinkPlace


class CustomSinkConfig(SinkConfig):
    """A sink that is made by a factory of the user's."""

    type: Literal["custom"]
    """A user's own."""

    factory: FactoryPath
    """Called with the sink's place and `options`, returns the sink."""

    options: dict[str, Any] = Field(default_factory=dict)
    """What the factory gets as keyword arguments."""

    def make(self, place: SinkPlace) -> Sink:
        sink: Sink = load_factory(self.factory)(place, **self.options)
        return sink
