"""Writes the readable events of a log, which may be damaged, to a file for other programs."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from millrace.v1 import event_pb2
from millrace_server.agent.sinks.files.chunks import EventChunk
from millrace_server.agent.sinks.files.writers import EventWriter, JsonWriter
from millrace_server.log_tools.backup import os_errors_as_tool_errors
from millrace_server.log_tools.event_index import Range
from millrace_server.log_tools.layout import UsageError
from millrace_server.log_tools.salvage import PieceReader, salvage
from millrace_server.log_tools.view import LogView
from millrace_server.wal.payload_codec import PayloadCodec

_UNFINISHED = ".unfinished"


class Exported(NamedTuple):
    """What an export has written, and what is missing in it."""

    event_count: int
    lost: Sequence[Range] = ()
    """Sequences of events that cannot be read."""
    lost_sentence: str = ""
    """The same as text."""
    bound_from: int = 0
    """See `Salvage`."""
    redelivered: Sequence[Range] = ()
    """Sequences that may have been consumed."""


def export(view: LogView, codec: PayloadCodec, path: Path, *, is_avro: bool) -> Exported:
    """Writes the events in the channel to a new file, by sequence. Changes nothing in the channel.

    As JSON lines, `millrace put --json-lines` reads it back, and as Avro the source `spooldir`.

    Raises:
        UsageError: The file exists, or Avro is not installed.
        ToolError: The file could not be written.
    """
    found = salvage(view, codec)
    reader = PieceReader(view, codec)
    pieces = ((piece.first_sequence, reader.read(piece)) for piece in found.pieces)
    write_events(path, pieces, is_avro=is_avro)
    return Exported(found.event_count, found.lost, found.lost_sentence, found.bound_from, found.redelivered)


def write_events(path: Path, parts: Iterable[tuple[int, event_pb2.EventColumns | None]], *, is_avro: bool) -> None:
    """Writes events to a file that must not exist; each part has the sequence of its first event, None is skipped.

    The file has its name once it is complete. Raises UsageError and ToolError.
    """
    if path.exists():
        raise UsageError(f"{path}: exists; name a file that does not")
    unfinished = path.with_name(f"{path.name}{_UNFINISHED}")
    try:
        with os_errors_as_tool_errors("write", path):
            with unfinished.open("wb") as file:
                writer = _writer(file, is_avro=is_avro)
                for first_sequence, columns in parts:
                    if columns is not None:
                        writer.write(EventChunk(first_sequence, columns), range(columns.count))
                writer.finish()
            unfinished.rename(path)
    finally:
        # Ctrl-C and a full disk leave nothing behind.
        unfinished.unlink(missing_ok=True)


def _writer(file: BinaryIO, *, is_avro: bool) -> EventWriter:
    if not is_avro:
        return JsonWriter(file, "none", is_body_text=True)
    try:
        from millrace_server.agent.sinks.files.avro_writer import AvroWriter
    except ImportError:
        raise UsageError(
            "--format: avro needs fastavro; install it with: pip install 'millrace-server[avro]'"
        ) from None
    return AvroWriter(file, "none", is_body_text=False)
