"""Writes the events of a log that can be read, damaged or not, to a file that other programs read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from millrace_server.agent.sinks.files.chunks import EventChunk
from millrace_server.agent.sinks.files.writers import EventWriter, JsonWriter
from millrace_server.log_tools.backup import os_errors_as_refusals
from millrace_server.log_tools.layout import ToolError, UsageError
from millrace_server.log_tools.salvage import PieceReader, Salvage, salvage
from millrace_server.log_tools.view import LogView
from millrace_server.wal.payload_codec import PayloadCodec


def export(view: LogView, codec: PayloadCodec, path: Path, *, is_avro: bool) -> Salvage:
    """Writes the events that are in the channel to a new file, by their sequences. Changes nothing in the channel.

    As JSON lines, `millrace put --json-lines` reads it back, and as Avro the source `spooldir`.
    Returns what the log has, and what is lost of it.

    Raises:
        UsageError: The file exists, or Avro is not installed.
        ToolError: The file could not be written.
    """
    found = salvage(view, codec)
    reader = PieceReader(view, codec)
    with new_event_file(path, is_avro=is_avro) as writer:
        for piece in found.pieces:
            columns = reader.read(piece)
            if columns is not None:
                writer.write(EventChunk(piece.first_sequence, columns), range(columns.count))
    return found


@contextmanager
def new_event_file(path: Path, *, is_avro: bool) -> Iterator[EventWriter]:
    """Opens a file that must not exist, until the end of the block; raises UsageError and ToolError."""
    try:
        file = path.open("xb")
    except FileExistsError:
        raise UsageError(f"{path}: exists; name a file that does not") from None
    except OSError as error:
        raise ToolError(f"cannot write {path}: {error.strerror}") from error
    with os_errors_as_refusals("write", path), file:
        writer = _writer(file, is_avro=is_avro)
        yield writer
        writer.finish()


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
