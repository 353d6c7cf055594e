import json
import random
import time
from datetime import UTC, datetime
from itertools import chain

import pytest

from millrace_server.agent.sources.syslog.parsing import HEADERS, Parsed, SyslogParser, TimestampParser

SEED = 31_640_005
NOW = datetime(2026, 10, 12, tzinfo=UTC)


def parse(content: bytes, *keep_fields: str, time_zone: str = "UTC") -> Parsed:
    return SyslogParser(TimestampParser(time_zone, lambda: NOW), keep_fields).parse(content)


def headers(content: bytes) -> dict[str, str]:
    """The parsed headers, without the body."""
    return {key: value for key, value in zip(HEADERS, parse(content)[1:], strict=True) if value is not None}


def milliseconds(text: str) -> str:
    return str(round(datetime.fromisoformat(text).timestamp() * 1000))


def test_parse_of_rfc_5424s_examples_finds_their_parts() -> None:
    """Section 6.5: with a byte order mark, with nanoseconds left out, with structured data, and without a message."""
    first = "<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \ufeff'su root' failed on /dev/pts/8"
    assert parse(first.encode()).body == b"'su root' failed on /dev/pts/8"
    assert headers(first.encode()) == {
        "facility": "4",
        "severity": "2",
        "timestamp": milliseconds("2003-10-11T22:14:15.003+00:00"),
        "hostname": "mymachine.example.com",
        "app_name": "su",
        "msgid": "ID47",
    }
    second = b"<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - - %% It's time to make the do-nuts."
    assert parse(second).body == b"%% It's time to make the do-nuts."
    assert headers(second) == {
        "facility": "20",
        "severity": "5",
        "timestamp": milliseconds("2003-08-24T12:14:15.000003+00:00"),
        "hostname": "192.0.2.1",
        "app_name": "myproc",
        "procid": "8710",
    }
    third = (
        b'<165>1 2003-10-11T22:14:15.003Z mymachine.example.com evntslog - ID47 [exampleSDID@32473 iut="3" eventSource='
        b'"Application" eventID="1011"][examplePriority@32473 class="high"]'
    )
    assert parse(third).body == b""
    assert json.loads(headers(third)["structured_data"]) == {
        "exampleSDID@32473": {"iut": "3", "eventSource": "Application", "eventID": "1011"},
        "examplePriority@32473": {"class": "high"},
    }


def test_parse_of_rfc_3164s_examples_finds_their_parts() -> None:
    """Section 5.4: the well-formed one, and the one without a tag."""
    first = b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed for lonvick on /dev/pts/8"
    assert parse(first).body == b"'su root' failed for lonvick on /dev/pts/8"
    assert headers(first) == {
        "facility": "4",
        "severity": "2",
        "timestamp": milliseconds("2026-10-11T22:14:15+00:00"),
        "hostname": "mymachine",
        "app_name": "su",
    }
    second = b"<13>Feb  5 17:32:18 10.0.0.99 Use the BFG!"
    assert parse(second).body == b"Use the BFG!"
    assert headers(second)["hostname"] == "10.0.0.99"
    assert headers(second)["timestamp"] == milliseconds("2026-02-05T17:32:18+00:00")


@pytest.mark.parametrize(
    ("rest", "hostname", "app_name", "procid", "body"),
    [
        (b"host app[12]: text", "host", "app", "12", b"text"),
        (b"host app[12] text", "host", "app", "12", b"text"),
        (b"host app: text: more", "host", "app", None, b"text: more"),
        (b"app[12]: text", None, "app", "12", b"text"),
        (b"app: text", None, "app", None, b"text"),
        (b"host text of many words", "host", None, None, b"text of many words"),
        (b"host http://x/y is down", "host", None, None, b"http://x/y is down"),
        (b"fe80::1 app: text", "fe80::1", "app", None, b"text"),
        (b"host app[]: text", "host", "app", None, b"text"),
        (b"host  two spaces", "host", None, None, b" two spaces"),
        (b"host app:", "host", "app", None, b""),
        (b"host", "host", None, None, b""),
        (b"h\xff a\xff[1]: \xff\n\x00", "h\ufffd", "a\ufffd", "1", b"\xff\n\x00"),
    ],
)
def test_parse_of_rfc_3164_as_it_is_sent_finds_host_and_tag(
    rest: bytes, hostname: str | None, app_name: str | None, procid: str | None, body: bytes
) -> None:
    """Programs omit the host, the tag or the process; text that only resembles a tag is text."""
    parsed = parse(b"<13>Oct 11 22:14:15 " + rest)
    assert (parsed.hostname, parsed.app_name, parsed.procid, parsed.body) == (hostname, app_name, procid, body)
    assert parsed.syslog_malformed is None


