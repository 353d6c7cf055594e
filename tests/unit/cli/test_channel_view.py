import json
from dataclasses import replace

import pytest

from millrace_client import ClaimStatus
from millrace_client.cli.channel_view import channel_document, fill_of
from tests.unit.cli.fake_client import GAUGES, LIMITS, ORDERS


def test_channel_document_of_a_channel_is_json() -> None:
    """Every field is there under its name, and times can be read by any program."""
    claim = ClaimStatus(reader_id="spark", epoch=3, remaining_seconds=1.5)
    document = json.loads(json.dumps(channel_document(replace(ORDERS, claim=claim))))
    assert document["config"]["type"] == "memory"
    assert document["config"]["keep_alive_seconds"] == 3.0
    assert document["gauges"]["body_bytes_max"] == 800_000
    assert document["counters"]["event_put_success_count"] == 0
    assert document["claim"] == {"reader_id": "spark", "epoch": 3, "remaining_seconds": 1.5}
    assert document["start_time"] == "2026-01-02T03:04:05+00:00"


def test_channel_document_without_a_claim_says_null() -> None:
    """A program can rely on the key."""
    assert channel_document(ORDERS)["claim"] is None


@pytest.mark.parametrize(
    ("queued", "taken", "body_bytes", "fill"),
    [(0, 0, 0, 0.0), (40, 10, 0, 0.5), (10, 0, 600_000, 0.75), (100, 0, 9, 1.0)],
)
def test_fill_of_a_channel_is_the_nearer_limit(queued: int, taken: int, body_bytes: int, fill: float) -> None:
    """Events and bytes both fill a channel, and taken events still hold their room."""
    gauges = replace(GAUGES, queued_events=queued, taken_events=taken, body_bytes=body_bytes)
    assert fill_of(replace(ORDERS, gauges=gauges)) == fill


def test_fill_of_a_channel_without_room_is_a_number() -> None:
    """Limits of 0 in an answer do not end in a division by zero."""
    assert fill_of(replace(ORDERS, config=replace(LIMITS, capacity=0), gauges=replace(GAUGES, body_bytes_max=0))) == 0.0
