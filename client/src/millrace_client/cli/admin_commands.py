"""`millrace channels`, `millrace components` and `millrace channel create|show|update|move|delete|purge|find`."""

import json
import math
from functools import partial
from typing import Annotated, Any

import typer

from millrace.command_line.tables import show
from millrace.units import counted, parse_byte_size, parse_count, parse_duration
from millrace_client import ChannelConfig, ChannelInfo, ChannelType, Client, Compression, FsyncPolicy
from millrace_client.cli.channels_together import list_together
from millrace_client.cli.exit_status import CommandError, ExitCode
from millrace_client.cli.session import (
    ChannelArgument,
    JsonOption,
    Session,
    checked,
    parse_server,
    seconds_option,
    since_option,
    with_client,
    with_options,
    with_session,
)
from millrace_client.cli.several_servers import servers_argument
from millrace_client.cli.terminal import YesOption, note, note_to_terminal, require_confirmation
from millrace_client.cli.views import (
    channel_page,
    channels_table,
    components_table,
    created_sentences,
    document_of,
    updated_sentences,
    write_list,
)

channel_app = typer.Typer(no_args_is_help=True, help="Create, show, change, move, delete, purge and search channels.")


def _whole(flag: str, metavar: str, help_text: str, **others: Any) -> Any:
    return Annotated[int | None, typer.Option(flag, metavar=metavar, help=help_text, **others)]


def _events(flag: str, help_text: str) -> Any:
    return Annotated[str | None, typer.Option(flag, metavar="EVENTS", help=help_text, callback=checked(parse_count))]


def _size(flag: str, help_text: str) -> Any:
    return Annotated[str | None, typer.Option(flag, metavar="SIZE", help=help_text, callback=checked(parse_byte_size))]


def _seconds(flag: str, help_text: str) -> Any:
    return Annotated[float | None, seconds_option(flag, min=0, help=help_text)]


_LIMITS: dict[str, Any] = {
    "capacity": _events("--capacity", "Maximum number of events, such as 50000 or 1M."),
    "transaction_capacity": _events(
        "--transaction-capacity", "Maximum number of a transaction's puts, and of its takes."
    ),
    "byte_capacity": _size("--byte-capacity", "Bytes for bodies and headers, such as 512MiB."),
    "byte_capacity_buffer_percentage": _whole(
        "--byte-capacity-buffer-percentage",
        "PERCENT",
        "Share of the byte capacity that is reserved for headers.",
        min=0,
        max=99,
    ),
    "keep_alive_seconds": _seconds("--keep-alive", "How long a commit waits for space, and a take for events."),
    "lease_seconds": _seconds("--lease", "How long a transaction or claim lasts without a call; at most an hour."),
    "open_transactions_max": _whole("--open-transactions-max", "COUNT", "Maximum number of open transactions.", min=1),
    "backup_checkpoint": Annotated[
        bool | None,
        typer.Option("--backup-checkpoint/--no-backup-checkpoint", help="Log: keep the previous checkpoint too."),
    ],
    "checkpoint_interval_seconds": _seconds("--checkpoint-interval", "Log: time between checkpoints."),
    "segment_bytes_max": _size("--segment-bytes-max", "Log: maximum size of a segment."),
    "min_free_bytes": _size("--min-free-bytes", "Log: bytes that puts leave free on each disk."),
    "fsync": Annotated[
        FsyncPolicy | None,
        typer.Option(
            help="Log: sync before each commit is acknowledged, or at an interval that a power failure may lose."
        ),
    ],
    "fsync_interval_seconds": _seconds(
        "--fsync-interval", "Log: time between syncs with --fsync interval; a power failure loses at most that much."
    ),
    "compression": Annotated[Compression | None, typer.Option(help="Log: compression of new events.")],
    "memory_capacity": _events("--memory-capacity", "Spillable: events kept in memory only; a crash loses them."),
    "memory_byte_capacity": _size("--memory-byte-capacity", "Spillable: bytes for their bodies and headers."),
    "retention_seconds": Annotated[
        str | None,
        typer.Option(
            "--retention",
            metavar="TIME",
            help="Remove events this long after their commit: in seconds, or with a unit, such as 12h or 7d; "
            "0 means never.",
            callback=checked(parse_duration),
        ),
    ],
}
"""The options of limits, by the fields of ChannelConfig."""


