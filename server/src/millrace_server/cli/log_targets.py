"""The log that a command line names, and how `millraced` exits if a log tool fails."""

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from millrace.setting_file import SettingsError
from millrace_server.channels.channel_file import DirectoryError
from millrace_server.channels.config import (
    KEY_ID_PATTERN,
    AnyChannelConfig,
    DiskChannelConfig,
    ReplicatedChannelConfig,
)
from millrace_server.channels.directories import DirectoryInUseError
from millrace_server.channels.keys import KeyFileError, load_keys
from millrace_server.channels.log_store import make_codec
from millrace_server.cli.reporting import (
    EXIT_DAMAGED,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    complain,
    complain_of_settings,
)
from millrace_server.configuration.settings import load_settings
from millrace_server.errors import StartError
from millrace_server.hosting.data_dir import CATALOG_FILE, Catalog
from millrace_server.log_tools.backup import ToolContext
from millrace_server.log_tools.layout import ChannelLayout, ToolError, UnavailableError, UsageError, find_layout
from millrace_server.log_tools.readable_log import ReadableFiles, ReadableLog, ReadableStream
from millrace_server.log_tools.scanning import ToolProgress
from millrace_server.log_tools.view import open_view
from millrace_server.logs import safe_text, warnings_only
from millrace_server.wal.disk import OsDisk
from millrace_server.wal.format import UnknownVersionError
from millrace_server.wal.payload_codec import KeyMissingError, PayloadCodec
from millrace_server.wal.segments import LogCorruptError


@dataclass(frozen=True, slots=True)
class LogTarget:
    """The directories and the codec of the log that a command line names."""

    data_dirs: list[Path]
    checkpoint_dir: Path
    is_configured: bool
    """Whether the configuration says which directory holds the checkpoints."""
    codec: PayloadCodec


@contextmanager
def readable_log(
    directories: list[Path] | None, config: Path | None, channel: str | None, key: list[str] | None
) -> Iterator[ReadableLog]:
    """Opens the log that the options name, in files or in a stream of an engine, until the end of the block."""
    replicated = _replicated(config, channel) if not directories else None
    if replicated is None:
        layout, codec = find_log(directories, config, channel, key)
        with open_view(layout) as view:
            yield ReadableFiles(view, codec)
        return
    # Imports the engine's library, which may not be installed.
    from millrace_server.log_tools.stream_view import stream_view

    assert channel is not None, "it was found by its name"
    with warnings_only(), stream_view(channel, replicated.engine, stream_codec(replicated, key)) as view_of_stream:
        yield ReadableStream(view_of_stream)


def _replicated(config: Path | None, channel: str | None) -> ReplicatedChannelConfig | None:
    """Returns the channel's configuration if its log is in an engine."""
    if config is None or channel is None:
        return None
    limits = _channels(config, None)[1].get(channel)
    return None if limits is None else limits.replicated


def stream_codec(limits: ReplicatedChannelConfig, key: list[str] | None) -> PayloadCodec:
    """Returns the codec of a replicated channel, with further keys."""
    codec = make_codec(limits)
    return replace(codec, keys={**codec.keys, **_keys(key)})


def find_log(
    directories: list[Path] | None, config: Path | None, channel: str | None, key: list[str] | None
) -> tuple[ChannelLayout, PayloadCodec]:
    """Returns the layout of an existing channel and the codec that reads its log."""
    # All segments of a log are open at once, possibly more than the soft limit of open files.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    chosen = choose_log(directories, config, channel, key)
    if not chosen.is_configured:
        return find_layout(chosen.data_dirs), chosen.codec
    # Without duplicates: the checkpoints may be next to the segments.
    everything = list(dict.fromkeys([*chosen.data_dirs, chosen.checkpoint_dir]))
    return find_layout(everything, chosen.checkpoint_dir), chosen.codec


def choose_log(
    directories: list[Path] | None, config: Path | None, channel: str | None, key: list[str] | None
) -> LogTarget:
    """Returns the log that the options name, which need not exist yet; raises UsageError if they name none."""
    keys = _keys(key)
    if config is None and channel is None:
        if not directories:
            raise UsageError("name the channel's directories, or --config FILE and --channel NAME")
        return LogTarget(directories, directories[0], False, PayloadCodec(keys=keys))
    if config is None or channel is None or directories:
        raise UsageError("--config FILE and --channel NAME must be given together, and without directories")

    limits = configured_channel(config, channel)
    if (disk_limits := limits.on_disk) is None:
        raise UsageError(f"{config}: channel {channel} is of type {limits.type}, which has no files")
    target = _target(_channels(config, None)[0], channel, disk_limits)
    return replace(target, codec=replace(target.codec, keys={**target.codec.keys, **keys}))


