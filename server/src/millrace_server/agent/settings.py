"""The unions of all source and sink types that a configuration can name."""

from typing import Annotated

from pydantic import Field

from millrace_server.agent.sinks.files.config import FilesSinkConfig
from millrace_server.agent.sinks.http_config import HttpSinkConfig
from millrace_server.agent.sinks.logger import LoggerSinkConfig
from millrace_server.agent.sinks.millrace.config import MillraceSinkConfig
from millrace_server.agent.sinks.sink import CustomSinkConfig, NullSinkConfig
from millrace_server.agent.sources.exec.source import ExecSourceConfig
from millrace_server.agent.sources.http.config import HttpSourceConfig
from millrace_server.agent.sources.source import CustomSourceConfig, EmbeddedSourceConfig
from millrace_server.agent.sources.spooldir.config import SpooldirSourceConfig
from millrace_server.agent.sources.stdin import StdinSourceConfig
from millrace_server.agent.sources.syslog.config import SyslogSourceConfig
from millrace_server.agent.sources.taildir.config import TaildirSourceConfig

AnySourceConfig = Annotated[
    CustomSourceConfig
    | EmbeddedSourceConfig
    | ExecSourceConfig
    | HttpSourceConfig
    | SpooldirSourceConfig
    | StdinSourceConfig
    | SyslogSourceConfig
    | TaildirSourceConfig,
    Field(discriminator="type"),
]
"""A source's table, discriminated by its `type`."""

AnySinkConfig = Annotated[
    CustomSinkConfig | FilesSinkConfig | HttpSinkConfig | LoggerSinkConfig | MillraceSinkConfig | NullSinkConfig,
    Field(discriminator="type"),
]
"""A sink's table, discriminated by its `type`."""
