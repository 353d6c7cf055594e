"""The agent's part of a configuration: its sources, sinks and sink groups."""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from pydantic import Field

from millrace_server.agent.sink_group_config import SinkGroupConfig
from millrace_server.agent.sinks.avro.config import AvroSinkConfig
from millrace_server.agent.sinks.files.config import FilesSinkConfig
from millrace_server.agent.sinks.http.config import HttpSinkConfig
from millrace_server.agent.sinks.kafka.config import KafkaSinkConfig
from millrace_server.agent.sinks.logger import LoggerSinkConfig
from millrace_server.agent.sinks.millrace.config import MillraceSinkConfig
from millrace_server.agent.sinks.sink import CustomSinkConfig, NullSinkConfig
from millrace_server.agent.sources.avro.config import AvroSourceConfig
from millrace_server.agent.sources.exec.source import ExecSourceConfig
from millrace_server.agent.sources.grpc.config import GrpcSourceConfig
from millrace_server.agent.sources.http.config import HttpSourceConfig
from millrace_server.agent.sources.kafka.config import KafkaSourceConfig
from millrace_server.agent.sources.netcat.config import NetcatSourceConfig
from millrace_server.agent.sources.sequence import SequenceSourceConfig
from millrace_server.agent.sources.source import CustomSourceConfig, EmbeddedSourceConfig
from millrace_server.agent.sources.spooldir.config import SpooldirSourceConfig
from millrace_server.agent.sources.stdin import StdinSourceConfig
from millrace_server.agent.sources.syslog.config import SyslogSourceConfig
from millrace_server.agent.sources.taildir.config import TaildirSourceConfig

AnySourceConfig = Annotated[
    AvroSourceConfig
    | CustomSourceConfig
    | EmbeddedSourceConfig
    | ExecSourceConfig
    | GrpcSourceConfig
    | HttpSourceConfig
    | KafkaSourceConfig
    | NetcatSourceConfig
    | SequenceSourceConfig
    | SpooldirSourceConfig
    | StdinSourceConfig
    | SyslogSourceConfig
    | TaildirSourceConfig,
    Field(discriminator="type"),
]
"""A source's table, discriminated by its `type`."""

AnySinkConfig = Annotated[
    AvroSinkConfig
    | CustomSinkConfig
    | FilesSinkConfig
    | HttpSinkConfig
    | KafkaSinkConfig
    | LoggerSinkConfig
    | MillraceSinkConfig
    | NullSinkConfig,
    Field(discriminator="type"),
]
"""A sink's table, discriminated by its `type`."""


class AgentConfig(NamedTuple):
    """The sources, sinks and sink groups that an agent runs, by name."""

    sources: Mapping[str, AnySourceConfig]
    sinks: Mapping[str, AnySinkConfig]
    """All sinks, including those in groups."""
    sink_groups: Mapping[str, SinkGroupConfig] = {}

    def channels(self) -> set[str]:
        """Returns all channels that are filled, emptied, or used for dead letters."""
        filled = {channel for source in self.sources.values() for channel in source.channels}
        return filled | {sink.channel for sink in self.sinks.values()} | self.dead_letter_channels()

    def entrances(self) -> set[str]:
        """Returns the names of the sources that callers append to like channels."""
        return {name for name, source in self.sources.items() if source.type == "grpc"}

    def dead_letter_channels(self) -> set[str]:
        """Returns the channels in which a source or a sink stores dead letters."""
        parts = [*self.sources.values(), *self.sinks.values()]
        return {part.dead_letter_channel for part in parts if part.dead_letter_channel is not None}