def configured_channel(config: Path, channel: str) -> AnyChannelConfig:
    """Returns the configuration of a channel in a server's file or its catalog; raises UsageError if there is none."""
    data_dir, channels = _channels(config, None)
    limits = channels.get(channel)
    if limits is None:
        raise UsageError(
            f"{config}: neither this file nor the catalog in {data_dir} has a channel {safe_text(channel)}"
        )
    return limits


def configured_logs(config: Path | None, data_dir: str | None) -> list[LogTarget]:
    """Returns the logs of all channels that a server's file and its catalog name, by name; they need not exist yet."""
    directory, channels = _channels(config, data_dir)
    named = {name: limits.on_disk for name, limits in sorted(channels.items())}
    return [_target(directory, name, limits) for name, limits in named.items() if limits is not None]


def _channels(config: Path | None, data_dir: str | None) -> tuple[Path, dict[str, AnyChannelConfig]]:
    """Returns the data directory, and the channels of the server's file and of the catalog."""
    settings = load_settings(config, {} if data_dir is None else {"data_dir": data_dir})
    directory = settings.server.data_dir
    return directory, {**Catalog(directory / CATALOG_FILE, settings.server.engine).load(), **settings.channels}


def _target(data_dir: Path, channel: str, limits: DiskChannelConfig) -> LogTarget:
    data_dirs = [path / channel for path in limits.data_dirs] or [data_dir / "channels" / channel]
    checkpoint_dir = limits.checkpoint_dir / channel if limits.checkpoint_dir else data_dirs[0]
    return LogTarget(data_dirs, checkpoint_dir, True, make_codec(limits))


def _keys(key: list[str] | None) -> dict[str, bytes]:
    paths: dict[str, Path] = {}
    for text in key or []:
        key_id, equals, path = text.partition("=")
        if not equals or not path or not re.fullmatch(KEY_ID_PATTERN, key_id):
            raise UsageError(f"--key: is {text!a}; it must be ID=FILE, such as 2026=/etc/millrace/2026.key")
        paths[key_id] = Path(path)
    return load_keys(paths)


def tool_context(codec: PayloadCodec, progress: ToolProgress) -> ToolContext:
    """Returns what the tools work with on the real disk."""
    return ToolContext(OsDisk(), codec, progress)


class BarProgress(ToolProgress):
    """A progress bar for each part of the work, one after the other on the same line."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def begin(self, label: str, total_bytes: int) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(label, total=total_bytes)

    def advance(self, byte_count: int) -> None:
        assert self._task is not None, "a part has begun"
        self._progress.advance(self._task, byte_count)


@contextmanager
def shown_progress() -> Iterator[ToolProgress]:
    """Shows progress on standard error until the block ends, if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield ToolProgress()
        return
    columns = [TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=console, transient=True) as progress:
        yield BarProgress(progress)


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Writes an error to standard error, and exits with its code."""
    try:
        yield
    except SettingsError as error:
        complain_of_settings(error)
        raise typer.Exit(EXIT_USAGE) from None
    except KeyMissingError as error:
        complain(f"{error}; give it with --key {error.key_id}=FILE, or compare checksums only: verify --no-keys")
        raise typer.Exit(EXIT_UNAVAILABLE) from None
    except UnknownVersionError as error:
        complain(f"{error}; use the millraced that wrote it")
        raise typer.Exit(EXIT_UNAVAILABLE) from None
    except (UnavailableError, DirectoryInUseError) as error:
        complain(str(error))
        raise typer.Exit(EXIT_UNAVAILABLE) from None
    except (UsageError, KeyFileError, StartError) as error:
        complain(str(error))
        raise typer.Exit(EXIT_USAGE) from None
    except (ToolError, DirectoryError, LogCorruptError) as error:
        complain(str(error))
        raise typer.Exit(EXIT_DAMAGED) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        complain(f"{error.filename or 'the disk'}: {error.strerror}")
        raise typer.Exit(EXIT_DAMAGED) from None
