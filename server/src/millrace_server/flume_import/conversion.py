"""Conversion of a component according to the table of components."""

from collections.abc import Callable

from millrace_server.flume_import.component_table import CHOICE, OWN, Component, Row
from millrace_server.flume_import.options import Options, Table, set_values
from millrace_server.flume_import.references import is_to_be_filled_in

OwnCode = Callable[[Options, Table], None]
"""Converts the properties that the table leaves to a component's code; may change what was converted before."""


def convert(
    component: Component, options: Options, own: OwnCode | None = None, type_key: str | None = "type"
) -> Table | None:
    """Returns the table of a component; None if it has no counterpart, which is recorded.

    `type_key` is the property that names its type; None if that is the key of the component itself.
    """
    if not component.becomes:
        _leave_out(component, options)
        return None
    table: Table = {"type": component.becomes}
    for row in component.rows:
        if row.to and row.read_as != OWN:
            _convert_row(row, options, table)
    if own is not None:
        own(options, table)
    if component.changed:
        options.changed(type_key, component.changed)
    settle_rest(component, options)
    return table


def _leave_out(component: Component, options: Options) -> None:
    for key in options.unread():
        row = component.row_of(key)
        if row is not None and row.missing:
            options.left_out(key, row.missing)
    options.omit(f"{component.types[-1]} has no counterpart: {component.advice}")


def _convert_row(row: Row, options: Options, table: Table) -> None:
    value = _read(row, options) if row.name in options else None
    set_values(table, **{row.to: row.default if value is None else value})


def _read(row: Row, options: Options) -> object:
    if is_to_be_filled_in(options.peek(row.name)):
        return options.text(row.name)
    reader: dict[str, Callable[[str], object]] = {
        "text": lambda key: options.text(key) or None,
        "number": options.number,
        "seconds": options.seconds,
        "milliseconds": options.milliseconds,
        "flag": options.flag,
        CHOICE: lambda key: options.choice(key, row.choices),
    }
    return reader[row.read_as](row.name)


def settle_rest(component: Component, options: Options) -> None:
    """Records the outcome for unread properties according to the table; properties that it lacks are unknown."""
    for key in options.unread():
        options.discard(key)
        row = component.row_of(key)
        if row is None:
            options.left_out(key, f"is not a property of {component.name} in Flume's user guide")
        elif row.missing:
            options.left_out(key, row.missing)
        else:
            options.unneeded(key, row.unneeded or "has no effect together with the other properties")
