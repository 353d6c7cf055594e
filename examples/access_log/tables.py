"""Tables for people."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

_BAR_WIDTH = 30


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table; numbers stand right, with thousands marked."""
    cells = [list(row) for row in rows]
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        is_number = all(isinstance(row[index], int | float | None) for row in cells)
        made.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        made.add_row(*map(_cell, row))
    return made


def bar(value: int, value_max: int) -> str:
    """A bar whose length tells a value beside others."""
    return "█" * max(round(value / max(value_max, 1) * _BAR_WIDTH), 1 if value else 0)


def _cell(value: object) -> Text:
    # Text, since what comes out of a log may look like rich's markup.
    match value:
        case None:
            return Text("-")
        case int():
            return Text(f"{value:,}")
        case float():
            return Text(f"{value:.1f}")
        case _:
            return Text(str(value))
