import json
from pathlib import Path

import pytest

from millrace_client import Event
from millrace_client.cli.json_lines import event_of_line
from tests.unit.cli.conftest import RunMillrace
from tests.unit.cli.fake_client import FakeChannel, FakeClient


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (b'{"body": "text"}', Event(b"text")),
        (b'{"body": "\\u00e4", "headers": {"a": "b"}, "sequence": 7}', Event("ä".encode(), {"a": "b"})),
        (b'{"body_base64": "/wA="}', Event(b"\xff\x00")),
        (b'{"body": "", "headers": {}}', Event(b"")),
    ],
)
def test_event_of_line_reads_what_take_writes(line: bytes, event: Event) -> None:
    """Bodies that are no text come as base64; the sequence was another channel's."""
    assert event_of_line(line) == event


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"text", "is no JSON"),
        (b"\xff", "is no JSON"),
        (b"[]", "is no JSON object"),
        (b"{}", "has no body"),
        (b'{"body": 1}', "has no body"),
        (b'{"body": "a", "body_base64": "YQ=="}', "has both"),
        (b'{"body_base64": "!"}', "no base64"),
        (b'{"body": "a", "header": {}}', "the field 'header'"),
        (b'{"body": "a", "headers": []}', "headers that are not"),
        (b'{"body": "a", "headers": {"a": 1}}', "headers that are not"),
        (b'{"body": "\\ud800"}', "not Unicode"),
        (b'{"body": "a", "headers": {"a": "\\ud800"}}', "not Unicode"),
    ],
)
def test_event_of_line_without_one_says_why(line: bytes, message: str) -> None:
    """Each kind of mistake has its own words."""
    with pytest.raises(ValueError, match=message):
        event_of_line(line)


@pytest.fixture
def roomy(client: FakeClient) -> FakeChannel:
    return client.orders_with(capacity=1000)


def test_put_json_lines_gives_events_their_own_headers(
    roomy: FakeChannel, millrace: RunMillrace, tmp_path: Path
) -> None:
    """They win over those of the command line."""
    path = tmp_path / "events"
    path.write_text('{"body": "a", "headers": {"x": "own"}}\n{"body": "b"}\n')
    result = millrace("put", "orders", str(path), "--json-lines", "--header", "x=all", "--header", "y=1")
    assert (result.exit_code, result.stderr) == (0, "")
    assert [(event.body, event.headers) for event in roomy.events] == [
        (b"a", {"x": "own", "y": "1"}),
        (b"b", {"x": "all", "y": "1"}),
    ]


def test_put_json_lines_with_a_bad_line_stores_those_before_it(
    roomy: FakeChannel, millrace: RunMillrace, tmp_path: Path
) -> None:
    """The line is named, and the command that goes on is told."""
    path = tmp_path / "events"
    path.write_text("".join(json.dumps({"body": str(index)}) + "\n" for index in range(150)) + "oops\n")
    result = millrace("put", "orders", str(path), "--json-lines", "--producer-id", "p-1")
    assert result.exit_code == 1
    assert len(roomy.events) == 150
    assert "line 151 is no JSON" in result.stderr
    assert "--json-lines --skip-lines 150 --producer-id p-1" in result.stderr


def test_put_json_lines_with_a_bad_first_line_stores_nothing(
    orders: FakeChannel, millrace: RunMillrace, tmp_path: Path
) -> None:
    """It is most likely another kind of file."""
    path = tmp_path / "events"
    path.write_text("oops\n")
    result = millrace("put", "orders", str(path), "--json-lines")
    assert (result.exit_code, len(orders.events)) == (2, 0)
