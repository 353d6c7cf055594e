from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog

from millrace_server.agent.sinks.logger import LoggerSink, LoggerSinkConfig
from millrace_server.agent.sinks.sink import CustomSinkConfig, SinkContext
from millrace_server.channels.batches import StoredBatch, Window
from tests.channel_events import batch, stored_rows

Entry = MutableMapping[str, Any]


def config_of(**settings: Any) -> LoggerSinkConfig:
    return LoggerSinkConfig(type="logger", channel="orders", **settings)


async def test_write_logs_each_event_with_the_beginning_of_its_body() -> None:
    """The log entry has the sequence, the headers, and at most `bytes_max` of the body."""
    rows = StoredBatch(7, Window.whole(stored_rows([({"a": "b"}, b"abcdef"), ({}, b"\xff\n"), ({}, b"")])))
    sink = config_of(bytes_max=4).make(SinkContext("log", Path()))
    assert isinstance(sink, LoggerSink)
    with structlog.testing.capture_logs() as logs:
        await sink.write([rows])
    assert logs == [
        {"event": "an event", "log_level": "info", "sink": "log", **reported}
        for reported in (
            {"sequence": 7, "headers": {"a": "b"}, "body": "abcd", "body_bytes": 6},
            {"sequence": 8, "headers": {}, "body": "\\xff\n", "body_bytes": 2},
            {"sequence": 9, "headers": {}, "body": "", "body_bytes": 0},
        )
    ]


async def test_write_of_more_than_the_limit_counts_the_rest() -> None:
    """The rest of a second is counted; the count is logged in a later second, or at the end."""
    now = 0.0
    sink = LoggerSink("log", config_of(events_per_second_max=3), lambda: now)
    with structlog.testing.capture_logs() as logs:
        await sink.write([batch(1, *[b""] * 10)])
        now = 0.9
        await sink.write([batch(11, b"")])
        now = 1.0
        await sink.write([batch(12, *[b""] * 4)])
        await sink.close()
        await sink.close()
    assert [entry.get("sequence", entry.get("count")) for entry in logs] == [1, 2, 3, 8, 12, 13, 14, 1]
    assert [entry["event"] for entry in logs].count("events were not logged") == 2


def made_by_a_user(place: SinkContext, *, note: str) -> tuple[SinkContext, str]:
    return place, note


def test_make_of_a_custom_sink_calls_its_factory() -> None:
    """The factory gets the context and the options."""
    factory = f"{__name__}:made_by_a_user"
    table = {"type": "custom", "channel": "orders", "factory": factory, "options": {"note": "hello"}}
    place = SinkContext("own", Path("somewhere"))
    made: object = CustomSinkConfig.model_validate(table, strict=True).make(place)
    assert made == (place, "hello")


@pytest.mark.parametrize("factory", ["none", "no.such.module:name", "json:nothing", "json:__doc__"])
def test_config_of_a_custom_sink_that_cannot_be_made_is_refused(factory: str) -> None:
    """The configuration is checked before anything runs."""
    with pytest.raises(ValueError, match="factory"):
        CustomSinkConfig.model_validate({"type": "custom", "channel": "orders", "factory": factory}, strict=True)
