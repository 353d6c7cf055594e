"""The settings of a sink of type `http`."""

from collections.abc import Mapping

import pytest
from pydantic import ValidationError

from millrace.setting_problems import describe_problems
from millrace_server.agent.sinks.http.config import HttpSinkConfig


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"url": "example.com"},
            'url: is "example.com"; it must be an HTTP URL in ASCII, such as "https://example.com/events"',
        ),
        ({"url": "ftp://example.com"}, None),
        ({"url": "http://"}, None),
        ({"url": "http://example.com:0/"}, None),
        ({"url": "http://example.com:99999/"}, None),
        ({"url": "http://example.com/a b"}, None),
        ({"url": "http://example.com/#part"}, None),
        ({"url": "http://[::1/"}, None),
        (
            {"url": "http://user:secret@example.com"},
            "url: has a user name before its host; use headers.Authorization for credentials",
        ),
        ({"headers": {"Host": "a"}}, "headers: lists Host, which the sink sets itself"),
        ({"headers": {"A": "a", "a": "b"}}, "headers: lists a header twice; the names of headers are case-insensitive"),
        ({"headers": {"a": "b\r\nc: d"}}, None),
        ({"headers": {"a:": "b"}}, None),
        ({"statuses": {"9xx": "retry"}}, None),
        ({"statuses": {"404": "ignore"}}, 'statuses.404: is "ignore"; it must be "settle" or "retry" or "reject"'),
        ({"answer_seconds_max": 0.0}, "answer_seconds_max: is 0.0; it must be a number above 0, at most 3_600"),
    ],
)
def test_config_that_is_invalid_is_reported_in_a_sentence(settings: Mapping[str, object], problem: str | None) -> None:
    """The setting, its value, and what is allowed; no secret is repeated."""
    with pytest.raises(ValidationError) as raised:
        HttpSinkConfig.model_validate(
            {"type": "http", "channel": "orders", "url": "http://127.0.0.1/", **settings}, strict=True
        )
    [reported] = describe_problems(raised.value, HttpSinkConfig)
    assert problem is None or str(reported) == problem
    assert "user:secret" not in str(reported)
