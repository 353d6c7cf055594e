"""The commands of `millraced` that read, mend, copy and bring back a channel's files without a server."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from millrace_server.channels.config import LogChannelConfig
    from millrace_server.log_tools.backing_up import BackupTools
    from millrace_server.log_tools.places import LogPlaces
    from millrace_server.log_tools.progress import ToolProgress
    from millrace_server.log_tools.verifying import Report
    from millrace_server.wal.payload_codec import PayloadCodec

EXIT_DAMAGED = 1
"""The files are damaged, or could not be written."""

EXIT_USAGE = 2
"""The command line names something that is not what is needed."""

EXIT_UNAVAILABLE = 3
"""In use, sealed with a key that was not given, or of another version: nothing is known to be wrong."""

EXIT_BROKEN_PIPE = 141
"""Whoever read the output has gone."""

_LINE_LENGTH_MAX = 100_000
"""Of a dump's longer lines the beginning is shown; --json shows all."""

log_app = typer.Typer(
    help="Read and repair a file channel's log without a server. Ends with 0 where all is good, 1 where it is damaged, "
    "2 where the command line is wrong, 3 where it is in use, or a key is missing, or another version wrote it.",
    no_args_is_help=True,
)

Directories = Annotated[
    list[Path] | None, typer.Argument(metavar="PATH...", help="The channel's own directories: all of them.")
]
Config = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="Find directories and keys in the server's file.")
]
Channel = Annotated[str | None, typer.Option(metavar="NAME", help="Which channel of the --config file.")]
Keys = Annotated[
    list[str] | None, typer.Option("--key", metavar="ID=FILE", help="A key that payloads were sealed with; repeatable.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


@log_app.command()
def verify(
    directories: Directories = None,
    *,
    config: Config = None,
    channel: Channel = None,
    key: Keys = None,
    no_keys: Annotated[bool, typer.Option("--no-keys", help="Compare checksums only, and open nothing.")] = False,
    json: AsJson = False,
) -> None:
    """Tell whether a channel's files are good. Changes nothing; a server may be using them."""
    with _refusals_told(), _progress() as progress:
        from millrace_server.log_tools.documents import report_document, report_lines
        from millrace_server.log_tools.verifying import verify as verify_log
        from millrace_server.log_tools.view import take_view

        places, codec = _found(directories, config, channel, key)
        with take_view(places) as view:
            report = verify_log(view, codec, progress, opens=not no_keys)
            document, lines = report_document(places, report), list(report_lines(view, report))
    if json:
        _print_json(document)
    else:
        _print(*lines)
        _tell(report)
    _end(report)


@log_app.command()
def dump(
    directories: Directories = None,
    *,
    config: Config = None,
    channel: Channel = None,
    key: Keys = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="SEGMENT[:BYTE]", help="Begin there, such as 3:64.")
    ] = None,
    bodies: Annotated[bool, typer.Option("--bodies", help="Show events too: headers, and bodies in base64.")] = False,
    state: Annotated[bool, typer.Option("--state", help="Show the channel as it is found, and no records.")] = False,
    json: AsJson = False,
) -> None:
    """Show a log, a record a line; at damage it says so and goes on behind. Changes nothing."""
    is_damaged = False
    with _refusals_told():
        from millrace_server.log_tools.documents import detailed_state_document, record_line
        from millrace_server.log_tools.dumping import Place
        from millrace_server.log_tools.dumping import dump as dump_log
        from millrace_server.log_tools.verifying import recover_as_found
        from millrace_server.log_tools.view import take_view

        place = None if start is None else Place.parse(start)
        places, codec = _found(directories, config, channel, key)
        with take_view(places) as view:
            if state:
                _print_json(detailed_state_document(recover_as_found(view, codec)))
                return
            for document in dump_log(view, codec, place, shows_bodies=bodies):
                is_damaged = is_damaged or "damage" in document
                if json:
                    _print_json(document, indent=None)
                else:
                    _print(record_line(document))
    if is_damaged:
        raise typer.Exit(EXIT_DAMAGED)


@log_app.command()
def repair(
    directories: Directories = None,
    *,
    config: Config = None,
    channel: Channel = None,
    key: Keys = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where all files are copied to first. Else beside the channel.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this, only say what would be done.")] = False,
    json: AsJson = False,
) -> None:
    """Make a damaged channel open again. Stop its server first; without --yes nothing is changed."""
    with _refusals_told(), _progress() as progress:
        from millrace_server.log_tools.documents import report_document
        from millrace_server.log_tools.repairing import repair as repair_log

        places, codec = _found(directories, config, channel, key)
        done = repair_log(places, _tools(codec, progress), keep=keep, is_agreed=yes)
    if json:
        _print_json(
            {
                "steps": done.steps,
                "is_done": done.report is not None,
                "keep": str(done.keep) if done.keep else None,
                "report": report_document(places, done.report) if done.report else None,
            }
        )
    elif not done.steps:
        _print("Nothing is wrong; nothing was changed.")
    else:
        _print("Done:" if done.report else "This would be done with --yes:", *(f"  {step}" for step in done.steps))
    if done.report is None:
        raise typer.Exit(EXIT_DAMAGED if done.steps else 0)
    if not json:
        _print(f"All files as they were are in {done.keep}.")
        _tell(done.report)
    _end(done.report)


