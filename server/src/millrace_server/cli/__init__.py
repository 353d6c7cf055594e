"""The command `millraced`."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from logging import getLevelNamesMapping
from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.command_line.program import new_program, version_option
from millrace_server.cli.certificate_commands import dev_certificates
from millrace_server.cli.flow_test_command import run_flow_tests
from millrace_server.cli.flume_command import import_flume
from millrace_server.cli.health_command import health
from millrace_server.cli.log_commands import backup, log_app, restore
from millrace_server.cli.migrate_command import migrate
from millrace_server.cli.reporting import (
    EXIT_CANNOT_START,
    MEANINGS,
    failure,
    load_or_exit,
    print_check,
)
from millrace_server.cli.token_commands import token_app
from millrace_server.cli.upgrade_command import upgrade

app = new_program("millraced", MEANINGS.items())


def main() -> None:
    """Runs `millraced` with the arguments of this process."""
    app(prog_name="millraced")


@app.callback()
def _millraced(
    *,
    version: Annotated[bool, version_option("millraced", "millrace-server")] = False,
) -> None:
    """Millrace's server: transactional channels over gRPC."""


class LogLevel(StrEnum):
    """The minimum level of log entries."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _override(setting: str, metavar: str, what: str) -> Any:
    return typer.Option(metavar=metavar, help=f"{what}; overrides server.{setting}.")


@app.command(context_settings={"allow_extra_args": True})
def serve(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="TOML file. Without one the defaults apply.")
    ] = None,
    address_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write both addresses to this file as JSON, once the server accepts connections."
        ),
    ] = None,
    *,
    listen: Annotated[str | None, _override("listen", "HOST:PORT", "Address of gRPC")] = None,
    http_listen: Annotated[str | None, _override("http_listen", "HOST:PORT", "Address of HTTP")] = None,
    advertise: Annotated[str | None, _override("advertise", "HOST:PORT", "Where clients reach this server")] = None,
    data_dir: Annotated[str | None, _override("data_dir", "DIRECTORY", "Directory of the data")] = None,
    log_level: Annotated[LogLevel, typer.Option(help="Log entries of this level and above.")] = LogLevel.INFO,
) -> None:
    """Serve until SIGTERM or Ctrl-C; a second one stops at once. SIGHUP reloads the file."""
    if context.args:
        hint = "name the configuration with --config" if len(context.args) == 1 else "this command takes options only"
        raise typer.BadParameter(f"unexpected argument {context.args[0]!a}; {hint}", context)
    options = {"listen": listen, "http_listen": http_listen, "advertise": advertise, "data_dir": data_dir}
    overrides = {field: value for field, value in options.items() if value is not None}
    _open_missing_streams()
    # By default, gRPC logs failed handshakes and large headers, so that unauthenticated clients could fill the log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with _quick_imports():
        settings = load_or_exit(config, overrides)

        import structlog

        from millrace_server.configuration.settings import load_settings
        from millrace_server.errors import StartError
        from millrace_server.logs import configure_logging
        from millrace_server.process.daemon import run

    configure_logging(sys.stderr, getLevelNamesMapping()[log_level.upper()])
    try:
        run(settings, address_file, None if config is None else partial(load_settings, config, overrides))
    except StartError as error:
        raise failure(str(error), EXIT_CANNOT_START) from None
    except Exception:  # noqa: BLE001 - a bug is logged like everything else
        structlog.stdlib.get_logger(__name__).exception("the server failed")
        raise typer.Exit(EXIT_CANNOT_START) from None


def _open_missing_streams() -> None:
    """Opens standard streams that the caller has closed: otherwise files of channels would get their descriptors."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # It gets the lowest one that is free.
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - stays open


@contextmanager
def _quick_imports() -> Iterator[None]:
    """Speeds up the imports of the block: without garbage collection, and without rich, which the log does not need."""
    gc.disable()
    # structlog imports rich if it is installed, for coloured tracebacks, and that takes as long as importing gRPC.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type] # marks it as missing
    try:
        import structlog  # noqa: F401 - later imports find it

        if sys.modules["rich"] is None:
            del sys.modules["rich"]
        yield
    finally:
        # What was imported is never garbage.
        gc.freeze()
        gc.enable()


class GraphFormat(StrEnum):
    """The output format of a graph."""

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
    """Draw the flows of a configuration file: sources, interceptors, selectors, channels and sinks."""
    settings = load_or_exit(file, {})

    from millrace_server.cli import flow_drawings
    from millrace_server.configuration.flow_graph import flow_graph

    drawings = {
        GraphFormat.TEXT: flow_drawings.draw_text,
        GraphFormat.MERMAID: flow_drawings.draw_mermaid,
        GraphFormat.DOT: flow_drawings.draw_dot,
    }
    for line in drawings[graph_format](flow_graph(settings)):
        typer.echo(line)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The TOML file.")],
    *,
    show: Annotated[bool, typer.Option("--show", help="Show all settings with defaults, without secrets.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write only the problems, as JSON.")] = False,
) -> None:
    """Check a configuration file; show every problem with its line, or what the file configures."""
    if as_json:
        raise typer.Exit(print_check(file))
    settings = load_or_exit(file, {})

    from millrace_server.cli.settings_summary import show_settings, show_toml

    if show:
        show_toml(settings)
    else:
        show_settings(file, settings)


app.command("test")(run_flow_tests)
app.command()(backup)
app.command()(restore)
app.command()(migrate)
app.command()(health)
app.command()(upgrade)
app.command("dev-certificates")(dev_certificates)
app.command("import-flume")(import_flume)
app.add_typer(log_app, name="log")
app.add_typer(token_app, name="token")
