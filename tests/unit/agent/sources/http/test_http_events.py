import base64
import json
import random
import time
from contextlib import suppress

import pytest

from millrace_server.agent.sources.http.bodies import HttpRefusalError
from millrace_server.agent.sources.http.events import Event, read_events

SEED = 94_113

JSON, LINES = "application/json", "application/x-ndjson"


def read(content_type: str, body: bytes, events_max: int = 1_000) -> list[Event]:
    return read_events(content_type, body, events_max)


def test_read_events_of_flumes_array_returns_them() -> None:
    """Flume's JSON handler accepts the same: headers may be omitted, and binary bodies have a field of their own."""
    body = [
        {"headers": {"timestamp": "434324343", "host": "a\u00e4"}, "body": "text \u20ac"},
        {"body": ""},
        {"headers": None, "body_base64": base64.b64encode(b"\xff\x00").decode(), "body": None},
        {"headers": {}, "body": "\n"},
    ]
    expected = [
        ({"timestamp": "434324343", "host": "a\u00e4"}, "text \u20ac".encode()),
        ({}, b""),
        ({}, b"\xff\x00"),
        ({}, b"\n"),
    ]
    assert read(JSON, json.dumps(body).encode()) == expected
    assert read(JSON, json.dumps(body, ensure_ascii=False, indent=1).encode()) == expected
    assert read(LINES, b"\n".join(json.dumps(event).encode() for event in body)) == expected


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (JSON, b' [ {"body" : "a"} , {"body":"b"}\n]\n'),
        ("Application/JSON; charset=UTF-8", b'[{"body":"a"},{"body":"b"}]'),
        ("application/json; charset=utf-8", b'\xef\xbb\xbf[{"body":"a"},{"body":"b"}]'),
        ("application/json; charset=utf-16", '[{"body":"a"},{"body":"b"}]'.encode("utf-16")),
        ("application/json; charset=utf-32", '[{"body":"a"},{"body":"b"}]'.encode("utf-32")),
        (LINES, b'{"body":"a"}\n{"body":"b"}'),
        ("application/jsonl", b'\n\n {"body":"a"} \r\n \n{"body":"b"}\r\n'),
    ],
)
def test_read_events_of_any_json_that_is_allowed_returns_them(content_type: str, body: bytes) -> None:
    """Space, character sets and empty lines make no difference."""
    assert read(content_type, body) == [({}, b"a"), ({}, b"b")]


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/octet-stream", "nonsense", "a/b; c", "\xff"])
def test_read_events_of_another_type_takes_the_body_unchanged(content_type: str) -> None:
    """The body becomes one event, whatever it contains."""
    for body in (b"", b"[1]\n\xff\x00"):
        assert read(content_type, body) == [({}, body)]


@pytest.mark.parametrize(("content_type", "body"), [(JSON, b"[]"), (JSON, b" [ ] "), (LINES, b""), (LINES, b"\n \n")])
def test_read_events_of_none_returns_none(content_type: str, body: bytes) -> None:
    """A request without events is not an error."""
    assert read(content_type, body) == []


def test_read_events_of_one_object_is_like_an_array_of_one() -> None:
    """This is convenient with curl."""
    assert read(JSON, b'{"body":"a"}') == [({}, b"a")]


