"""`millrace take`, `peek` and `tail`: events become lines."""

from typing import Annotated

import typer

from millrace_client import Batch, Channel, Client
from millrace_client.cli.event_writer import EventFormat, EventWriter, writer_on_stdout
from millrace_client.cli.exit_codes import ExitCode
from millrace_client.cli.failures import CommandError
from millrace_client.cli.interrupts import undisguised_interrupts
from millrace_client.cli.notes import counted, note, note_to_terminal
from millrace_client.cli.session import ChannelArgument, JsonOption, seconds_option, with_client

TAKE_BYTES = 4 * 1024 * 1024
"""Bytes of bodies of one transaction: what an interrupted take at most shows again."""

PEEK_EVENTS = 10

WAIT_SECONDS_MAX = 3600

LongOption = Annotated[
    bool, typer.Option("--long", "-l", help="Write sequence, headers and body between tabs, one line an event.")
]
FromOption = Annotated[
    int, typer.Option("--from", metavar="SEQUENCE", min=0, show_default=False, help="The first event to show.")
]


@with_client
def take(
    client: Client,
    channel: ChannelArgument,
    *,
    max_events: Annotated[
        int, typer.Option("--max-events", "-n", metavar="N", min=0, help="Most events to take; 0: all there are.")
    ] = 0,
    wait: Annotated[
        float,
        seconds_option(min=0, max=WAIT_SECONDS_MAX, help="How long to wait for each next event."),
    ] = 0,
    as_json: JsonOption = False,
    long: LongOption = False,
) -> None:
    """Take events out of a channel and print their bodies as lines.

    Oldest first; without options all events that are there. Each batch is taken in a transaction that commits after
    its lines are written and flushed: what is interrupted before returns to the channel. Ends with 4 where there was
    no event.
    """
    writer = writer_on_stdout(_format(as_json=as_json, long=long))
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
        # Nobody reads any more, so nothing that was written counts.
        raise
    except BaseException as error:
        if taken:
            error.add_note(f"up to {counted(taken, 'event')} written last may come again: taking them was cut short")
        raise
    return taken


@with_client
def peek(
    client: Client,
    channel: ChannelArgument,
    *,
    max_events: Annotated[
        int, typer.Option("--max-events", "-n", metavar="N", min=1, help="Most events to show.")
    ] = PEEK_EVENTS,
    from_sequence: FromOption = 0,
    as_json: JsonOption = False,
    long: LongOption = False,
) -> None:
    """Show the oldest events of a channel without taking them.

    Ends with 4 where there is none.
    """
    writer = writer_on_stdout(_format(as_json=as_json, long=long))
    shown = 0
    for batch in client.channel(channel).peek(from_sequence=from_sequence, max_events=max_events):
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
        int, typer.Option("--max-events", "-n", metavar="N", min=0, help="End after so many events; 0: never.")
    ] = 0,
    from_sequence: FromOption = 0,
    as_json: JsonOption = False,
    long: LongOption = False,
) -> None:
    """Show events as they are committed, until Ctrl-C; takes none.

    Begins with the next event, or where --from says. Events that came faster than they could be written are left out,
    and standard error says how many.
    """
    writer = writer_on_stdout(_format(as_json=as_json, long=long))
    try:
        with undisguised_interrupts():
            for batch in client.channel(channel).peek(from_sequence=from_sequence, max_events=max_events, follow=True):
                _write_followed(writer, batch)
    except KeyboardInterrupt:
        # Ctrl-C is how a tail ends, not how it fails.
        return


def _write_followed(writer: EventWriter, batch: Batch) -> None:
    if batch.skipped_events:
        note(f"{counted(batch.skipped_events, 'event')} left out before sequence {batch.first_sequence:,}")
    writer.write([batch])


def _format(*, as_json: bool, long: bool) -> EventFormat:
    if as_json and long:
        raise CommandError(ExitCode.USAGE, "--json and --long exclude each other; give one of them")
    if as_json:
        return EventFormat.JSON
    return EventFormat.LONG if long else EventFormat.LINES