def test_parse_of_rfc_3164_with_a_precise_time_reads_it() -> None:
    """Relays put RFC 3339 times into RFC 3164 messages."""
    parsed = parse(b"<13>2003-10-11T22:14:15.003+02:00 host app: text")
    assert parsed.timestamp == milliseconds("2003-10-11T22:14:15.003+02:00")
    assert (parsed.hostname, parsed.app_name, parsed.body) == ("host", "app", b"text")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"no priority at all", "it does not begin with a priority"),
        (b"", "it does not begin with a priority"),
        (b"<>Oct 11 22:14:15 host a: b", "it does not begin with a priority"),
        (b"<1234>Oct 11 22:14:15 host a: b", "it does not begin with a priority"),
        (b"<192>Oct 11 22:14:15 host a: b", "its priority is above 191"),
        (b"<13>text without a time", "it has no time after its priority"),
        (b"<13>", "it has no time after its priority"),
        (b"<13>Oct 32 22:14:15 host a: b", "its time does not exist"),
        (b"<13>Xyz 11 22:14:15 host a: b", "its time does not exist"),
        (b"<13>Oct 11 25:14:15 host a: b", "its time does not exist"),
        (b"<13>Feb 30 22:14:15 host a: b", "its time does not exist"),
        (b"<13>1 2003-13-11T22:14:15Z host a - - - b", "its time does not exist"),
        (b"<13>1 2003-10-11T22:14:60Z host a - - - b", "its time does not exist"),
        (b"<13>1 0001-01-01T00:00:00+23:59 host a - - - b", None),
        (b"<13>1 - host a - - [broken b", "it does not have the format of its version"),
        (b'<13>1 - host a - - [a b="c] d', "it does not have the format of its version"),
        (b"<13>1 - host a - -", "it does not have the format of its version"),
        (b"<13>2 - host a - - - b", "it does not have the format of its version"),
    ],
)
def test_parse_of_what_is_malformed_keeps_it_whole_and_says_why(content: bytes, fault: str | None) -> None:
    """The whole message is kept; facility and severity are set if they are known."""
    parsed = parse(content)
    assert parsed.syslog_malformed == fault
    if fault is not None:
        assert parsed.body == content
        assert {*parsed[3:-1]} == {None}
        assert (parsed.facility is not None) is (b"<13>" in content)