@pytest.mark.parametrize(
    ("content_type", "body", "sentence"),
    [
        (JSON, b"", "the body is not JSON at character 0: Expecting value"),
        (JSON, b"{}", "event 0 has no body; it must have body or body_base64"),
        (JSON, b"5", "the body is 5; it must be an array of events"),
        (JSON, b"null", "the body is null; it must be an array of events"),
        (JSON, b"[", "event 0 is not JSON at character 1: Expecting value"),
        (JSON, b'[{"body":"a"}', "the body is not JSON at character 13: a comma or ] is missing"),
        (JSON, b'[{"body":"a"},]', "event 1 is not JSON at character 14: Expecting value"),
        (JSON, b'[{"body":"a"}] x', "the body has data after its JSON value, at character 15"),
        (JSON, b'{"body":"a"}{"body":"b"}', "the body has data after its JSON value, at character 12"),
        (JSON, b'[{"body":"a"},7]', "event 1 is 7; it must be an object of headers and body"),
        (JSON, b'[["a"]]', "event 0 is an array; it must be an object of headers and body"),
        (JSON, b'[{"body":7}]', "event 0.body is 7; it must be text"),
        (
            JSON,
            b'[{"body":"a","body_base64":"YQ=="}]',
            "event 0 has body and body_base64; it must have body or body_base64",
        ),
        (JSON, b'[{"body_base64":"Y"}]', 'event 0.body_base64 is "Y"; it must be base64'),
        (JSON, b'[{"body_base64":"\xc3\xa4"}]', 'event 0.body_base64 is "\\u00e4"; it must be base64'),
        (JSON, b'[{"body_base64":{}}]', "event 0.body_base64 is an object; it must be text"),
        (
            JSON,
            b'[{"body":"a","user":1}]',
            'event 0 has "user", which is unknown; allowed are headers, body and body_base64',
        ),
        (
            JSON,
            b'[{"headers":[],"body":"a"}]',
            "event 0.headers is an array; it must be an object whose values are text",
        ),
        (JSON, b'[{"headers":{"n":1},"body":"a"}]', 'event 0.headers["n"] is 1; it must be text'),
        (JSON, b'[{"headers":{"n":null},"body":"a"}]', 'event 0.headers["n"] is null; it must be text'),
        (JSON, b'[{"body":"\\ud800"}]', "event 0.body has an unpaired surrogate, which cannot be encoded"),
        (JSON, b'[{"headers":{"\\udfff":""},"body":""}]', None),
        (JSON, b'[{"headers":{"a":"\\udfff"},"body":""}]', None),
        (JSON, b'[{"body":"\xff"}]', "the body is not utf-8 at byte 10"),
        (JSON, b"[" + b"9" * 5_000 + b"]", None),
        (JSON, b"[" * 100_000, None),
        (JSON, b'{"a":' * 100_000, None),
        (LINES, b'{"body":"a"}\n[]', "line 2 is an array; it must be an object of headers and body"),
        (LINES, b'{"body":"a"}\n\n{"body":', "line 3 is not JSON at character 8: Expecting value"),
        (LINES, b'{"body":"a"} {"body":"b"}', "line 1 has more than one JSON value"),
        ("application/json; charset=latin-1", b"[]", None),
    ],
)
def test_read_events_of_what_is_wrong_says_what(content_type: str, body: bytes, sentence: str | None) -> None:
    """The error is a clear sentence: the place, the value, and what is allowed."""
    with pytest.raises(HttpRefusalError) as raised:
        read(content_type, body)
    assert raised.value.refusal.status in {400, 415}
    assert sentence is None or raised.value.refusal.message == sentence
    assert len(raised.value.refusal.message) < 300


@pytest.mark.parametrize(("content_type", "separator"), [(JSON, b","), (LINES, b"\n")])
def test_read_events_above_the_limit_is_refused(content_type: str, separator: bytes) -> None:
    """The limit itself is allowed; beyond it reading ends at once."""
    body = separator.join([b'{"body":""}'] * 10)
    body = b"[" + body + b"]" if content_type == JSON else body
    assert len(read(content_type, body, 10)) == 10
    with pytest.raises(HttpRefusalError, match="more than 9 events") as raised:
        read(content_type, body, 9)
    assert raised.value.refusal.status == 413


def test_read_events_with_more_headers_than_a_batch_can_have_is_refused() -> None:
    """A channel could not store it."""
    headers = {str(number): "" for number in range(257)}
    with pytest.raises(HttpRefusalError, match=r"event 0\.headers has 257 headers; at most 256 are allowed"):
        read(JSON, json.dumps([{"headers": headers, "body": ""}]).encode())


@pytest.mark.parametrize("content_type", [JSON, LINES])
def test_read_events_of_damaged_json_never_fails_otherwise(content_type: str) -> None:
    """Any input is parsed or refused with a sentence."""
    source = random.Random(SEED)
    events = [{"headers": {"a": "b"}, "body": "c"}, {"body_base64": "YWJj"}]
    seed = json.dumps(events).encode() if content_type == JSON else b"\n".join(json.dumps(e).encode() for e in events)
    refused = 0
    for _ in range(2_000):
        body = bytearray(seed)
        for _ in range(source.randrange(1, 4)):
            body[source.randrange(len(body))] = source.choice(b'[]{}",:\\u0 1nt\xff\n')
        try:
            read(content_type, bytes(body))
        except HttpRefusalError as error:
            refused += error.refusal.status == 400
    assert refused > 1_000


def test_read_events_of_what_is_made_to_take_long_does_not() -> None:
    """A malicious body of a megabyte costs about as much as reading it."""
    for body in (
        b" " * 1_000_000,
        b"[" + b" " * 1_000_000,
        b'[{"body":"' + b"\\u0041" * 160_000 + b'"}]',
        b'"' * 1_000_000,
    ):
        began = time.process_time()
        with suppress(HttpRefusalError):
            read(JSON, body)
        assert time.process_time() - began < 2.0
