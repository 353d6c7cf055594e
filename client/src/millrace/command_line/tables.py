"""Tables without borders: fitted to a terminal, complete in a pipe."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import typer
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from millrace.command_line.notes import is_on_terminal

RowT = TypeVar("RowT")

_PLAIN_WIDTH = 10_000
"""Columns without a terminal: scripts need whole names."""

_GAP = 2
_ALWAYS_SHOWN = 2
_WIDTH_MIN = 8
_INDENT = (0, 0, 0, 2)


def show(renderable: RenderableType) -> None:
    """Writes a table or text to standard output: as wide as the terminal, or one line a row in a pipe."""
    is_terminal = is_on_terminal()
    # Rich itself takes 80 columns for a terminal that it calls dumb.
    width = shutil.get_terminal_size().columns if is_terminal else _PLAIN_WIDTH
    colors: Literal["auto"] | None = "auto" if is_terminal else None
    console = Console(width=width, force_terminal=is_terminal, color_system=colors, emoji=False)
    # Rich would exit the process on a closed pipe; so it only renders, and `echo` raises the error.
    with console.capture() as captured:
        console.print(renderable)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


@dataclass(frozen=True)
class _Column:
    heading: str
    is_number: bool
    cells: Sequence[Text]

    @property
    def width(self) -> int:
        return max(cell.cell_len for cell in (Text(self.heading), *self.cells))


class PlainTable:
    """A table whose rows keep their names and states at any width.

    On a terminal that is too narrow for all columns, the last ones are left out, and a long name is folded. Details
    have lines of their own below their row. In a pipe all columns and details are there, one line a row.
    """

    def __init__(self, columns: Sequence[_Column], details: Sequence[_Column]) -> None:
        self._columns = columns
        self._details = details
        self.row_count = len(columns[0].cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not console.is_terminal:
            columns = [*self._columns, *map(_with_dashes, self._details)]
            yield Segment("\n".join(_lines(columns)) + "\n")
            return
        columns, widths = self._fitted(options.max_width)
        begin = 0
        for row in range(self.row_count):
            details = [column.cells[row] for column in self._details if column.cells[row]]
            if details or row + 1 == self.row_count:
                yield _grid(columns, widths, range(begin, row + 1), has_heading=not begin)
                yield from (Padding(detail, _INDENT) for detail in details)
                begin = row + 1
        if not self.row_count:
            yield _grid(columns, widths, range(0), has_heading=True)

    def _fitted(self, width_max: int) -> tuple[list[_Column], list[int]]:
        """Returns the columns that fit, and their widths.

        A long name has half of the width, or what the others leave; a long second column is folded, too.
        """
        name, *others = self._columns
        widths = [min(name.width, max(width_max // 2, _WIDTH_MIN))]
        for column in others:
            left = width_max - sum(widths) - len(widths) * _GAP
            if column.width > left and len(widths) >= _ALWAYS_SHOWN:
                break
            widths.append(min(column.width, max(left, _WIDTH_MIN)))
        left = width_max - sum(widths[1:]) - (len(widths) - 1) * _GAP
        widths[0] = max(widths[0], min(name.width, left))
        return list(self._columns[: len(widths)]), widths


def _with_dashes(column: _Column) -> _Column:
    return replace(column, cells=[cell or Text("-") for cell in column.cells])


def _lines(columns: Sequence[_Column]) -> Iterator[str]:
    """Yields the heading and the rows: a grid takes a millisecond a row, and there may be thousands."""
    widths = [column.width for column in columns]
    for cells in (
        [Text(column.heading) for column in columns],
        *zip(*(column.cells for column in columns), strict=True),
    ):
        padded = []
        for column, width, cell in zip(columns, widths, cells, strict=True):
            padding = " " * (width - cell.cell_len)
            padded.append(padding + cell.plain if column.is_number else cell.plain + padding)
        yield (" " * _GAP).join(padded)


def _grid(columns: Sequence[_Column], widths: Sequence[int], rows: Iterable[int], *, has_heading: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=has_heading)
    for column, width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if column.is_number else "left"
        table.add_column(column.heading, justify=justify, width=width, overflow="fold")
    for row in rows:
        table.add_row(*(column.cells[row] for column in columns))
    return table


def plain_table(
    rows: Iterable[RowT],
    columns: Mapping[str, Callable[[RowT], str | Text]],
    details: Mapping[str, Callable[[RowT], str | Text]] | None = None,
) -> PlainTable:
    """Returns a table of rows.

    Args:
        rows: What the table lists.
        columns: A function for the cells by each heading: first the name, then the state, then the others by
            importance. A heading that ends with `>` is of a column of numbers, aligned right.
        details: The same for long text, such as reasons; empty ones have no line.
    """
    listed = list(rows)
    return PlainTable(_columns(listed, columns), _columns(listed, details or {}))


def _columns(rows: Sequence[RowT], cells: Mapping[str, Callable[[RowT], str | Text]]) -> list[_Column]:
    return [
        _Column(heading.removesuffix(">"), heading.endswith(">"), [_text(cell(row)) for row in rows])
        for heading, cell in cells.items()
    ]


def _text(cell: str | Text) -> Text:
    return Text(cell) if isinstance(cell, str) else cell
