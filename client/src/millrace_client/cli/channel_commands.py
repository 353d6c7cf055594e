"""`millrace channels` and `millrace channel create|show|update|delete|purge`."""

import json
import sys
from typing import Annotated, Any

import typer

from millrace_client import ChannelConfig, ChannelInfo, ChannelType, Client, Compression, FsyncPolicy
from millrace_client.cli.channel_view import channel_document, channel_page, channels_table
from millrace_client.cli.exit_codes import ExitCode
from millrace_client.cli.failures import CommandError
from millrace_client.cli.notes import counted, note_to_terminal
from millrace_client.cli.screen import show
from millrace_client.cli.session import ChannelArgument, JsonOption, seconds_option, with_client
from millrace_client.cli.sizes import parse_byte_size

channel_app = typer.Typer(no_args_is_help=True, help="Make, show, change, delete and empty channels.")


def _check_size(text: str | None) -> str | None:
    try:
        if text is not None:
            parse_byte_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return text


def _limit(metavar: str, help_text: str, **others: Any) -> Any:
    return typer.Option(metavar=metavar, help=help_text, show_default=False, **others)


CapacityOption = Annotated[int | None, _limit("EVENTS", "Events that the channel holds.", min=1)]
TransactionCapacityOption = Annotated[
    int | None, _limit("EVENTS", "Puts, and apart from them takes, that one transaction holds.", min=1)
]
ByteCapacityOption = Annotated[
    str | None, _limit("SIZE", "Bytes for bodies and headers, such as 512MiB.", callback=_check_size)
]
ByteBufferOption = Annotated[
    int | None, _limit("PERCENT", "Share of the byte capacity that is set aside for headers.", min=0, max=99)
]
KeepAliveOption = Annotated[
    float | None,
    seconds_option(min=0, show_default=False, help="How long a commit waits for room, and a take for an event."),
]
LeaseOption = Annotated[
    float | None,
    seconds_option(min=0, show_default=False, help="How long a transaction or claim lives without a call."),
]
OpenTransactionsOption = Annotated[int | None, _limit("COUNT", "Transactions that may be open at once.", min=1)]
BackupCheckpointOption = Annotated[
    bool | None,
    typer.Option(
        "--backup-checkpoint/--no-backup-checkpoint",
        help="Log: keep the checkpoint before the newest one too.",
        show_default=False,
    ),
]
CheckpointIntervalOption = Annotated[
    float | None,
    seconds_option(min=0, show_default=False, help="Log: how long after one checkpoint the next one begins."),
]
SegmentBytesOption = Annotated[
    str | None,
    _limit("SIZE", "Log: a segment of this size is ended and the next one begun.", callback=_check_size),
]
MinFreeBytesOption = Annotated[
    str | None, _limit("SIZE", "Log: bytes that puts leave free on each disk.", callback=_check_size)
]
FsyncOption = Annotated[
    FsyncPolicy | None,
    typer.Option(
        help="Log: sync before each commit is answered, or at an interval, which a power cut may lose.",
        show_default=False,
    ),
]
FsyncIntervalOption = Annotated[
    float | None,
    seconds_option(min=0, show_default=False, help="Log: how much a power cut may lose with --fsync interval."),
]
CompressionOption = Annotated[
    Compression | None, typer.Option(help="Log: what packs events from now on.", show_default=False)
]
MemoryCapacityOption = Annotated[
    int | None, _limit("EVENTS", "Spillable: events that are kept in memory only; a crash loses them.", min=1)
]
MemoryByteCapacityOption = Annotated[
    str | None, _limit("SIZE", "Spillable: bytes for their bodies and headers.", callback=_check_size)
]


@with_client
def channels(client: Client, *, as_json: JsonOption = False) -> None:
    """List all channels and how they stand."""
    listed = client.admin.list_channels()
    if as_json:
        typer.echo(json.dumps([channel_document(channel) for channel in listed], indent=2))
        return
    show(channels_table(listed))
    for channel in listed:
        if channel.fault:
            note_to_terminal(f"{channel.name}: {channel.fault}")
    if not listed:
        note_to_terminal("there is no channel yet; make one with `millrace channel create NAME`")


@channel_app.command("show")
@with_client
def show_channel(client: Client, name: ChannelArgument, *, as_json: JsonOption = False) -> None:
    """Show a channel: limits, gauges, counters, claim and state."""
    _write(client.admin.get_channel(name), as_json=as_json)


