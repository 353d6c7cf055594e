"""The encoding of pages, compared with protobuf's of the same events."""

import random
import threading

import pytest

from millrace.columns import check_columns, columns_from_events
from millrace.v1 import channel_service_pb2 as pb
from millrace_client import Stamp
from millrace_client.producing.accumulator import Accumulator
from millrace_client.producing.batches import columns_of_request, request_of_columns, request_of_pages
from millrace_client.producing.config import ProducerConfig
from millrace_client.producing.metrics import ProducerCounters
from millrace_client.producing.pages import Page

Row = tuple[dict[str, str], bytes]
STAMP = Stamp("p", 1, 5)


def page_of(rows: list[Row]) -> Page:
    accumulator = Accumulator(ProducerConfig(batch_events_max=10_000), "p", ProducerCounters())
    buffer = accumulator.buffer("orders")
    [page] = {accumulator.put(buffer, None, body, headers, None, False)[0] for headers, body in rows}
    return page


def decoded(request: bytes) -> tuple[pb.AppendStreamRequest, list[Row]]:
    from millrace.columns import ColumnsCutter

    message = pb.AppendStreamRequest.FromString(request)
    check_columns(message.columns)
    return message, list(ColumnsCutter(message.columns).rows(0, message.columns.count))


@pytest.mark.parametrize(
    "rows",
    [
        [({}, b"")],
        [({}, b""), ({}, b"")],
        [({"a": ""}, b"x")],
        [({"a": ""}, b"x"), ({"a": ""}, b"y")],
        [({"a": "same"}, b"x"), ({"a": "same"}, b"y")],
        [({"a": "1"}, b"x"), ({}, b"y"), ({"b": "2"}, b"z")],
        [({}, b"x"), ({"a": "1"}, b"y")],
        [({"ä": "ü"}, b"x"), ({"ä": "ü"}, b"y"), ({"ä": "a"}, b"z")],
        [({"a": "é"}, b"x"), ({"a": "b"}, b"x" * 20_000)],
    ],
)
def test_request_of_a_page_holds_its_events(rows: list[Row]) -> None:
    """Channel, stamp, headers and bodies are decoded as they were."""
    message, events = decoded(request_of_pages("orders", STAMP, [page_of(rows)]))
    assert (message.channel, message.stamp.producer_id, message.stamp.last_sequence) == ("orders", "p", 5)
    assert events == rows


def test_request_of_random_pages_holds_their_events_in_order() -> None:
    """With any headers, several pages in one request contain their events in order."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - to run it again
    draw = random.Random(seed)
    for _ in range(200):
        pages = [[_row(draw) for _ in range(draw.randrange(1, 6))] for _ in range(draw.randrange(1, 4))]
        _, events = decoded(request_of_pages("orders", STAMP, [page_of(rows) for rows in pages]))
        assert events == [row for rows in pages for row in rows]


def _row(draw: random.Random) -> Row:
    headers = {name: draw.choice(["", "x", "same", "ß"]) for name in draw.sample("abcd", draw.randrange(4))}
    return headers, draw.randbytes(draw.randrange(5))


def test_request_of_columns_can_be_taken_apart_again() -> None:
    """What is split is encoded again from the message."""
    [columns] = columns_from_events([({"a": "1"}, b"x"), ({}, b"y")])
    assert columns_of_request(request_of_columns("orders", STAMP, columns)) == columns


def test_page_lets_go_of_its_content() -> None:
    """Once a page is encoded, its events are no longer held twice."""
    page = page_of([({"a": "1"}, b"x")])
    page.drop_content()
    assert (page.bodies, page.columns, page.open_count) == ([], {}, 1)
    assert isinstance(page.lock, type(threading.Lock()))
