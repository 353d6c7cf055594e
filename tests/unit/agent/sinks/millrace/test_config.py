from pathlib import Path

import pytest

from millrace.setting_file import SettingsError
from millrace_server.agent.sinks.millrace.sink import ForwardingSink
from millrace_server.agent.sinks.sink import SinkContext
from millrace_server.configuration.settings import check_settings

CHANNELS = {"orders": {"type": "memory"}}


def sink(**settings: object) -> dict[str, object]:
    named = {"type": "millrace", "channel": "orders", "endpoints": ["a:7070"], "target_channel": "orders"} | settings
    return {"channels": CHANNELS, "sinks": {"collector": {key: value for key, value in named.items() if value != ""}}}


def problems(**settings: object) -> str:
    with pytest.raises(SettingsError) as raised:
        check_settings(sink(**settings), "test")
    return str(raised.value)


def test_config_of_the_design_is_good(tmp_path: Path) -> None:
    """The example of the documentation is valid."""
    tables = sink(endpoints=["collector-1:7070", "collector-2:7070"])
    config = check_settings(tables, "test").sinks["collector"]
    assert config.type == "millrace"
    assert config.endpoints == ["collector-1:7070", "collector-2:7070"]
    assert config.inflight_batches_max == 8
    assert isinstance(config.make(SinkContext("collector", tmp_path)), ForwardingSink)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"endpoints": []}, "sinks.collector.endpoints"),
        ({"endpoints": ["nowhere"]}, r'endpoints[0]: is "nowhere"; it must be host:port'),
        ({"endpoints": ["a:7070", "b:0"]}, r'endpoints[1]: is "b:0"; its port must be at least 1'),
        ({"endpoints": ["a:7070", "a:7070"]}, 'endpoints: lists "a:7070" twice; list each one once'),
        ({"endpoints": ""}, "sinks.collector.endpoints: is missing"),
        ({"target_channel": ""}, "sinks.collector.target_channel: is missing"),
        ({"target_channel": "No Such"}, 'target_channel: is "No Such"; it must match'),
        ({"inflight_batches_max": 0}, "inflight_batches_max: is 0; it must be a whole number from 1 to 64"),
        ({"timeout_seconds": 0.0}, "timeout_seconds: is 0.0; it must be a number above 0"),
        ({"endpoint": "a:7070"}, "sinks.collector.endpoint: is not known; did you mean endpoints?"),
    ],
)
def test_config_that_cannot_work_says_which_setting_it_is(settings: dict[str, object], sentence: str) -> None:
    """The error shows the value, and what is allowed."""
    assert sentence in problems(**settings)
