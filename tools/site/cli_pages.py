"""The reference of the command lines, from their help."""

import re

import typer
from typer.cli import get_docs_for_click
from typer.main import get_command

from millrace_client.cli import program as client_program
from millrace_server import cli as server_program
from millrace_spark.landing import program as spark_program

_INTRODUCTION = """\
# Command lines

`millrace` comes with `millrace-client[cli]` and with `millrace-server`, `millraced` with `millrace-server`, and
`millrace-spark` with `millrace-spark[cli]`. Each shows the same by `--help`.

"""


def page() -> str:
    """All commands and options of the three programs, as Markdown."""
    programs = {"millrace": client_program.app, "millraced": server_program.app, "millrace-spark": spark_program.app}
    return _INTRODUCTION + "\n".join(_describe(name, app) for name, app in programs.items())


def _describe(name: str, app: typer.Typer) -> str:
    command = get_command(app)
    described: str = get_docs_for_click(obj=command, ctx=typer.Context(command), name=name)
    # One level down: the page has the title.
    return re.sub(r"^#", "##", described, flags=re.MULTILINE)
