"""The generated docs/settings.md, and the lists of types and of Flume's settings in docs/agent.md."""

import re
from collections.abc import Iterator
from typing import get_args

import pytest
from pydantic import BaseModel

from millrace.setting_problems import choices_of, unwrapped
from millrace_server.agent.interceptors import AnyInterceptorConfig
from millrace_server.agent.selectors import AnySelectorConfig
from millrace_server.agent.settings import AnySinkConfig, AnySourceConfig
from millrace_server.configuration.settings import Settings
from tests.flume_imports import imported, sink_text
from tests.unit.repository.checkout import ROOT
from tools import generate_settings_page

AGENT_PAGE = (ROOT / "docs" / "agent.md").read_text()
FLUME_PAGE = (ROOT / "docs" / "moving_from_flume.md").read_text()

HDFS_VALUES = {
    "hdfs.path": "hdfs://namenode/logs/%{host}/%Y-%m-%d",
    "hdfs.codeC": "gzip",
    "hdfs.timeZone": "Europe/Berlin",
    "hdfs.roundValue": "10",
    "serializer": "avro_event",
}
"""Values for settings that are not numbers; `hdfs.round` enables rounding."""


def _models(declared: object) -> Iterator[type[BaseModel]]:
    """All models reachable from a declaration."""
    annotation, _ = unwrapped(declared)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from _models(field)
        return
    _, choices = choices_of(declared)
    for inner in choices.values() or get_args(annotation):
        yield from _models(inner)


def test_settings_page_read_as_tables_has_every_setting_with_its_default() -> None:
    """The page contains every setting of the configuration, at any depth."""
    rows = {line for line in generate_settings_page.page().splitlines() if line.startswith("| `")}
    models = set(_models(Settings)) - {Settings}
    assert len(models) > 35
    for model in models:
        for name in model.model_fields.keys() - {"type"}:
            beginning = f"| `{name}` | {generate_settings_page.default_of(model, name)} | "
            assert any(row.startswith(beginning) for row in rows), f"{model.__name__}.{name}"


def test_types_of_everything_are_on_the_agent_page() -> None:
    """Every type must be documented."""
    for union in (AnySourceConfig, AnySinkConfig, AnyInterceptorConfig, AnySelectorConfig):
        _, choices = choices_of(union)
        assert len(choices) > 3
        for tag in choices:
            assert f"`{tag}`" in AGENT_PAGE, tag


@pytest.mark.parametrize(
    ("flume", "millrace"), re.findall(r"^\| `(hdfs\.\w+|serializer)` \| `(\w+)` \|$", FLUME_PAGE, re.MULTILINE)
)
def test_setting_of_flumes_hdfs_sink_imported_is_what_the_page_says(flume: str, millrace: str) -> None:
    """The table describes what the import does."""
    lines = """
        type = hdfs
        hdfs.path = hdfs://namenode/logs
        hdfs.fileType = CompressedStream
        hdfs.round = true
    """
    without = imported(sink_text(lines)).tables["sinks"]["k"]
    table = imported(sink_text(f"{lines}{flume} = {HDFS_VALUES.get(flume, '7')}")).tables["sinks"]["k"]
    assert {key for key in table if table[key] != without.get(key)} == {millrace}
