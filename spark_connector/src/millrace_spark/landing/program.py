"""The program `millrace-spark`: its commands."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from millrace.command_line.program import new_program, version_option
from millrace.setting_file import SettingsError
from millrace.setting_problems import Problem, describe_problems
from millrace_spark.errors import MillraceSparkError, OptionError
from millrace_spark.landing.commands import MEANINGS, ExitCode, compact_folder, land_channels, note
from millrace_spark.landing.config import CompactionConfig, Compression, LandingConfig, SparkConfig
from millrace_spark.landing.config_file import (
    command_line_overrides,
    load_config,
    parse_conf,
    parse_override,
)
from millrace_spark.landing.landing_run import check_package
from millrace_spark.landing.local_storage import FolderBusyError
from millrace_spark.landing.paths import WorkFolder, absolute_path
from millrace_spark.workers import pack

_LIMITS = CompactionConfig()

app = new_program("millrace-spark", MEANINGS.items())

ConfigArgument = Annotated[
    Path | None, typer.Argument(help="The landing's configuration, a TOML file.", show_default=False)
]
EndpointOption = Annotated[
    list[str] | None,
    typer.Option(
        "--endpoint",
        "-e",
        help="A server, host:port, or those that share channels, with slashes between; may be repeated.",
    ),
]
ChannelOption = Annotated[
    list[str] | None, typer.Option("--channel", "-c", help="A channel or a pattern; may be repeated.")
]
ParseOption = Annotated[
    str | None, typer.Option(help="The format of lines: text, json, regex, access_log or syslog.", show_default=False)
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SETTING=VALUE", help="Override a setting of the file, such as run.follow=true."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write the report as JSON.")]
MasterOption = Annotated[str | None, typer.Option(help="Spark's master; default: local[*].", show_default=False)]
ConfOption = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")
]


@app.callback()
def _millrace_spark(
    *,
    version: Annotated[bool, version_option("millrace-spark", "millrace-spark")] = False,
) -> None:
    """Land Millrace channels as Parquet, each event once."""


@app.command()
def land(
    config: ConfigArgument = None,
    *,
    endpoints: EndpointOption = None,
    channels: ChannelOption = None,
    to: Annotated[str | None, typer.Option(help="The folder to land in.", show_default=False)] = None,
    parse: ParseOption = None,
    columns: Annotated[
        str | None, typer.Option(help="The schema of JSON, such as 'id bigint, time timestamp'.", show_default=False)
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(help="The regular expression, with groups (?P<name>...).", show_default=False)
    ] = None,
    partition_by: Annotated[
        list[str] | None, typer.Option(help="A partition, such as date or hour; may be repeated.")
    ] = None,
    bad_channel: Annotated[
        str | None, typer.Option(help="The dead-letter channel for bad lines.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Run until stopped.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 4 if there were bad lines.")] = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Land channels in a folder: the events that are there now, or with --follow until stopped.

    Options override the file.
    """
    options = {
        "source.endpoints": endpoints,
        "source.channels": channels,
        "target.path": to,
        "parse.type": parse,
        "parse.columns": columns,
        "parse.pattern": pattern,
        "partitions.by": partition_by,
        "bad_lines.channel": bad_channel,
        "run.follow": follow,
        "spark.master": master,
    }
    with _exit_on_error():
        loaded = load_config(config, command_line_overrides(options, conf or (), settings or ()))
        exit_code = land_channels(loaded, as_json=as_json, is_strict=strict)
    raise typer.Exit(exit_code)


@app.command()
def check(
    config: Annotated[Path, typer.Argument(help="The landing's configuration, a TOML file.")],
    *,
    settings: SetOption = None,
) -> None:
    """List all errors of a configuration, without starting Spark or connecting to a server."""
    with _exit_on_error():
        loaded: LandingConfig = load_config(config, map(parse_override, settings or ()))
        check_package(loaded)
    typer.echo(f"{config}: valid; lands {', '.join(loaded.source.channels)} in {loaded.target.path}")


@app.command()
def compact(
    folder: Annotated[str, typer.Argument(help="The folder of the landing.")],
    *,
    target_bytes: Annotated[int, typer.Option(help="The approximate size of merged files.")] = _LIMITS.target_bytes,
    files_min: Annotated[int, typer.Option(help="Merge folders with at least this many small files.")] = 2,
    quiet_seconds: Annotated[
        float, typer.Option(help="Skip folders with files that are newer than this.")
    ] = _LIMITS.quiet_seconds,
    work_path: Annotated[str | None, typer.Option(help="The landing's work_path.", show_default=False)] = None,
    compression: Annotated[Compression, typer.Option(help="The compression of merged files.")] = "zstd",
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Merge the small files of a landed folder, and finish an interrupted compaction."""
    with _exit_on_error():
        path = _folder_of("FOLDER", folder)
        work = WorkFolder(_folder_of("--work-path", work_path)) if work_path else WorkFolder.beside(path)
        spark_config = SparkConfig(conf=parse_conf(conf or ()), **({"master": master} if master else {}))
        limits = _limits(target_bytes=target_bytes, files_min=files_min, quiet_seconds=quiet_seconds)
        totals, exit_code = compact_folder(path, work, limits, compression, spark_config)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "path": path,
                    "files_before": totals.files_before,
                    "files_after": totals.files_after,
                    "not_compacted": list(totals.refusals),
                }
            )
        )
    else:
        for refusal in totals.refusals:
            note(refusal)
        merged = f"{totals.files_before:,} files into {totals.files_after:,}"
        typer.echo(f"{path}: merged {merged}" if totals.files_before else f"{path}: there was nothing to merge")
    raise typer.Exit(exit_code)


def _folder_of(name: str, path: str) -> str:
    try:
        return absolute_path(path)
    except ValueError as error:
        raise SettingsError("command line", [Problem((), f"{name}: is {path!r}; it must be {error}")]) from None


def _limits(**values: float) -> CompactionConfig:
    try:
        return CompactionConfig.model_validate(values)
    except ValidationError as error:
        raise SettingsError("command line", describe_problems(error, CompactionConfig)) from None


@app.command("pack")
def pack_packages(
    path: Annotated[Path, typer.Argument(help="The zip; an existing file is replaced.")] = Path("millrace_spark.zip"),
) -> None:
    """Write a zip of this package and the client, for spark-submit --py-files."""
    with _exit_on_error():
        size = pack(path).stat().st_size
    typer.echo(f"{path}: {size:,} bytes; use it with spark-submit --py-files, and call millrace_spark.register(spark)")


@contextmanager
def _exit_on_error() -> Iterator[None]:
    """Reports errors of commands as a sentence and an exit code."""
    try:
        yield
    except MillraceSparkError as error:
        note(str(error))
        raise typer.Exit(_exit_code_of(error)) from error
    except SettingsError as error:
        note(str(error))
        raise typer.Exit(ExitCode.USAGE) from error
    except KeyboardInterrupt as error:
        # Commands handle signals themselves, but Spark installs its own handler while it starts.
        note("stopped by Ctrl-C while Spark was starting; nothing is lost, and the next run resumes")
        raise typer.Exit(ExitCode.INTERRUPTED) from error


def _exit_code_of(error: MillraceSparkError) -> ExitCode:
    if isinstance(error, OptionError):
        return ExitCode.USAGE
    return ExitCode.LATER if isinstance(error, FolderBusyError) else ExitCode.FAILED
