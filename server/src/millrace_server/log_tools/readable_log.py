"""A channel's log that the tools read, whatever stores it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from millrace_server.channels.recovery import Recovered
from millrace_server.log_tools.dump import Document, DumpStart, dump
from millrace_server.log_tools.event_index import Range
from millrace_server.log_tools.export import export
from millrace_server.log_tools.layout import ChannelLayout
from millrace_server.log_tools.scanning import ToolProgress
from millrace_server.log_tools.verify import Report, recover_without, verify
from millrace_server.log_tools.view import LogView
from millrace_server.wal.payload_codec import PayloadCodec

if TYPE_CHECKING:
    from millrace_server.log_tools.stream_view import StreamView


class Exported(NamedTuple):
    """What an export has written."""

    event_count: int
    lost: list[Range]
    """Sequences of events that cannot be read."""
    lost_sentence: str
    """The same as text."""
    bound_from: int
    """See `Salvage`."""
    redelivered: list[Range]
    """Sequences that may have been consumed."""


class ReadableLog(Protocol):
    """A log at one moment. Nothing of it is changed."""

    @property
    def layout(self) -> ChannelLayout:
        """Which channel it is, and where it is stored."""

    @property
    def torn_bytes(self) -> int:
        """Bytes behind the end of the log, left by a crash or being written."""

    def verify(self, progress: ToolProgress, *, decodes: bool) -> Report:
        """Reads all of it; unless it `decodes`, only checksums are compared."""

    def dump(self, start: DumpStart | None, *, shows_bodies: bool) -> Iterator[Document]:
        """Yields what each record says."""

    def recover(self) -> Recovered:
        """Recovers the channel as a server would; raises LogCorruptError where it would not open."""

    def export(self, path: Path, *, is_avro: bool) -> Exported:
        """Writes the channel's events to a new file."""


@dataclass(frozen=True, slots=True)
class ReadableFiles:
    """A log in files; see `ReadableLog`."""

    view: LogView
    codec: PayloadCodec

    @property
    def layout(self) -> ChannelLayout:
        return self.view.layout

    @property
    def torn_bytes(self) -> int:
        return self.view.torn_bytes

    def verify(self, progress: ToolProgress, *, decodes: bool) -> Report:
        return verify(self.view, self.codec, progress, decodes=decodes)

    def dump(self, start: DumpStart | None, *, shows_bodies: bool) -> Iterator[Document]:
        return dump(self.view, self.codec, start, shows_bodies=shows_bodies)

    def recover(self) -> Recovered:
        return recover_without(self.view, self.codec)

    def export(self, path: Path, *, is_avro: bool) -> Exported:
        found = export(self.view, self.codec, path, is_avro=is_avro)
        return Exported(found.event_count, found.lost, found.lost_sentence, found.bound_from, found.redelivered)


@dataclass(frozen=True, slots=True)
class ReadableStream:
    """A log in a stream of an engine, whose library is imported only here; see `ReadableLog`."""

    view: "StreamView"

    @property
    def layout(self) -> ChannelLayout:
        return self.view.layout

    @property
    def torn_bytes(self) -> int:
        return 0

    def verify(self, progress: ToolProgress, *, decodes: bool) -> Report:
        from millrace_server.log_tools.stream_verify import verify_stream

        return verify_stream(self.view, progress, decodes=decodes)

    def dump(self, start: DumpStart | None, *, shows_bodies: bool) -> Iterator[Document]:
        from millrace_server.log_tools.stream_verify import dump_stream

        return dump_stream(self.view, start.segment_id if start else 0, shows_bodies=shows_bodies)

    def recover(self) -> Recovered:
        return self.view.recover()

    def export(self, path: Path, *, is_avro: bool) -> Exported:
        from millrace_server.log_tools.stream_verify import export_stream

        return Exported(export_stream(self.view, path, is_avro=is_avro), [], "", 0, [])
