"""The table of components: it has what Flume's user guide has, and does what it says."""

import re
from pathlib import Path
from typing import Any

import pytest

from millrace.setting_problems import choices_of
from millrace_server.agent.interceptors import AnyInterceptorConfig
from millrace_server.agent.selectors import AnySelectorConfig
from millrace_server.agent.settings import AnySinkConfig, AnySourceConfig
from millrace_server.agent.sink_group_config import SinkGroupConfig
from millrace_server.agent.sinks.files.config import FilesSinkConfig
from millrace_server.channels.config import AnyChannelConfig
from millrace_server.flume_import import Outcome
from millrace_server.flume_import.component_table import OWN, Component, Row, all_components, find_component
from tests.flume_imports import imported

GUIDE = Path(__file__).parents[2] / "flume_guide" / "properties.txt"

UNIONS: dict[str, Any] = {
    "channel": AnyChannelConfig,
    "source": AnySourceConfig,
    "sink": AnySinkConfig,
    "selector": AnySelectorConfig,
    "interceptor": AnyInterceptorConfig,
}


def guide() -> list[tuple[str, str]]:
    """Each property of the guide, with its component."""
    lines = (line.split(": ") for line in GUIDE.read_text().splitlines() if not line.startswith("#"))
    return [(component, name) for component, names in lines for name in names.split()]


def component_of(title: str) -> Component:
    return next(one for one in all_components() if f"{one.kind} {one.name}" == title)


ROWS = [(component, row) for component in all_components() for row in component.rows]


def test_guide_lists_enough_properties() -> None:
    """A list that could not be read would pass all other tests here."""
    assert len(guide()) > 600
    assert len(ROWS) > 600


def test_table_has_each_property_of_the_guide() -> None:
    """What the guide lists, the table has under the same component."""
    missing = [f"{title}: {name}" for title, name in guide() if component_of(title).row_of(name) is None]
    assert not missing


def test_table_has_every_component_of_the_guide_and_no_type_twice() -> None:
    """Types are told apart by kind and name, in any case."""
    assert {title for title, _ in guide()} == {f"{one.kind} {one.name}" for one in all_components()}
    names = [(one.kind, name.lower()) for one in all_components() for name in one.types]
    assert len(names) == len(set(names))
    assert find_component("source", "TailDir").becomes == "taildir"
    assert find_component("source", "ORG.apache.flume.source.NetcatSource").name == "netcat"


def test_rows_have_exactly_one_fate() -> None:
    """Each is converted, not needed, or without a counterpart; a component without counterpart says what to do."""
    for component, row in ROWS:
        assert [bool(row.to), bool(row.unneeded), bool(row.missing)].count(True) == 1, row
        assert component.becomes or component.advice or component.name == "default", component
        if row.default is not None or row.choices:
            assert row.to, row
            assert row.read_as != OWN, row


def _models(component: Component) -> list[Any]:
    """The models of what a component becomes."""
    if component.kind == "sink processor":
        return [SinkGroupConfig]
    if component.kind == "serializer":
        return [FilesSinkConfig]
    _, choices = choices_of(UNIONS[component.kind])
    return [choices[component.becomes]]


def test_rows_that_are_converted_name_settings_that_exist() -> None:
    """The setting is one of the type that the component becomes."""
    converted = [(component, row) for component, row in ROWS if row.to and component.becomes]
    for component, row in converted:
        if component.kind != "configuration filter" and "." not in row.to:
            assert any(row.to in model.model_fields for model in _models(component)), f"{component.name}: {row.name}"


def test_rows_of_a_kafka_channel_name_settings_of_what_it_becomes() -> None:
    """It becomes a channel, and a source or sink beside it."""
    unions = {"sources": AnySourceConfig, "sinks": AnySinkConfig}
    for row in find_component("channel", "kafka").rows:
        kind, _, setting = row.to.rpartition(".")
        if kind:
            assert setting in choices_of(unions[kind])[1]["kafka"].model_fields, row


PREFIXES = {
    "channel": "a.channels.c",
    "source": "a.sources.s",
    "sink": "a.sinks.k",
    "selector": "a.sources.s.selector",
    "interceptor": "a.sources.s.interceptors.i",
    "sink processor": "a.sinkgroups.g",
    "configuration filter": "a.configfilters.f",
    "serializer": "a.sinks.k.serializer",
}
AGENT = {
    "a.channels": "c d",
    "a.channels.c.type": "memory",
    "a.channels.d.type": "memory",
    "a.sources": "s",
    "a.sources.s.type": "http",
    "a.sources.s.channels": "c d",
    "a.sources.s.filegroups": "g",
    "a.sources.s.interceptors": "i",
    "a.sources.s.interceptors.i.type": "host",
    "a.sources.s.interceptors.i.serializers": "g",
    "a.sinks": "k l",
    "a.sinks.k.type": "hdfs",
    "a.sinks.k.hdfs.fileType": "DataStream",
    "a.sinks.k.channel": "c",
    "a.sinks.l.type": "null",
    "a.sinks.l.channel": "c",
    "a.sinkgroups": "g",
    "a.sinkgroups.g.sinks": "k l",
    "a.sinkgroups.g.processor.type": "failover",
    "a.configfilters": "f",
    "a.configfilters.f.type": "env",
}
"""An agent with a component of each kind."""


def _sample(row: Row) -> str:
    """A value that the property may have."""
    if row.choices:
        return next(iter(row.choices))
    return {"flag": "true", "text": "x1"}.get(row.read_as, "2000")


def _key(component: Component, row: Row) -> str:
    name = re.sub(r"<\w+>", "g", row.name.replace(".*", ".x"))
    return f"{PREFIXES[component.kind]}.{name}"


def _agent(component: Component, row: Row) -> str:
    """The properties of an agent that has a component of a type, with one property of its own."""
    prefix = PREFIXES[component.kind]
    type_key = {"sink processor": f"{prefix}.processor.type", "serializer": prefix}.get(
        component.kind, f"{prefix}.type"
    )
    lines = {**AGENT, _key(component, row): _sample(row), type_key: component.types[-1]}
    if component.kind == "sink processor":
        lines["a.sinkgroups.g.sinks"] = "k l"
    return "".join(f"{name} = {value}\n" for name, value in lines.items())


@pytest.mark.parametrize(
    "component", [one for one in all_components() if one.kind in PREFIXES], ids=lambda one: one.name
)
def test_properties_imported_one_by_one_have_the_fates_of_their_rows(component: Component) -> None:
    """None is unknown, and what is not needed or missing gives the reason of the table."""
    for row in component.rows:
        result = imported(_agent(component, row))
        key = _key(component, row)
        sentences = {note.sentence for note in result.notes if note.key == key}
        outcome = result.ledger.outcomes[key]
        assert not result.ledger.unsettled, key
        if row.missing or not (component.becomes or component.name == "default"):
            assert outcome is Outcome.LEFT_OUT, key
        elif row.unneeded:
            assert (outcome, row.unneeded in sentences) == (Outcome.UNNEEDED, True), key
        elif row.read_as != OWN:
            assert outcome is Outcome.CONVERTED, key
        elif not row.name.endswith(".*"):
            assert not any("is no property" in sentence for sentence in sentences), key