@pytest.mark.parametrize(
    ("fields", "body_5424", "body_3164"),
    [
        ([], b"text", b"text"),
        (["all"], b'<13>1 2003-10-11T22:14:15Z host app 1 ID [a b="c"] text', b"<13>Oct 11 22:14:15 host app[1]: text"),
        (
            ["all", "tag"],
            b'<13>1 2003-10-11T22:14:15Z host app 1 ID [a b="c"] text',
            b"<13>Oct 11 22:14:15 host app[1]: text",
        ),
        (["priority"], b"<13>text", b"<13>text"),
        (["version"], b"1 text", b"text"),
        (["timestamp"], b"2003-10-11T22:14:15Z text", b"Oct 11 22:14:15 text"),
        (["tag", "hostname"], b"host app 1 ID text", b"host app[1]: text"),
        (["structured_data"], b'[a b="c"] text', b"text"),
        (
            ["priority", "version", "timestamp", "hostname", "tag", "structured_data"],
            b'<13>1 2003-10-11T22:14:15Z host app 1 ID [a b="c"] text',
            b"<13>Oct 11 22:14:15 host app[1]: text",
        ),
    ],
)
def test_parse_with_fields_to_keep_leaves_them_in_front_as_they_came(
    fields: list[str], body_5424: bytes, body_3164: bytes
) -> None:
    """The body is the message after the kept fields, in their original order."""
    assert parse(b'<13>1 2003-10-11T22:14:15Z host app 1 ID [a b="c"] text', *fields).body == body_5424
    assert parse(b"<13>Oct 11 22:14:15 host app[1]: text", *fields).body == body_3164


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rb'[a b="say \"hi\" \\ \] \n"]', {"a": {"b": r'say "hi" \ ] \n'}}),
        (b'[a ip="1" ip="2" ip="3" b="4"]', {"a": {"ip": ["1", "2", "3"], "b": "4"}}),
        (b"[a][b]", {"a": {}, "b": {}}),
        (b'[a b=""]', {"a": {"b": ""}}),
        (b'[a b="]"]', {"a": {"b": "]"}}),
        ('[a b="\u00fc"]'.encode(), {"a": {"b": "\u00fc"}}),
        (b'[a b="\xff"]', {"a": {"b": "\ufffd"}}),
        (b'[a b="1"][a c="2"]', {"a": {"b": "1", "c": "2"}}),
    ],
)
def test_parse_of_structured_data_returns_json(text: bytes, expected: object) -> None:
    """Escapes are removed, a repeated name has an array, and invalid UTF-8 is replaced."""
    parsed = parse(b"<13>1 - - - - - " + text + b" message")
    assert parsed.structured_data is not None
    assert json.loads(parsed.structured_data) == expected
    assert parsed.body == b"message"


def test_parse_of_dashes_returns_no_headers() -> None:
    """A dash stands for no value."""
    assert headers(b"<0>1 - - - - - -") == {"facility": "0", "severity": "0"}


@pytest.mark.parametrize(
    "content",
    [
        b"<13>1 - - - - - " + b'[a b="' * 20_000,
        b"<13>1 - - - - - [a" + b' b="c"' * 20_000,
        b"<13>1 - - - - - [" + b"a" * 100_000,
        b'<13>1 - - - - - [a b="' + b"\\" * 100_001 + b'"]',
        b"<13>1 " + b"- " * 50_000,
        b"<13>Oct 11 22:14:15 " + b"a" * 100_000 + b"[",
        b"<13>Oct 11 22:14:15 " + b"a[" * 50_000,
        b"<13>Oct 11 22:14:15 h " + b"a" * 100_000,
        b"<13>Oct 11 22:14:15" + b" " * 100_000,
        b"<13>Oct 11 22:14:15 h:" + b":" * 100_000 + b"\n",
    ],
)
def test_parse_of_what_is_made_to_take_long_does_not(content: bytes) -> None:
    """No message of 100 kB keeps the parser for longer than it takes to read it a few times."""
    began = time.process_time()
    parse(content)
    assert time.process_time() - began < 0.5


def test_parse_of_noise_never_fails() -> None:
    """Any input is an event: parsed, or whole."""
    source = random.Random(SEED)
    seeds = [
        b'<13>1 2003-10-11T22:14:15.003Z host app 1 ID [a b="c"] text',
        b"<13>Oct 11 22:14:15 host app[1]: text",
    ]
    for _ in range(5_000):
        content = bytearray(source.choice(seeds))
        for _ in range(source.randrange(1, 6)):
            position = source.randrange(len(content))
            content[position : position + source.randrange(3)] = bytes(source.choices(b'<>[]" \\:-019T\xff\n', k=1))
        parsed = parse(bytes(content))
        assert bytes(content).endswith(parsed.body), bytes(content)
        assert all(value is None or isinstance(value, str) for value in chain(parsed[1:])), bytes(content)
