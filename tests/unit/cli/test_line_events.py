import json
from pathlib import Path
from zlib import crc32

import pytest

from millrace_client import Event
from millrace_client.cli.line_events import LineRouting, event_of_line
from millrace_client.producing.channel_buffer import BUCKETS
from millrace_client.producing.routing import ranked
from tests.unit.cli.conftest import RunMillrace
from tests.unit.cli.fake_channel import FakeChannel
from tests.unit.cli.fake_client import FakeClient


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
    """Bodies that are not text are in base64; the sequence of the other channel is ignored."""
    assert event_of_line(line) == event


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"text", "is not JSON"),
        (b"\xff", "is not JSON"),
        pytest.param(b"[" * 100_000, "is nested too deeply", id="deep"),
        (b"[]", "is not a JSON object"),
        (b"{}", "has no body"),
        (b'{"body": 1}', "has no body"),
        (b'{"body": "a", "body_base64": "YQ=="}', "has both"),
        (b'{"body_base64": "!"}', "not base64"),
        (b'{"body": "a", "header": {}}', "the field 'header'"),
        (b'{"body": "a", "headers": []}', "headers that are not"),
        (b'{"body": "a", "headers": {"a": 1}}', "headers that are not"),
        (b'{"body": "\\ud800"}', "not Unicode"),
        (b'{"body": "a", "headers": {"a": "\\ud800"}}', "not Unicode"),
    ],
)
def test_event_of_line_without_one_says_why(line: bytes, message: str) -> None:
    """Each kind of mistake has a message of its own."""
    with pytest.raises(ValueError, match=message):
        event_of_line(line)


@pytest.fixture
def roomy(client: FakeClient) -> FakeChannel:
    return client.orders_with(capacity=1000)


def test_put_json_lines_gives_events_their_own_headers(
    roomy: FakeChannel, millrace: RunMillrace, tmp_path: Path
) -> None:
    """They replace those of the command line."""
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
    """The error names the line and gives the command that continues after it."""
    path = tmp_path / "events"
    path.write_text("".join(json.dumps({"body": str(index)}) + "\n" for index in range(150)) + "oops\n")
    result = millrace("put", "orders", str(path), "--json-lines", "--producer-id", "p-1")
    assert result.exit_code == 1
    assert len(roomy.events) == 150
    assert "line 151 is not JSON" in result.stderr
    assert "--json-lines --skip-lines 150 --producer-id p-1" in result.stderr


def test_put_json_lines_with_a_bad_first_line_stores_nothing(
    orders: FakeChannel, millrace: RunMillrace, tmp_path: Path
) -> None:
    """The file probably has another format."""
    path = tmp_path / "events"
    path.write_text("oops\n")
    result = millrace("put", "orders", str(path), "--json-lines")
    assert (result.exit_code, len(orders.events)) == (2, 0)


ENDPOINTS = ["a:1", "b:1", "c:1"]


def test_places_of_one_server_are_all() -> None:
    """Lines are not inspected."""
    assert LineRouting(["a:1"], None).indexes_by_server([b"a", b"b"], 7) == [range(2)]


def test_places_without_a_key_go_in_turn_through_the_whole_input() -> None:
    """The server of a line does not depend on the batches."""
    routing = LineRouting(ENDPOINTS, None)
    assert routing.indexes_by_server([b""] * 4, 0) == [[0, 3], [1], [2]]
    assert routing.indexes_by_server([b""] * 4, 4) == [[2], [0, 3], [1]]


def test_places_of_keys_are_the_homes_that_producers_give_them() -> None:
    """A key has the same server as in other programs with the same servers."""
    keys = [f"customer-{number}" for number in range(50)]
    events = [Event(b"", {"customer": key}) for key in keys]
    indexes = LineRouting(ENDPOINTS, "customer").indexes_by_server(events, 0)
    for endpoint, its_indexes in zip(ENDPOINTS, indexes, strict=True):
        assert its_indexes
        for index in its_indexes:
            assert ranked(crc32(keys[index].encode()) % BUCKETS, ENDPOINTS)[0] == endpoint