def backup(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="[PATH...] TARGET", help="The channel's own directories, then an empty one to copy to."),
    ],
    *,
    config: Config = None,
    channel: Channel = None,
    key: Keys = None,
    json: AsJson = False,
) -> None:
    """Copy a file channel, also while a server uses it. All that was acknowledged before is in the copy."""
    *directories, target = paths
    with _refusals_told(), _progress() as progress:
        from millrace_server.log_tools.backing_up import back_up
        from millrace_server.log_tools.places import find_places

        places, codec = _found(directories, config, channel, key)
        report = back_up(places, target, _tools(codec, progress))
        copied = find_places([target])
    _show_copy(copied, report, f"Copied channel {places.name} to {target}.", json=json)


def restore(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="BACKUP [TARGET...]",
            help="A backup, then the channel's own data directories, empty or not there; the first gets checkpoints.",
        ),
    ],
    *,
    config: Config = None,
    channel: Channel = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The channel's name, where it is to have another one.")
    ] = None,
    key: Keys = None,
    json: AsJson = False,
) -> None:
    """Make a file channel of a backup; the next start of the server opens it."""
    backup_dir, *targets = paths
    with _refusals_told(), _progress() as progress:
        from millrace_server.log_tools.backing_up import RestoreTarget
        from millrace_server.log_tools.backing_up import restore as restore_channel

        chosen = _choose(targets, config, channel, key)
        target = RestoreTarget(data_dirs=chosen.data_dirs, checkpoint_dir=chosen.checkpoint_dir, name=name or channel)
        report, places = restore_channel(backup_dir, target, _tools(chosen.codec, progress))
    _show_copy(
        places, report, f"Restored channel {places.name} to {' and '.join(map(str, places.directories))}.", json=json
    )
    if not json:
        _print(
            "Stamps and claims stand as they did at the backup, and readers see a new channel id: they must be told "
            "that what came after the backup is gone."
        )


def _show_copy(places: "LogPlaces", report: "Report", sentence: str, *, json: bool) -> None:
    from millrace_server.log_tools.documents import report_document

    if json:
        _print_json(report_document(places, report))
    else:
        _print(sentence)
        if report.survey.key_ids:
            _print(f"To read it, keep the keys: {', '.join(sorted(report.survey.key_ids))}.")
        _tell(report)
    _end(report)


def _tell(report: "Report") -> None:
    from millrace_server.log_tools.documents import summary

    for sentence in report.sentences:
        _complain(sentence)
    _print(summary(report))


def _end(report: "Report") -> None:
    if not report.is_good:
        raise typer.Exit(EXIT_DAMAGED)


# What the command line names.


@dataclass(frozen=True, slots=True)
class _Chosen:
    data_dirs: list[Path]
    checkpoint_dir: Path
    is_configured: bool
    """Whether the configuration tells which of the directories has the checkpoints."""
    codec: "PayloadCodec"


def _found(
    directories: list[Path] | None, config: Path | None, channel: str | None, key: list[str] | None
) -> "tuple[LogPlaces, PayloadCodec]":
    """Where an existing channel lies, and what opens it."""
    import resource

    # A log may have more segments than a program may usually open, and all of them are open at once.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    from millrace_server.log_tools.places import find_places

    chosen = _choose(directories, config, channel, key)
    if not chosen.is_configured:
        return find_places(chosen.data_dirs), chosen.codec
    # Each once; the checkpoints may be with the segments.
    everything = list(dict.fromkeys([*chosen.data_dirs, chosen.checkpoint_dir]))
    return find_places(everything, chosen.checkpoint_dir), chosen.codec


def _choose(directories: list[Path] | None, config: Path | None, channel: str | None, key: list[str] | None) -> _Chosen:
    from dataclasses import replace

    from millrace_server.log_tools.errors import UsageError
    from millrace_server.wal.payload_codec import PayloadCodec

    keys = _keys(key)
    if config is None and channel is None:
        if not directories:
            raise UsageError("name the channel's directories, or --config FILE and --channel NAME")
        return _Chosen(directories, directories[0], False, PayloadCodec(keys=keys))
    if config is None or channel is None or directories:
        raise UsageError("--config FILE and --channel NAME go together, and without the channel's directories")
    from millrace_server.channels.file_store import make_codec

    data_dir, limits = _configured(config, channel)
    codec = make_codec(limits)
    data_dirs = [path / channel for path in limits.data_dirs] or [data_dir / "channels" / channel]
    checkpoint_dir = limits.checkpoint_dir / channel if limits.checkpoint_dir else data_dirs[0]
    return _Chosen(data_dirs, checkpoint_dir, True, replace(codec, keys={**codec.keys, **keys}))


