"""The command `millraced`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace_server.log_cli import backup, log_app, restore

if TYPE_CHECKING:
    from millrace_server.channels.config import FileChannelConfig
    from millrace_server.settings import Settings

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
    """Serve until SIGTERM or Ctrl-C; a second one stops at once."""
    overrides = {"listen": listen, "http_listen": http_listen, "data_dir": data_dir}
    settings = _load(config, {field: value for field, value in overrides.items() if value is not None})

    import asyncio
    import sys

    import structlog

    from millrace_server.daemon import serve as serve_until_stopped
    from millrace_server.logs import configure_logging
    from millrace_server.start_error import StartError

    configure_logging(sys.stderr)
    try:
        asyncio.run(serve_until_stopped(settings, address_file))
    except StartError as error:
        _complain(str(error))
        raise typer.Exit(EXIT_CANNOT_START) from None
    except Exception:  # noqa: BLE001 - a bug of ours belongs in the log like all else
        structlog.stdlib.get_logger(__name__).exception("the server failed")
        raise typer.Exit(EXIT_CANNOT_START) from None


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
        if channel.type == "file":
            _show_log(name, channel, server.data_dir)


def _show_log(name: str, channel: "FileChannelConfig", data_dir: Path) -> None:
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


def _load(config: Path | None, overrides: dict[str, str]) -> "Settings":
    from millrace_server.settings import SettingsError, load_settings

    try:
        return load_settings(config, overrides)
    except SettingsError as error:
        for problem in error.problems:
            _complain(f"{error.source}: {problem}")
        raise typer.Exit(EXIT_BAD_SETTINGS) from None


def _complain(sentence: str) -> None:
    from millrace_server.logs import safe_text

    typer.secho(f"millraced: {safe_text(sentence)}", fg=typer.colors.RED, err=True)
