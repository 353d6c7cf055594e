"""The log that the options of a command name, and the exit codes of the log tools' errors."""

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from millrace.setting_file import SettingsError
from millrace_server.channels.channel_file import DirectoryError
from millrace_server.channels.config import (
    KEY_ID_PATTERN,
    AnyChannelConfig,
    DiskChannelConfig,
    LogChannelConfig,
)
from millrace_server.channels.directories import DirectoryInUseError
from millrace_server.channels.keys import KeyFileError, load_keys
from millrace_server.channels.log_store import make_codec
from millrace_server.cli.reporting import (
    EXIT_DAMAGED,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    print_error,
    print_problems,
)
from millrace_server.configuration.settings import load_settings
from millrace_server.errors import StartError
from millrace_server.hosting.data_dir import CATALOG_FILE, Catalog, data_dirs_of
from millrace_server.log_tools.layout import (
    ChannelLayout,
    FilesPlace,
    ToolError,
    UnavailableError,
    UsageError,
    find_layout,
)
from millrace_server.log_tools.readable_files import ReadableFiles
from millrace_server.log_tools.scanning import ToolProgress
from millrace_server.log_tools.view import open_view
from millrace_server.logs import safe_text, warnings_only
from millrace_server.wal.format import UnknownVersionError
from millrace_server.wal.payload_codec import KeyMissingError, PayloadCodec
from millrace_server.wal.segments import LogCorruptError

if TYPE_CHECKING:
    from millrace_server.log_tools.readable_stream import ReadableStream


@contextmanager
def readable_log(
    directories: list[Path] | None, config: Path | None, channel: str | None, key: list[str] | None
) -> Iterator["ReadableFiles | ReadableStream"]:
    """Opens the log that the options name, in files or in a stream of an engine, until the end of the block."""
    limits = _channels(config)[1].get(channel) if config and channel and not directories else None
    if limits is None or limits.replicated is None:
        layout, codec = find_log(directories, config, channel, key)
        with open_view(layout) as view:
            yield ReadableFiles(view, codec)
        return
    # These import the engine's library, which may not be installed.
    from millrace_server.log_tools.readable_stream import ReadableStream
    from millrace_server.log_tools.stream_view import stream_view

    assert channel is not None, "it was found by its name"
    with warnings_only(), stream_view(channel, limits.replicated.engine, codec_of(limits.replicated, key)) as stream:
        yield ReadableStream(stream)


def codec_of(limits: LogChannelConfig, key: list[str] | None) -> PayloadCodec:
    """Returns the codec of a configured channel, with the keys of the options added."""
    codec = make_codec(limits)
    return replace(codec, keys={**codec.keys, **_keys(key)})


def find_log(
    directories: list[Path] | None, config: Path | None, channel: str | None, key: list[str] | None
) -> tuple[ChannelLayout, PayloadCodec]:
    """Returns the layout of an existing channel and the codec that reads its log."""
    # All segments of a log are open at once, possibly more than the soft limit of open files allows.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    place = files_place(directories, config, channel, key)
    return find_layout(place.directories, place.checkpoint_dir), place.codec


def files_place(
    directories: list[Path] | None, config: Path | None, channel: str | None, key: list[str] | None
) -> FilesPlace:
    """Returns where the log that the options name is or will be; raises UsageError if they name none."""
    if config is None and channel is None:
        codec = PayloadCodec(keys=_keys(key))
        if not directories:
            raise UsageError("name the channel's directories, or --config FILE and --channel NAME")
        return FilesPlace(directories, codec)
    if config is None or channel is None or directories:
        raise UsageError("--config FILE and --channel NAME must be given together, and without directories")
    data_dir, limits = configured_channel(config, channel)
    if limits.on_disk is None:
        raise UsageError(f"{config}: channel {channel} is of type {limits.type}, which has no files")
    return _configured_place(data_dir, channel, limits.on_disk, key)


def configured_channel(config: Path, channel: str) -> tuple[Path, AnyChannelConfig]:
    """Returns a server's data directory, and a channel in its file or catalog; raises UsageError if there is none."""
    data_dir, channels = _channels(config)
    if (limits := channels.get(channel)) is None:
        raise UsageError(
            f"{config}: neither this file nor the catalog in {data_dir} has a channel {safe_text(channel)}"
        )
    return data_dir, limits


def configured_places(config: Path | None, data_dir: str | None) -> Iterator[FilesPlace]:
    """Yields the files of all channels in a server's file and its catalog, by name; they need not exist yet."""
    directory, channels = _channels(config, data_dir)
    for name, limits in sorted(channels.items()):
        if limits.on_disk is not None:
            yield _configured_place(directory, name, limits.on_disk)


def _channels(config: Path | None, data_dir: str | None = None) -> tuple[Path, dict[str, AnyChannelConfig]]:
    """Returns the data directory, and the channels of the server's file and of the catalog."""
    settings = load_settings(config, {} if data_dir is None else {"data_dir": data_dir})
    directory = settings.server.data_dir
    return directory, {**Catalog(directory / CATALOG_FILE, settings.server.engine).load(), **settings.channels}


def _configured_place(
    data_dir: Path, channel: str, limits: DiskChannelConfig, key: list[str] | None = None
) -> FilesPlace:
    data_dirs = data_dirs_of(channel, limits, data_dir)
    checkpoint_dir = limits.checkpoint_dir / channel if limits.checkpoint_dir else data_dirs[0]
    return FilesPlace(data_dirs, codec_of(limits, key), checkpoint_dir)


def _keys(key: list[str] | None) -> dict[str, bytes]:
    paths: dict[str, Path] = {}
    for text in key or []:
        key_id, equals, path = text.partition("=")
        if not equals or not path or not re.fullmatch(KEY_ID_PATTERN, key_id):
            raise UsageError(f"--key: is {text!a}; it must be ID=FILE, such as 2026=/etc/millrace/2026.key")
        paths[key_id] = Path(path)
    return load_keys(paths)


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
    """Shows progress until the block ends, if standard error is a terminal."""
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
        print_problems(error)
        raise typer.Exit(EXIT_USAGE) from None
    except BrokenPipeError:
        raise
    except _ERRORS as error:
        sentence, code = _explained(error)
        print_error(sentence)
        raise typer.Exit(code) from None


_ERRORS = (
    KeyMissingError,
    UnknownVersionError,
    ToolError,
    DirectoryError,
    KeyFileError,
    StartError,
    LogCorruptError,
    OSError,
)


def _explained(error: Exception) -> tuple[str, int]:
    """Returns a sentence about an error, and the exit code."""
    match error:
        case KeyMissingError():
            advice = f"give it with --key {error.key_id}=FILE, or compare checksums only: verify --no-keys"
            return f"{error}; {advice}", EXIT_UNAVAILABLE
        case UnknownVersionError():
            return f"{error}; use the millraced that wrote it", EXIT_UNAVAILABLE
        case UnavailableError() | DirectoryInUseError():
            return str(error), EXIT_UNAVAILABLE
        case UsageError() | KeyFileError() | StartError():
            return str(error), EXIT_USAGE
        case OSError():
            return f"{error.filename or 'cannot write the output'}: {error.strerror}", EXIT_DAMAGED
        case _:
            return str(error), EXIT_DAMAGED