@channel_app.command()
@with_client
def create(
    client: Client,
    name: ChannelArgument,
    *,
    channel_type: Annotated[ChannelType, typer.Option("--type", help="What keeps its events.")] = ChannelType.MEMORY,
    capacity: CapacityOption = None,
    transaction_capacity: TransactionCapacityOption = None,
    byte_capacity: ByteCapacityOption = None,
    byte_capacity_buffer_percentage: ByteBufferOption = None,
    keep_alive: KeepAliveOption = None,
    lease: LeaseOption = None,
    open_transactions_max: OpenTransactionsOption = None,
    backup_checkpoint: BackupCheckpointOption = None,
    checkpoint_interval: CheckpointIntervalOption = None,
    segment_bytes_max: SegmentBytesOption = None,
    min_free_bytes: MinFreeBytesOption = None,
    fsync: FsyncOption = None,
    fsync_interval: FsyncIntervalOption = None,
    compression: CompressionOption = None,
    memory_capacity: MemoryCapacityOption = None,
    memory_byte_capacity: MemoryByteCapacityOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a channel.

    It survives restarts of the server; what a memory channel holds does not, what a file channel holds does. What a
    spillable channel holds survives a stop, and a crash all but what was in its memory. A limit that is not said is the
    server's default. Directories and keys are said in the server's configuration file.
    """
    config = ChannelConfig(
        type=channel_type,
        capacity=capacity,
        transaction_capacity=transaction_capacity,
        byte_capacity=_size(byte_capacity),
        byte_capacity_buffer_percentage=byte_capacity_buffer_percentage,
        keep_alive_seconds=keep_alive,
        lease_seconds=lease,
        open_transactions_max=open_transactions_max,
        backup_checkpoint=backup_checkpoint,
        checkpoint_interval_seconds=checkpoint_interval,
        segment_bytes_max=_size(segment_bytes_max),
        min_free_bytes=_size(min_free_bytes),
        fsync=fsync,
        fsync_interval_seconds=fsync_interval,
        compression=compression,
        memory_capacity=memory_capacity,
        memory_byte_capacity=_size(memory_byte_capacity),
    )
    _write(client.admin.create_channel(name, config), as_json=as_json)


@channel_app.command()
@with_client
def update(
    client: Client,
    name: ChannelArgument,
    *,
    capacity: CapacityOption = None,
    transaction_capacity: TransactionCapacityOption = None,
    byte_capacity: ByteCapacityOption = None,
    byte_capacity_buffer_percentage: ByteBufferOption = None,
    keep_alive: KeepAliveOption = None,
    lease: LeaseOption = None,
    open_transactions_max: OpenTransactionsOption = None,
    checkpoint_interval: CheckpointIntervalOption = None,
    segment_bytes_max: SegmentBytesOption = None,
    min_free_bytes: MinFreeBytesOption = None,
    fsync: FsyncOption = None,
    fsync_interval: FsyncIntervalOption = None,
    compression: CompressionOption = None,
    memory_capacity: MemoryCapacityOption = None,
    memory_byte_capacity: MemoryByteCapacityOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change limits of a channel while it is in use.

    What is not said stays. Growing is at once. Shrinking waits for free room, up to the channel's keep-alive; where
    none comes nothing is changed, and the command ends with 5.
    """
    config = ChannelConfig(
        capacity=capacity,
        transaction_capacity=transaction_capacity,
        byte_capacity=_size(byte_capacity),
        byte_capacity_buffer_percentage=byte_capacity_buffer_percentage,
        keep_alive_seconds=keep_alive,
        lease_seconds=lease,
        open_transactions_max=open_transactions_max,
        checkpoint_interval_seconds=checkpoint_interval,
        segment_bytes_max=_size(segment_bytes_max),
        min_free_bytes=_size(min_free_bytes),
        fsync=fsync,
        fsync_interval_seconds=fsync_interval,
        compression=compression,
        memory_capacity=memory_capacity,
        memory_byte_capacity=_size(memory_byte_capacity),
    )
    if config == ChannelConfig():
        raise CommandError(ExitCode.USAGE, "there is nothing to change; name a limit, such as --capacity N")
    outcome = client.admin.update_channel(name, config)
    if not outcome.applied:
        raise CommandError(
            ExitCode.LATER, f"nothing was changed: {outcome.message.rstrip('.')}; take events out, then try again"
        )
    _write(outcome.channel, as_json=as_json)


@channel_app.command()
@with_client
def delete(
    client: Client,
    name: ChannelArgument,
    *,
    force: Annotated[bool, typer.Option("--force", help="Delete it also with events in it; they are lost.")] = False,
) -> None:
    """Delete a channel.

    One that holds events or open transactions is left alone, unless forced.
    """
    client.admin.delete_channel(name, force=force)
    note_to_terminal(f"{name} is deleted")


@channel_app.command()
@with_client
def purge(
    client: Client,
    name: ChannelArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove all events of a channel that no transaction has taken.

    Asks before, where it runs on a terminal.
    """
    if not yes and sys.stdin is not None and sys.stdin.isatty():
        queued = client.admin.get_channel(name).gauges.queued_events
        if not typer.confirm(f"Remove {counted(queued, 'event')} from {name} for good?", err=True):
            raise CommandError(ExitCode.USAGE, "nothing was removed; answer y, or say --yes")
    purged_count = client.admin.purge_channel(name)
    typer.echo(json.dumps({"purged_count": purged_count}) if as_json else f"{counted(purged_count, 'event')} removed")


def _size(text: str | None) -> int | None:
    return None if text is None else parse_byte_size(text)


def _write(channel: ChannelInfo, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(channel_document(channel), indent=2))
    else:
        show(channel_page(channel))
