"""The settings of a valid configuration, as text and as TOML, for `millraced check`."""

from collections.abc import Mapping
from pathlib import Path

import typer

from millrace.setting_problems import without_passwords
from millrace.units import counted, format_byte_size
from millrace_server.agent.sinks.sink import NonRejectingSinkConfig, SinkConfig
from millrace_server.agent.supervision import ComponentError
from millrace_server.channels.config import DiskChannelConfig, LogChannelConfig, ReplicatedChannelConfig
from millrace_server.channels.keys import KeyFileError, load_keys
from millrace_server.cli.reporting import print_error
from millrace_server.configuration.settings import Settings
from millrace_server.configuration.toml_text import to_toml
from millrace_server.hosting.data_dir import data_dirs_of


def show_settings(file: Path, settings: Settings) -> None:
    """Writes the settings of a file to standard output."""
    server = settings.server
    typer.echo(f"{file} is valid.")
    typer.echo(f"gRPC listens on {server.listen}, HTTP on {server.http_listen}; data is stored in {server.data_dir}.")
    if not settings.channels:
        typer.echo("No channels are configured.")
    for name, channel in settings.channels.items():
        typer.echo(
            f"Channel {name}: {channel.type}, holds {counted(channel.capacity, 'event')} and "
            f"{format_byte_size(channel.byte_capacity)}, {format_byte_size(channel.body_bytes_max)} of them for "
            f"bodies; {counted(channel.transaction_capacity, 'event')} in a transaction."
        )
        if channel.type == "spillable":
            typer.echo(
                f"  Of these, up to {counted(channel.memory_capacity, 'event')} and "
                f"{format_byte_size(channel.memory_body_bytes_max)} of bodies are in memory only, and a crash loses "
                "them."
            )
        if channel.log is not None:
            _show_log(name, channel.log, server.data_dir)
    _show_flows(settings)


def show_toml(settings: Settings) -> None:
    """Writes all settings to standard output as TOML, with their defaults, and without secrets."""
    tables = settings.model_dump(mode="json", exclude_none=True)
    named = {kind: {"": table} if kind in _UNNAMED else table for kind, table in tables.items()}
    typer.echo(without_passwords(to_toml(named)), nl=False)


_UNNAMED = {"server", "auth"}


def _show_flows(settings: Settings) -> None:
    for name, source in settings.sources.items():
        steps = ", ".join(interceptor.type for interceptor in source.interceptors)
        through = f" through {steps}" if steps else ""
        typer.echo(f"Source {name}: {source.type}, fills {' and '.join(source.channels)}{through}.")
    for name, sink in settings.sinks.items():
        rejected = "; rejected events are redelivered indefinitely"
        if isinstance(sink, NonRejectingSinkConfig):
            rejected = ""
        elif sink.dead_letter_channel:
            rejections = counted(sink.deliveries_max, "rejection")
            rejected = f"; after {rejections} an event goes to {sink.dead_letter_channel}"
        typer.echo(f"Sink {name}: {sink.type}, empties {sink.channel}{rejected}.")
        _check_files(name, sink)
    for name, group in settings.sink_groups.items():
        typer.echo(f"Sink group {name}: {group.policy}, of {' and '.join(group.sinks)}.")


def _show_log(name: str, channel: LogChannelConfig, data_dir: Path) -> None:
    where = ""
    if channel.on_disk is not None:
        where = _files(name, channel.on_disk, data_dir)
    elif channel.replicated is not None:
        where = _stream(channel.replicated)
    compressed = "compressed with zstd" if channel.compression == "zstd" else "not compressed"
    encrypted = f"encrypted with the key {channel.encryption.active_key}" if channel.encryption else "not encrypted"
    typer.echo(f"  Its log is {where}; records are {compressed} and {encrypted}.")
    if channel.encryption:
        _check_keys(name, channel.encryption.keys)


def _files(name: str, channel: DiskChannelConfig, data_dir: Path) -> str:
    where = f"in {' and '.join(map(str, data_dirs_of(name, channel, data_dir)))}"
    if channel.checkpoint_dir:
        where += f", its checkpoints in {channel.checkpoint_dir / name}"
    synced = "before each commit is acknowledged"
    if channel.fsync == "interval":
        synced = f"every {channel.fsync_interval_seconds:g} s, so a power failure loses the commits since the last sync"
    return f"{where}; it is synced {synced}"


def _stream(channel: ReplicatedChannelConfig) -> str:
    engine = channel.engine
    return (
        f"in {engine.type} at {' and '.join(engine.servers)}, {format_byte_size(engine.stream_bytes_max)} at "
        f"{counted(engine.replicas, 'server')}; another server takes over after {engine.lease_seconds:g} s"
    )


def _check_files(name: str, sink: SinkConfig) -> None:
    """Warns of files that cannot be used, as with keys."""
    try:
        sink.check_files()
    except ComponentError as error:
        print_error(f"sink {name} could not connect from here: {error}")


def _check_keys(name: str, paths: Mapping[str, Path]) -> None:
    """Warns of keys that cannot be used. This is not an error, since the file may be for another machine."""
    for key_id, path in paths.items():
        try:
            load_keys({key_id: path})
        except KeyFileError as error:
            print_error(f"channel {name} would not open here: {error}")
