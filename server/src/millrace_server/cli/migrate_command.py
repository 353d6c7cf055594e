"""The command `millraced migrate`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from millrace_server.channels.config import ReplicatedChannelConfig
    from millrace_server.log_tools.migration import StreamPlace


def migrate(
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's name, the same in both files.")],
    *,
    source: Annotated[
        Path, typer.Option("--from", metavar="FILE", help="The server's configuration with the channel's former type.")
    ],
    target: Annotated[
        Path, typer.Option("--to", metavar="FILE", help="The server's configuration with the channel's new type.")
    ],
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="ID=FILE", help="A former encryption key; repeatable.")
    ] = None,
) -> None:
    """Move a stopped channel from type file to replicated, or back, with all that belongs to it.

    Sequences, commit times, stamps, claims and ended transactions are preserved. Stop all servers that have the channel
    first. If the command is interrupted, run it again; once it has finished, running it again changes nothing. Files
    that were moved are kept next to the channel as CHANNEL.migrated, and a server with the former configuration refuses
    to open the channel.
    """
    from millrace_server.cli.log_targets import configured_channel, exit_on_error, files_place
    from millrace_server.log_tools.layout import UsageError
    from millrace_server.logs import safe_text, warnings_only

    with exit_on_error():
        (_, before), (_, after) = configured_channel(source, channel), configured_channel(target, channel)
        replicated = after.replicated or before.replicated
        if replicated is None or {before.type, after.type} != {"file", "replicated"}:
            raise UsageError(
                f"channel {safe_text(channel)} is of type {before.type} in {source} and of type {after.type} in "
                f"{target}; one of them must be file, the other replicated"
            )
        files = files_place(None, source if before.on_disk else target, channel, key)
        with warnings_only(), _stream_place(channel, replicated, key) as stream:
            # Imports the engine's library, which may not be installed.
            from millrace_server.log_tools.migration import into_files, into_stream

            moved = into_stream(files, stream) if before.on_disk else into_files(stream, files)
    where = str(files.data_dirs[0]) if before.replicated else stream.stream.name
    typer.echo(safe_text(f"Moved channel {channel} with {moved} events to {where}."))


@contextmanager
def _stream_place(channel: str, config: "ReplicatedChannelConfig", key: list[str] | None) -> "Iterator[StreamPlace]":
    """Connects to the engine until the end of the block; raises UnavailableError if it does not respond."""
    import asyncio

    from millrace_server.cli.log_targets import codec_of
    from millrace_server.log_tools.layout import UnavailableError
    from millrace_server.log_tools.migration import StreamPlace
    from millrace_server.replication.engine import Engine, EngineError
    from millrace_server.replication.owner_entries import EntriesUnavailableError
    from millrace_server.replication.stream import StreamLimits

    settings = config.engine
    try:
        engine = asyncio.run(Engine.of(settings))
        try:
            limits = StreamLimits(replicas=settings.replicas, stream_bytes_max=settings.stream_bytes_max)
            yield StreamPlace(channel, engine, limits, codec_of(config, key))
        finally:
            engine.close()
    except (EngineError, EntriesUnavailableError) as error:
        raise UnavailableError(str(error)) from error
