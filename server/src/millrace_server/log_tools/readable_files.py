"""A channel's log in files, as the tools read it; `readable_stream` has the same for a stream of an engine."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from millrace_server.channels.recovery import Recovered
from millrace_server.log_tools.dump import Document, DumpStart, dump
from millrace_server.log_tools.export import Exported, export
from millrace_server.log_tools.layout import ChannelLayout
from millrace_server.log_tools.scanning import ToolProgress
from millrace_server.log_tools.verify import Report, recover_without, verify
from millrace_server.log_tools.view import LogView
from millrace_server.wal.payload_codec import PayloadCodec


@dataclass(frozen=True, slots=True)
class ReadableFiles:
    """A log in files at one moment; nothing in it is changed."""

    view: LogView
    codec: PayloadCodec

    @property
    def layout(self) -> ChannelLayout:
        """The channel, and where it is stored."""
        return self.view.layout

    @property
    def torn_bytes(self) -> int:
        """Bytes after the end of the log, left by a crash or being written."""
        return self.view.torn_bytes

    def verify(self, progress: ToolProgress, *, decodes: bool) -> Report:
        """Reads the whole log, and recovers the channel from each point from which a server might.

        Unless `decodes`, only checksums are compared. Raises KeyMissingError and UnknownVersionError.
        """
        return verify(self.view, self.codec, progress, decodes=decodes)

    def dump(self, start: DumpStart | None, *, shows_bodies: bool) -> Iterator[Document]:
        """Yields the content of each record; damage is reported and skipped."""
        return dump(self.view, self.codec, start, shows_bodies=shows_bodies)

    def recover(self) -> Recovered:
        """Recovers the channel as a server would; raises LogCorruptError if a server would not open it."""
        return recover_without(self.view, self.codec)

    def export(self, path: Path, *, is_avro: bool) -> Exported:
        """Writes the channel's readable events to a new file, by sequence; raises ToolError and UsageError."""
        return export(self.view, self.codec, path, is_avro=is_avro)
