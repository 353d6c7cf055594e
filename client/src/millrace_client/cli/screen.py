"""Tables on standard output: with colours on a terminal, whole and plain anywhere else."""

import sys

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

_PLAIN_WIDTH = 10_000
"""Columns where no terminal bounds them: a script wants whole names."""


def is_on_terminal() -> bool:
    """Tells whether a person reads standard output. It is None where the process was started without one."""
    return sys.stdout is not None and sys.stdout.isatty()


def show(renderable: RenderableType) -> None:
    """Writes a table or text to standard output.

    Rich itself would end the process where the reader has gone; so it only draws, and writing raises as it should.
    """
    is_terminal = is_on_terminal()
    console = Console() if is_terminal else Console(width=_PLAIN_WIDTH, color_system=None)
    with console.capture() as captured:
        console.print(renderable)
    drawn = captured.get()
    typer.echo(drawn if is_terminal else "\n".join(line.rstrip() for line in drawn.splitlines()), nl=not is_terminal)


def plain_table(*headings: str) -> Table:
    """A table without borders. A heading that ends with `>` stands over numbers, which are put to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        name = heading.removesuffix(">")
        table.add_column(name, justify="right" if name != heading else "left", no_wrap=True)
    return table


def text(content: str, style: str = "") -> Text:
    """Text that is shown as it is: rich reads no markup in it."""
    return Text(content, style=style)
