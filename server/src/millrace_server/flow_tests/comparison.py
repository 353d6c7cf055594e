"""The differences between the expected events and the actual ones."""

from collections.abc import Iterator, Sequence
from itertools import takewhile

from millrace.setting_problems import shown_value
from millrace.units import counted
from millrace_server.agent.interceptors.regexes import MATCH_TIMED_OUT, Regex
from millrace_server.flow_tests.cases import Expectation, ExpectedEvent
from millrace_server.flow_tests.trial import Outcome, Row

_SHOWN_MAX = 60
_CONTEXT = 20
"""How much of a long body is shown before the first difference."""


def differences(expect: Expectation, outcome: Outcome) -> Iterator[str]:
    """Yields a sentence for each difference; nothing if the outcome is as expected."""
    for channel in dict.fromkeys([*expect.channels, *expect.counts, *outcome.channels]):
        rows = outcome.channels.get(channel, [])
        if channel in expect.channels:
            yield from _of_channel(channel, expect.channels[channel], rows)
        if channel in expect.counts and expect.counts[channel] != len(rows):
            yield f"channel {channel}: {counted(len(rows), 'event')}, expected {expect.counts[channel]}"
        if channel not in expect.channels and channel not in expect.counts:
            yield f"channel {channel}: {counted(len(rows), 'event')}, expected none; the first is {_shown_row(rows[0])}"
    if expect.dropped is not None and expect.dropped != outcome.dropped_count:
        yield f"dropped: {counted(outcome.dropped_count, 'event')}, expected {expect.dropped}"


def _of_channel(channel: str, expected: Sequence[ExpectedEvent], rows: Sequence[Row]) -> Iterator[str]:
    if len(expected) != len(rows):
        yield f"channel {channel}: {counted(len(rows), 'event')}, expected {len(expected)}"
    for index, (event, row) in enumerate(zip(expected, rows, strict=False)):
        yield from (f"channel {channel}, event {index}: {what}" for what in _of_event(event, row))
    for index, row in enumerate(rows[len(expected) :], len(expected)):
        yield f"channel {channel}, event {index}: not expected: {_shown_row(row)}"
    for index, event in enumerate(expected[len(rows) :], len(rows)):
        yield f"channel {channel}, event {index}: missing: {_shown_expected(event)}"


def _of_event(expected: ExpectedEvent, row: Row) -> Iterator[str]:
    headers, body = row
    for key, value in expected.headers.items():
        if headers.get(key) != value:
            found = shown_value(headers[key]) if key in headers else "absent"
            yield f"header {key}: {found}, expected {shown_value(value)}"
    if expected.exact_headers:
        further = (key for key in headers if key not in expected.headers)
        yield from (f"header {key}: {shown_value(headers[key])}, expected absent" for key in further)
    if expected.content is not None and expected.content != body:
        yield _of_bodies(expected.content, body)
    if expected.body_pattern is not None:
        yield from _of_pattern(expected.body_pattern, body)


def _of_pattern(pattern: str, body: bytes) -> Iterator[str]:
    try:
        is_found = Regex(pattern).search(body.decode(errors="replace")) is not None
    except TimeoutError:
        yield f"body: {MATCH_TIMED_OUT}: {shown_value(pattern)}"
    else:
        if not is_found:
            yield f"body: {_shown(body)}, expected to match {shown_value(pattern)}"


def _of_bodies(expected: bytes, body: bytes) -> str:
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(expected, body, strict=False)))
    if max(len(expected), len(body)) <= _SHOWN_MAX:
        return f"body: {_shown(body)}, expected {_shown(expected)}"
    start = max(same - _CONTEXT, 0)
    return f"body differs at byte {same}: {_shown(body[start:])}, expected {_shown(expected[start:])}"


def _shown(body: bytes) -> str:
    try:
        text = shown_value(body[:_SHOWN_MAX].decode())
    except UnicodeDecodeError:
        text = repr(body[:_SHOWN_MAX])
    return f"{text}..." if len(body) > _SHOWN_MAX else text


def _shown_row(row: Row) -> str:
    headers, body = row
    return " ".join([*(f"{key}={shown_value(value)}" for key, value in headers.items()), f"body={_shown(body)}"])


def _shown_expected(event: ExpectedEvent) -> str:
    parts = [f"{key}={shown_value(value)}" for key, value in event.headers.items()]
    if event.content is not None:
        parts.append(f"body={_shown(event.content)}")
    if event.body_pattern is not None:
        parts.append(f"body matching {shown_value(event.body_pattern)}")
    return " ".join(parts) or "any event"
