"""The reference of Flume's properties, from the table of the import."""

from itertools import groupby

from millrace_server.flume_import.component_table import Component, Row, all_components

_INTRODUCTION = """\
# Flume's properties

Every property of each component in the user guide of Flume 1.11, and what
[`millraced import-flume`](../moving_from_flume.md) makes of it.

"""
_TITLES = {
    "channel": "Channels",
    "source": "Sources",
    "sink": "Sinks",
    "selector": "Channel selectors",
    "sink processor": "Sink processors",
    "serializer": "Event serializers",
    "interceptor": "Interceptors",
    "configuration filter": "Configuration filters",
    "command line": "Java system properties and options",
    "appender": "Log4j appenders",
}


def page() -> str:
    """All components with their properties, as Markdown."""
    kinds = groupby(all_components(), key=lambda component: component.kind)
    return _INTRODUCTION + "\n".join(_of_kind(kind, list(components)) for kind, components in kinds)


def _of_kind(kind: str, components: list[Component]) -> str:
    return f"## {_TITLES[kind]}\n\n" + "\n".join(map(_of_component, components))


def _of_component(component: Component) -> str:
    becomes = f"Becomes `{component.becomes}`." if component.becomes else "Has no counterpart."
    sentences = [becomes, *(f"{text[0].upper()}{text[1:]}." for text in (component.advice, component.changed) if text)]
    rows = "\n".join(f"| `{row.name}` | {_fate(row)} |" for row in component.rows)
    return (
        f"### {component.name} ({component.kind})\n\n{' '.join(sentences)}\n\n| property | |\n| --- | --- |\n{rows}\n"
    )


def _fate(row: Row) -> str:
    if row.to:
        return f"`{row.to}`"
    if row.unneeded:
        return f"not needed: {row.unneeded}"
    return f"left out: {row.missing}"