def _configured(config: Path, channel: str) -> "tuple[Path, LogChannelConfig]":
    """What the server's file says of a channel, or its catalog."""
    from millrace_server.channels.config import LogChannelConfig
    from millrace_server.configuration.settings import load_settings
    from millrace_server.hosting.catalog import Catalog
    from millrace_server.hosting.data_dir import CATALOG_FILE
    from millrace_server.log_tools.errors import UsageError
    from millrace_server.logs import safe_text

    settings = load_settings(config)
    data_dir = settings.server.data_dir
    limits = settings.channels.get(channel) or Catalog(data_dir / CATALOG_FILE).load().get(channel)
    if limits is None:
        raise UsageError(f"{config}: has no channel {safe_text(channel)}, nor has the catalog in {data_dir}")
    if not isinstance(limits, LogChannelConfig):
        raise UsageError(f"{config}: channel {channel} is of type {limits.type}, which has no files")
    return data_dir, limits


def _keys(key: list[str] | None) -> dict[str, bytes]:
    import re

    from millrace_server.channels.config import KEY_ID_PATTERN
    from millrace_server.channels.keys import load_keys
    from millrace_server.log_tools.errors import UsageError

    paths: dict[str, Path] = {}
    for text in key or []:
        key_id, equals, path = text.partition("=")
        if not equals or not path or not re.fullmatch(KEY_ID_PATTERN, key_id):
            raise UsageError(f"--key: is {text!a}; it must be ID=FILE, such as 2026=/etc/millrace/2026.key")
        paths[key_id] = Path(path)
    return load_keys(paths)


def _tools(codec: "PayloadCodec", progress: "ToolProgress") -> "BackupTools":
    from millrace_server.log_tools.backing_up import BackupTools
    from millrace_server.wal.disk import OsDisk

    return BackupTools(OsDisk(), codec, progress)


# What is shown.


@contextmanager
def _progress() -> "Iterator[ToolProgress]":
    from millrace_server.log_tools.progress import shown_progress

    with shown_progress() as progress:
        yield progress


@contextmanager
def _refusals_told() -> Iterator[None]:
    """Tells a refusal in a sentence, and ends with its code."""
    from millrace_server.channels.channel_file import DirectoryError
    from millrace_server.channels.directory_lock import DirectoryInUseError
    from millrace_server.channels.keys import KeyFileError
    from millrace_server.configuration.settings import SettingsError
    from millrace_server.errors import StartError
    from millrace_server.log_tools.errors import ToolError, UnavailableError, UsageError
    from millrace_server.wal.format import UnknownVersionError
    from millrace_server.wal.payload_codec import KeyMissingError
    from millrace_server.wal.segments import LogCorruptError

    try:
        yield
    except SettingsError as error:
        for problem in error.problems:
            _complain(f"{error.source}: {problem}")
        raise typer.Exit(EXIT_USAGE) from None
    except KeyMissingError as error:
        _complain(f"{error}; give it with --key {error.key_id}=FILE, or compare checksums only: verify --no-keys")
        raise typer.Exit(EXIT_UNAVAILABLE) from None
    except UnknownVersionError as error:
        _complain(f"{error}; use the millraced that wrote it")
        raise typer.Exit(EXIT_UNAVAILABLE) from None
    except (UnavailableError, DirectoryInUseError) as error:
        _complain(str(error))
        raise typer.Exit(EXIT_UNAVAILABLE) from None
    except (UsageError, KeyFileError, StartError) as error:
        _complain(str(error))
        raise typer.Exit(EXIT_USAGE) from None
    except (ToolError, DirectoryError, LogCorruptError) as error:
        _complain(str(error))
        raise typer.Exit(EXIT_DAMAGED) from None
    except BrokenPipeError:
        # What is left to write goes nowhere, and says so no more at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_BROKEN_PIPE) from None
    except OSError as error:
        _complain(f"{error.filename or 'the disk'}: {error.strerror}")
        raise typer.Exit(EXIT_DAMAGED) from None


def _print(*lines: str) -> None:
    from millrace_server.logs import safe_text

    for line in lines:
        typer.echo(safe_text(line, _LINE_LENGTH_MAX))


def _print_json(document: Any, indent: int | None = 2) -> None:
    from json import dumps

    typer.echo(dumps(document, indent=indent))


def _complain(sentence: str) -> None:
    from millrace_server.logs import safe_text

    typer.secho(f"millraced: {safe_text(sentence)}", fg=typer.colors.RED, err=True)
