"""The command `millraced`."""

import tomllib
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace_server.log_cli import backup, log_app, restore

if TYPE_CHECKING:
    from millrace_server.channels.config import LogChannelConfig
    from millrace_server.configuration.settings import Settings

EXIT_CANNOT_START = 1
"""The machine says no: a port is in use, a directory cannot be written, the catalog is damaged."""

EXIT_BAD_SETTINGS = 2
"""The command line or the configuration says something that is not allowed; starting again cannot help."""

app = typer.Typer(
    name="millraced",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(log_app, name="log")
app.command()(backup)
app.command()(restore)


def main() -> None:
    """Runs the command line."""
    app()


def _show_version(*, is_wanted: bool) -> None:
    if is_wanted:
        from millrace_server.version import VERSION

        typer.echo(f"millraced {VERSION}")
        raise typer.Exit


@app.callback()
def _millraced(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Millrace's server: transactional channels over gRPC."""


@app.command()
def serve(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="TOML file. Without it the defaults hold.")
    ] = None,
    address_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the addresses there as JSON, once both can be reached."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where gRPC listens, instead of server.listen.")
    ] = None,
    http_listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where HTTP listens, instead of server.http_listen.")
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option(metavar="DIRECTORY", help="Where data is kept, instead of server.data_dir.")
    ] = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; a second one stops at once. SIGHUP reads the file again."""
    options = {"listen": listen, "http_listen": http_listen, "data_dir": data_dir}
    overrides = {field: value for field, value in options.items() if value is not None}
    settings = _load(config, overrides)

    import sys

    import structlog
    import uvloop

    from millrace_server.configuration.settings import load_settings
    from millrace_server.errors import StartError
    from millrace_server.logs import configure_logging
    from millrace_server.process.daemon import serve as serve_until_stopped
    from millrace_server.process.exit import leave_soon

    configure_logging(sys.stderr)
    load_again = None if config is None else partial(load_settings, config, overrides)

    async def serve_and_leave() -> None:
        await serve_until_stopped(settings, address_file, load_again)
        leave_soon()

    try:
        # Small calls take a third less of the processor's time than on asyncio's own loop.
        uvloop.run(serve_and_leave())
    except StartError as error:
        _complain(str(error))
        raise typer.Exit(EXIT_CANNOT_START) from None
    except Exception:  # noqa: BLE001 - a bug of ours belongs in the log like all else
        structlog.stdlib.get_logger(__name__).exception("the server failed")
        raise typer.Exit(EXIT_CANNOT_START) from None


class GraphFormat(StrEnum):
    """How a graph is written."""

    TEXT = "text"
    MERMAID = "mermaid"
    DOT = "dot"


@app.command()
def graph(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The TOML file.")],
    *,
    graph_format: Annotated[
        GraphFormat, typer.Option("--format", help="For a terminal, for Mermaid, or for Graphviz.")
    ] = GraphFormat.TEXT,
) -> None:
    """Draw the flows of a configuration file: sources, channels, sinks, and what lies between them."""
    settings = _load(file, {})

    from millrace_server.flows import drawings as flow_drawings
    from millrace_server.flows.graph import flow_graph

    drawings = {
        GraphFormat.TEXT: flow_drawings.draw_text,
        GraphFormat.MERMAID: flow_drawings.draw_mermaid,
        GraphFormat.DOT: flow_drawings.draw_dot,
    }
    for line in drawings[graph_format](flow_graph(settings)):
        typer.echo(line)


@app.command()
def check(file: Annotated[Path, typer.Argument(metavar="FILE", help="The TOML file.")]) -> None:
    """Check a configuration file and show all that is wrong with it, or what it says."""
    settings = _load(file, {})
    server = settings.server
    typer.echo(f"{file} is good.")
    typer.echo(f"gRPC listens on {server.listen}, HTTP on {server.http_listen}; data is kept in {server.data_dir}.")
    if not settings.channels:
        typer.echo("It has no channels.")
    for name, channel in settings.channels.items():
        typer.echo(
            f"Channel {name}: {channel.type}, holds {channel.capacity} events and {channel.body_bytes_max} bytes of "
            f"bodies, {channel.transaction_capacity} events in a transaction."
        )
        if channel.type == "spillable":
            typer.echo(
                f"  Of these, up to {channel.memory_capacity} events and {channel.memory_body_bytes_max} bytes of "
                "bodies are in memory only, and a crash loses them."
            )
        if channel.type != "memory":
            _show_log(name, channel, server.data_dir)
    _show_flows(settings)


@app.command("import-flume")
def import_flume(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Flume's properties file.")],
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which agent, where the file describes several.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there instead of showing it.")
    ] = None,
) -> None:
    """Convert a Flume agent's configuration; standard error tells what has no counterpart and why."""
    from millrace_server.configuration.settings import SettingsError, check_settings
    from millrace_server.flume_import.importing import FlumeImportError, import_agent

    try:
        imported = import_agent(file.read_text("utf-8-sig"), agent)
    except (OSError, UnicodeDecodeError, FlumeImportError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        _complain(f"{file}: cannot be imported: {reason}")
        raise typer.Exit(EXIT_BAD_SETTINGS) from None
    toml = imported.toml()
    if output is None:
        typer.echo(toml, nl=False)
    else:
        _write_new(output, toml)
    for remark in imported.remarks:
        typer.secho(f"{remark.key}: {remark.sentence}", fg=typer.colors.YELLOW, err=True)
    try:
        check_settings(tomllib.loads(toml), str(output or "the result"))
    except SettingsError as error:
        for problem in error.problems:
            _complain(f"to be mended by hand: {problem}")
        raise typer.Exit(EXIT_BAD_SETTINGS) from None


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        _complain(f"{path}: cannot be written: {error.strerror}")
        raise typer.Exit(EXIT_CANNOT_START) from None


def _show_flows(settings: "Settings") -> None:
    from millrace_server.agent.sinks.sink import TakingSinkConfig

    for name, source in settings.sources.items():
        steps = ", ".join(interceptor.type for interceptor in source.interceptors)
        through = f" through {steps}" if steps else ""
        typer.echo(f"Source {name}: {source.type}, fills {' and '.join(source.channels)}{through}.")
    for name, sink in settings.sinks.items():
        rejected = "; rejected events are delivered for ever"
        if isinstance(sink, TakingSinkConfig):
            rejected = ""
        elif sink.dead_letter_channel:
            rejected = f"; after {sink.deliveries_max} rejections an event goes to {sink.dead_letter_channel}"
        typer.echo(f"Sink {name}: {sink.type}, empties {sink.channel}{rejected}.")
    for name, group in settings.sink_groups.items():
        typer.echo(f"Sink group {name}: {group.policy}, of {' and '.join(group.sinks)}.")


def _show_log(name: str, channel: "LogChannelConfig", data_dir: Path) -> None:
    home = data_dir / "channels" / name
    data_dirs = [path / name for path in channel.data_dirs] or [home]
    where = f"Its log lies in {' and '.join(map(str, data_dirs))}"
    if channel.checkpoint_dir:
        where += f", its checkpoints in {channel.checkpoint_dir / name}"
    synced = "before each commit is answered"
    if channel.fsync == "interval":
        synced = f"every {channel.fsync_interval_seconds:g} s, so that a power cut loses what was committed since"
    packed = "packed with zstd" if channel.compression == "zstd" else "not packed"
    sealed = f"encrypted with the key {channel.encryption.active_key}" if channel.encryption else "not encrypted"
    typer.echo(f"  {where}; it is synced {synced}; records are {packed} and {sealed}.")
    if channel.encryption:
        _look_at_keys(name, channel.encryption.keys)


def _look_at_keys(name: str, paths: Mapping[str, Path]) -> None:
    """Warns of keys that cannot be used. It is no error, since the file may be meant for another machine."""
    from millrace_server.channels.keys import KeyFileError, load_keys

    for key_id, path in paths.items():
        try:
            load_keys({key_id: path})
        except KeyFileError as error:
            _complain(f"channel {name} would not open here: {error}", color=typer.colors.YELLOW)


def _load(config: Path | None, overrides: dict[str, str]) -> "Settings":
    from millrace_server.configuration.settings import SettingsError, load_settings

    try:
        return load_settings(config, overrides)
    except SettingsError as error:
        for problem in error.problems:
            _complain(f"{error.source}: {problem}")
        raise typer.Exit(EXIT_BAD_SETTINGS) from None


def _complain(sentence: str, color: str = typer.colors.RED) -> None:
    from millrace_server.logs import safe_text

    typer.secho(f"millraced: {safe_text(sentence)}", fg=color, err=True)
