"""Events on standard output: as lines, with their sequences and headers, or as JSON."""

import base64
import errno
import json
import os
import sys
from collections.abc import Iterable
from enum import Enum
from typing import BinaryIO

from millrace_client import Batch, Event
from millrace_client.cli.exit_codes import ExitCode
from millrace_client.cli.failures import CommandError
from millrace_client.cli.plain_text import printable, printable_bytes


class EventFormat(Enum):
    """How events are written."""

    LINES = "lines"
    """The body's bytes as they are and a newline."""
    LONG = "long"
    """Sequence, headers and body between tabs, one line an event whatever the body holds."""
    JSON = "json"
    """One JSON object a line: `sequence`, `headers` and `body`, or `body_base64` where the body is not UTF-8."""


class EventWriter:
    """Writes events to a stream of bytes and flushes them.

    On a terminal control characters are escaped, so that events cannot drive it; anywhere else bodies stay as they are.
    """

    def __init__(self, event_format: EventFormat, stream: BinaryIO, *, is_terminal: bool) -> None:
        self._format = event_format
        self._stream = stream
        self._is_terminal = is_terminal

    def write(self, batches: Iterable[Batch]) -> int:
        """Writes all events; once this returns they have left this process.

        Returns:
            How many they were.

        Raises:
            BrokenPipeError: The reader of the stream has gone.
            CommandError: The stream takes no more, as a full disk does.
        """
        count = 0
        try:
            for batch in batches:
                self._write_all(self._encode(batch))
                count += len(batch)
            self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            finding = f"cannot write to standard output: {error.strerror}"
            raise CommandError(ExitCode.REFUSED, f"{finding}; make room there, and run the command again") from error
        return count

    def _write_all(self, encoded: bytes) -> None:
        # Under PYTHONUNBUFFERED standard output is a raw stream, which may write a part and call that success.
        rest = memoryview(encoded)
        while rest:
            written = self._stream.write(rest)
            if written is None:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            rest = rest[written:]

    def _encode(self, batch: Batch) -> bytes:
        match self._format:
            case EventFormat.LINES if self._is_terminal:
                return "".join(f"{printable_bytes(body)}\n" for body in batch.bodies()).encode()
            case EventFormat.LINES:
                return b"".join(body + b"\n" for body in batch.bodies())
            case EventFormat.LONG:
                return "".join(f"{_long_line(event)}\n" for event in batch).encode()
            case EventFormat.JSON:
                return "".join(f"{_json_line(event)}\n" for event in batch).encode()


def writer_on_stdout(event_format: EventFormat) -> EventWriter:
    """The writer on this process's standard output.

    Raises:
        CommandError: There is none.
    """
    # None where the process was started with a closed standard output.
    if sys.stdout is None:
        raise CommandError(ExitCode.USAGE, "standard output is closed; give the command one to write to")
    return EventWriter(event_format, sys.stdout.buffer, is_terminal=sys.stdout.isatty())


def body_document(body: bytes) -> dict[str, str]:
    """A body as JSON has it: `body`, or `body_base64` where it is not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii")}


def _long_line(event: Event) -> str:
    headers = " ".join(f"{key}={value}" for key, value in event.headers.items()) or "-"
    return f"{event.sequence}\t{printable(headers)}\t{printable_bytes(event.body)}"


def _json_line(event: Event) -> str:
    return json.dumps({"sequence": event.sequence, "headers": dict(event.headers), **body_document(event.body)})
