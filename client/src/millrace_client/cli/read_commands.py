"""`millrace take`, `peek` and `tail`: write events as lines."""

import errno
import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from typing import Annotated, Any, BinaryIO

import typer

from millrace.command_line.notes import printable
from millrace.json_bodies import body_document
from millrace.units import counted
from millrace_client import Batch, Channel, Client, Event
from millrace_client.cli.exit_status import CommandError, ExitCode, unwrapped_interrupts
from millrace_client.cli.formatting import printable_bytes
from millrace_client.cli.session import ChannelArgument, JsonOption, seconds_option, since_option, with_client
from millrace_client.cli.terminal import note, note_to_terminal

TAKE_BYTES = 4 * 1024 * 1024
"""Bytes of bodies of one transaction, which is what an interrupted take may write twice."""

LongOption = Annotated[
    bool, typer.Option("--long", "-l", help="Write sequence, headers and body separated by tabs, one line per event.")
]
FromOption = Annotated[
    int, typer.Option("--from", metavar="SEQUENCE", min=0, show_default=False, help="The first event to show.")
]
SinceOption = Annotated[Any, since_option("Only events committed since then")]


class EventFormat(Enum):
    """The output format of events; the options `--long` and `--json` describe theirs."""

    LINES = "lines"
    LONG = "long"
    JSON = "json"


class EventWriter:
    """Writes events to a byte stream and flushes them.

    On a terminal, control characters are escaped, so that events cannot control it; elsewhere bodies are unchanged.
    """

    def __init__(self, event_format: EventFormat, stream: BinaryIO, *, is_terminal: bool) -> None:
        self._format = event_format
        self._stream = stream
        self._is_terminal = is_terminal

    def write(self, batches: Iterable[Batch]) -> int:
        """Writes and flushes all events; returns their number."""
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
            raise CommandError(ExitCode.REFUSED, f"{finding}; free some space, and run the command again") from error
        return count

    def _write_all(self, encoded: bytes) -> None:
        # Under PYTHONUNBUFFERED standard output is a raw stream, whose writes may be partial.
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


def _writer_on_stdout(*, as_json: bool, long: bool) -> EventWriter:
    if as_json and long:
        raise CommandError(ExitCode.USAGE, "--json and --long exclude each other; use one of them")
    # None if the process was started with a closed standard output.
    if sys.stdout is None:
        raise CommandError(ExitCode.USAGE, "standard output is closed; open it for the command")
    event_format = EventFormat.JSON if as_json else EventFormat.LONG if long else EventFormat.LINES
    return EventWriter(event_format, sys.stdout.buffer, is_terminal=sys.stdout.isatty())


def _long_line(event: Event) -> str:
    headers = " ".join(f"{key}={value}" for key, value in event.headers.items()) or "-"
    return f"{event.sequence}\t{printable(headers)}\t{printable_bytes(event.body)}"


def _json_line(event: Event) -> str:
    commit_time = event.commit_time.isoformat(timespec="microseconds") if event.commit_time else None
    document = {"sequence": event.sequence, "commit_time": commit_time, "headers": dict(event.headers)}
    return json.dumps({**document, **body_document(event.body)})


@with_client
def take(
    client: Client,
    channel: ChannelArgument,
    *,
    max_events: Annotated[
        int, typer.Option("--max-events", "-n", metavar="N", min=0, help="Maximum events to take; 0: all.")
    ] = 0,
    wait: Annotated[float, seconds_option(min=0, max=3600, help="How long to wait for the next event.")] = 0,
    as_json: JsonOption = False,
    long: LongOption = False,
) -> None:
    """Take events out of a channel and print their bodies as lines.

    Oldest first; without options all events of the channel. Each batch is taken in a transaction that commits after
    its lines are written and flushed: if the command is interrupted before, the batch returns to the channel. Exits
    with 4 if there was no event.
    """
    writer = _writer_on_stdout(as_json=as_json, long=long)
    taken = 0
    while not max_events or taken < max_events:
        count = _take_batch(client.channel(channel), writer, max_events - taken if max_events else 0, wait)
        if not count:
            break
        taken += count
    if not taken:
        raise CommandError(
            ExitCode.EMPTY, f"there is nothing to take in {channel}; wait for events with --wait SECONDS"
        )
    note_to_terminal(f"{counted(taken, 'event')} taken")


def _take_batch(channel: Channel, writer: EventWriter, max_events: int, wait_seconds: float) -> int:
    taken = 0
    try:
        with channel.transaction() as txn:
            batches = txn.take(max_events=max_events, max_bytes=TAKE_BYTES, wait_seconds=wait_seconds)
            taken = sum(map(len, batches))
            writer.write(batches)
    except BrokenPipeError:
        # The reader has closed the pipe, so the written lines do not count.
        raise
    except BaseException as error:
        if taken:
            error.add_note(
                f"up to {counted(taken, 'event')} written last may be delivered again: taking them was interrupted"
            )
        raise
    return taken


@with_client
def peek(
    client: Client,
    channel: ChannelArgument,
    *,
    max_events: Annotated[
        int, typer.Option("--max-events", "-n", metavar="N", min=1, help="Maximum events to show.")
    ] = 10,
    from_sequence: FromOption = 0,
    since: SinceOption = None,
    as_json: JsonOption = False,
    long: LongOption = False,
) -> None:
    """Show the oldest events of a channel without taking them.

    Starts with the oldest, at --from, or with the first that was committed --since a time. Exits with 4 if there is
    none.
    """
    writer = _writer_on_stdout(as_json=as_json, long=long)
    if from_sequence and since:
        raise CommandError(ExitCode.USAGE, "--from and --since exclude each other; use one of them")
    shown = 0
    for batch in client.channel(channel).peek(from_sequence=from_sequence, max_events=max_events, since=since):
        shown += writer.write([batch])
    if not shown:
        raise CommandError(
            ExitCode.EMPTY, f"there is nothing to show in {channel}; follow it with `millrace tail {channel}`"
        )


@with_client
def tail(
    client: Client,
    channel: ChannelArgument,
    *,
    max_events: Annotated[
        int, typer.Option("--max-events", "-n", metavar="N", min=0, help="End after this number of events; 0: never.")
    ] = 0,
    from_sequence: FromOption = 0,
    as_json: JsonOption = False,
    long: LongOption = False,
) -> None:
    """Show events as they are committed, until Ctrl-C, without taking them.

    Starts with the next event, or at --from. Events that arrive faster than they can be written are skipped, and
    standard error reports how many.
    """
    writer = _writer_on_stdout(as_json=as_json, long=long)
    # Ctrl-C is the normal end of a tail.
    with suppress(KeyboardInterrupt), unwrapped_interrupts():
        for batch in client.channel(channel).peek(from_sequence=from_sequence, max_events=max_events, follow=True):
            if batch.skipped_events:
                note(f"{counted(batch.skipped_events, 'event')} skipped before sequence {batch.first_sequence:,}")
            writer.write([batch])
