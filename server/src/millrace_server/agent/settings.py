"""All sources and sinks that a configuration can name."""

from millrace_server.agent.sinks.null import NullSinkConfig
from millrace_server.agent.sources.custom import CustomSourceConfig

AnySourceConfig = CustomSourceConfig
"""A source's table, told apart by its `type`."""

AnySinkConfig = NullSinkConfig
"""A sink's table, told apart by its `type`."""
