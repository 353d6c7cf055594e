import json
import random

import pytest

from millrace_server.agent.sinks.http.requests import RequestPlanner, encode, idempotency_key
from millrace_server.agent.sources.http.events import read_events
from millrace_server.channels.batches import StoredBatch, Window
from tests.channel_events import batch, numbered, stored_rows

SEED = 2_026_112


def test_idempotency_key_of_the_same_events_cut_otherwise_is_the_same() -> None:
    """Batches differ between deliveries; their events do not."""
    whole = batch(5, *(b"%d" % number for number in range(10)))
    parts = (whole.part(0, 3), whole.part(3, 4), whole.part(4, 10))
    assert idempotency_key("channel", (whole,)) == idempotency_key("channel", parts) == "channel:5-14"
    assert idempotency_key("channel", (parts[0], parts[2])) == "channel:5-7,9-14"
    assert idempotency_key("other", (whole,)) != idempotency_key("channel", (whole,))


def test_idempotency_key_of_many_ranges_is_short_and_their_own() -> None:
    """This holds even if others took many events in between."""
    ranges = tuple(batch(2 * number + 1, b"") for number in range(300))
    keys = {idempotency_key("channel", ranges[:count]) for count in range(1, 301)}
    assert len(keys) == 300
    assert max(map(len, keys)) <= 128


@pytest.mark.parametrize(("form", "content_type"), [("json", "application/json"), ("json_lines", "application/jsonl")])
def test_encode_of_any_events_is_what_the_source_reads(form: str, content_type: str) -> None:
    """The http source reads what the http sink sends."""
    source = random.Random(SEED)
    rows = [
        ({"k": chr(source.randrange(1, 0xD800)), "\n": "\r\n"}, source.randbytes(source.randrange(20)))
        for _ in range(99)
    ]
    batches = [StoredBatch(1, Window.whole(stored_rows(rows)))]
    body = encode(batches, "json" if form == "json" else "json_lines", is_compressed=False)
    assert read_events(content_type, body, 1_000) == rows


def test_encode_of_one_event_alone_is_its_body() -> None:
    """The body is unchanged, without headers."""
    assert encode([batch(1, b"\xff\n")], "single", is_compressed=False) == b"\xff\n"
    assert json.loads(encode([batch(1, b"a")], "json", is_compressed=False)) == [{"headers": {}, "body": "a"}]


def requests_of(planner: RequestPlanner, *batches: StoredBatch, channel_id: str = "channel") -> list[list[int]]:
    return [[sequence for sequence, _ in numbered(request)] for request in planner.requests(channel_id, batches)]


def test_requests_with_some_events_accepted_leave_these_out() -> None:
    """Exactly the accepted events are left out, wherever they are."""
    planner = RequestPlanner(is_single=False)
    whole = batch(1, *[b""] * 10)
    assert requests_of(planner, whole) == [[*range(1, 11)]]
    planner.record_accepted((whole.part(2, 4), whole.part(8, 10)))
    assert requests_of(planner, whole) == [[1, 2, 5, 6, 7, 8]]
    assert requests_of(planner, whole, channel_id="created again") == [[*range(1, 11)]]


def test_requests_after_one_in_doubt_repeat_it_where_they_can() -> None:
    """Its events are a request of their own, unless some are missing."""
    planner = RequestPlanner(is_single=False)
    whole = batch(1, *[b""] * 10)
    assert requests_of(planner, whole) == [[*range(1, 11)]]
    planner.record_sent((whole.part(0, 3), whole.part(3, 6)))
    assert requests_of(planner, whole) == [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10]]
    assert requests_of(planner, whole.part(0, 6)) == [[1, 2, 3, 4, 5, 6]]
    assert requests_of(planner, whole.part(0, 5)) == [[1, 2, 3, 4, 5]]
    assert requests_of(planner, whole.part(1, 10)) == [[*range(2, 11)]]
    planner.record_rejected()
    assert requests_of(planner, whole) == [[*range(1, 11)]]


def test_requests_of_very_many_ranges_remember_a_bounded_number() -> None:
    """Memory does not grow with the number of ranges."""
    planner = RequestPlanner(is_single=True)
    for number in range(5_000):
        one = batch(2 * number + 1, b"")
        assert requests_of(planner, one) == [[2 * number + 1]]
        planner.record_accepted((one,))
    assert len(planner._accepted) <= 1_001
