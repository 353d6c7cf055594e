"""Settings of the source `grpc`."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import field_validator

from millrace.setting_problems import Problem, shown_path, shown_value
from millrace_server.agent.setting_types import named_tables
from millrace_server.agent.sources.source import Source, SourceConfig, SourceContext, source_class


class GrpcSourceConfig(SourceConfig):
    """A source to which gRPC clients append under its name, as to a channel."""

    type: Literal["grpc"]
    """Events that gRPC clients append."""

    @field_validator("batch_events_max")
    @classmethod
    def _refuse_batch_events_max(cls, _value: object) -> None:
        raise ValueError("has no effect here; the events of one append are stored together")

    def make(self, context: SourceContext) -> Source:
        return source_class(self.type)(context)


def name_problems(tables: Mapping[str, Any]) -> list[Problem]:
    """Returns a problem for each source of type `grpc` that has the name of a channel."""
    return [
        Problem(
            ("sources", name),
            f"is called {shown_value(name)}, like {shown_path(('channels', name))}; callers could not distinguish "
            "them, so choose another name",
        )
        for name in named_tables(tables, "sources")
        if tables["sources"][name].get("type") == "grpc" and name in named_tables(tables, "channels")
    ]