@with_session
def channels(
    session: Session,
    servers: Annotated[
        list[str] | None,
        servers_argument("Contexts, or addresses, of servers to list together; by default the one server."),
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """List all channels and their state.

    AGE is how long ago the oldest event was committed. With servers, SERVER is the one that has the channel, or owns it
    if it is replicated, and STANDBY counts those that would take it over. Exits with 3 if a server does not respond.
    """
    if servers:
        list_together(session, servers, as_json=as_json)
        return
    with session.open() as client:
        listed = client.admin.list_channels()
    none = "there is no channel yet; create one with `millrace channel create NAME`"
    write_list(listed, channels_table, none, as_json=as_json)


@channel_app.command("show")
@with_client
def show_channel(client: Client, name: ChannelArgument, *, as_json: JsonOption = False) -> None:
    """Show a channel: limits, gauges, counters, claim and state."""
    channel = client.admin.get_channel(name)
    if as_json:
        typer.echo(_json(channel))
    else:
        show(channel_page(channel))


@channel_app.command()
@with_client
@with_options(_LIMITS)
def create(
    client: Client,
    name: ChannelArgument,
    *,
    channel_type: Annotated[
        ChannelType, typer.Option("--type", help="Where its events are stored.")
    ] = ChannelType.FILE,
    as_json: JsonOption = False,
    **limits: Any,
) -> None:
    """Create a channel: by default a file channel of 1,000,000 events, which survive crashes of the server.

    Channels of all types survive restarts of the server. The events of a memory channel do not; those of a spillable
    channel survive a stop, but a crash loses those in memory. Limits default to the server's. Directories and keys are
    set in the server's configuration file.
    """
    channel = client.admin.create_channel(name, ChannelConfig(type=channel_type, **limits))
    _note_shortened(channel, limits)
    typer.echo(_json(channel) if as_json else created_sentences(channel))


@channel_app.command()
@with_client
@with_options(_LIMITS, without={"backup_checkpoint"})
def update(client: Client, name: ChannelArgument, *, as_json: JsonOption = False, **limits: Any) -> None:
    """Change limits of a channel while it is in use.

    Other limits stay as they are. A higher limit applies at once. A lower one waits for free capacity, up to the
    channel's keep-alive; without space nothing changes, and the command exits with 5. Of the servers that share a
    replicated channel, the owner changes its own limits; a server that takes over has those of its own file.
    """
    config = ChannelConfig(**limits)
    if config == ChannelConfig():
        raise CommandError(ExitCode.USAGE, "there is nothing to change; give a limit, such as --capacity N")
    outcome = client.admin.update_channel(name, config)
    if not outcome.applied:
        raise CommandError(
            ExitCode.LATER, f"nothing was changed: {outcome.message.rstrip('.')}; take events out, then try again"
        )
    if outcome.channel.is_overridden:
        note(f"{name}: the server's file has other limits, and its next start or reload restores them")
    if outcome.channel.config.type is ChannelType.REPLICATED:
        note(f"{name}: only the owner has the new limits; change the files of all servers that share it")
    _note_shortened(outcome.channel, limits)
    fields = [field for field, value in limits.items() if value is not None]
    typer.echo(_json(outcome.channel) if as_json else updated_sentences(outcome.channel, fields))


@channel_app.command()
@with_client
def delete(
    client: Client,
    name: ChannelArgument,
    *,
    force: Annotated[bool, typer.Option("--force", help="Delete it with its events, which are lost.")] = False,
) -> None:
    """Delete a channel.

    A channel with events or open transactions is refused, unless --force is given.
    """
    client.admin.delete_channel(name, force=force)
    note_to_terminal(f"{name}: deleted")


@channel_app.command()
@with_client
def purge(
    client: Client,
    name: ChannelArgument,
    *,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove all events of a channel that no transaction has taken.

    Asks for confirmation on a terminal.
    """
    if not yes:
        queued = partial(client.admin.get_channel, name)
        require_confirmation(
            lambda: f"Remove {counted(queued().gauges.queued_events, 'event')} from {name} permanently?",
            "nothing was removed",
        )
    purged_count = client.admin.purge_channel(name)
    sentence = f"{name}: {counted(purged_count, 'event')} removed"
    typer.echo(json.dumps({"purged_count": purged_count}) if as_json else sentence)


@channel_app.command()
@with_client
def move(
    client: Client,
    name: ChannelArgument,
    target: Annotated[
        str,
        typer.Argument(
            metavar="SERVER",
            callback=checked(parse_server),
            help="The address of the other server.",
            show_default=False,
        ),
    ],
) -> None:
    """Hand a replicated channel over to another server.

    Returns once the other server owns it. Open transactions are rolled back unless they end within half a second. The
    channel stays there until that server stops or fails; other channels are still spread evenly over all servers.
    """
    client.admin.move_channel(name, target)
    note_to_terminal(f"{name}: moved to {target}")


@channel_app.command()
@with_client
def find(
    client: Client,
    name: ChannelArgument,
    *,
    since: Annotated[Any, since_option("The time")],
    as_json: JsonOption = False,
) -> None:
    """Find the first event that was committed since a time, and print its sequence.

    Without such an event it is the sequence of the next event to be committed.
    """
    found = client.channel(name).find_sequence(since)
    commit_time = found.commit_time.isoformat(timespec="microseconds") if found.commit_time else None
    document = {"sequence": found.sequence, "commit_time": commit_time}
    typer.echo(json.dumps(document) if as_json else str(found.sequence))


def _note_shortened(channel: ChannelInfo, limits: dict[str, Any]) -> None:
    """Notes which of the requested durations the server has shortened."""
    for field, asked in limits.items():
        if field.endswith("_seconds") and (granted := getattr(channel.config, field) or math.inf) < (asked or 0):
            note(f"{channel.name}: {field} is {granted:,.15g}, not {asked:,.15g}: the server allows no more")


def _json(channel: ChannelInfo) -> str:
    return json.dumps(document_of(channel), indent=2)


@with_client
def components(client: Client, *, as_json: JsonOption = False) -> None:
    """List the server's sources, sinks and sink groups, and their state.

    LOST counts events that a source could not store in their channels, LAST is the time since a component's last
    batch, and REASON is why it does not run.
    """
    none = "no sources or sinks are configured; add them to the server's configuration file"
    write_list(client.admin.list_components(), components_table, none, as_json=as_json)
