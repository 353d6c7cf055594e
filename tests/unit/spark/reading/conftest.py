"""Fixtures for tests of reading: servers that are not there, and streams that read from them."""

import time
from collections.abc import Callable, Iterator

import pytest

import millrace_client as millrace
from millrace_spark.reading import shard_claim, stream_claims
from millrace_spark.reading import stream as stream_module
from millrace_spark.reading.offsets import OffsetJson
from millrace_spark.reading.options import parse_stream_options
from millrace_spark.reading.stream import Stream
from tests.unit.spark.fake_servers import FakeServers
from tests.waiting import WAIT_SECONDS_MAX

MakeStream = Callable[..., Stream]
"""`make_stream(**options)`; reads `orders` on `a:1` and `b:1` unless the options say otherwise."""


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> FakeServers:
    fake = FakeServers()
    monkeypatch.setattr(millrace, "connect", fake.connect)
    return fake


@pytest.fixture
def make_stream(fakes: FakeServers, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeStream]:
    monkeypatch.setattr(stream_module, "WAIT_SECONDS", 0.1)
    # A busy machine may be slow to respond for fakes.
    monkeypatch.setattr(stream_claims, "_RESPONSE_SECONDS_MAX", WAIT_SECONDS_MAX)
    monkeypatch.setattr(stream_claims, "_RELEASE_SECONDS_MAX", WAIT_SECONDS_MAX)
    monkeypatch.setattr(shard_claim, "POLL_SECONDS_MAX", 0.1)
    monkeypatch.setattr(shard_claim, "_PAUSE_SECONDS_MAX", 0.1)
    made: list[Stream] = []

    def make(**options: str) -> Stream:
        defaults = {"endpoints": "a:1,b:1", "channels": "orders", "readerId": "me"}
        made.append(Stream(parse_stream_options(defaults | options)))
        return made[-1]

    yield make
    for stream in made:
        stream.close()


def next_batch(stream: Stream, start: OffsetJson, *, is_limited: bool = True) -> OffsetJson:
    """Returns the next micro-batch."""
    give_up = time.monotonic() + WAIT_SECONDS_MAX
    while (end := stream.next_offset(start, is_limited=is_limited)) is start:
        assert time.monotonic() < give_up
    return end


def ranges(offset: OffsetJson) -> dict[str, tuple[str | int, str | int]]:
    return {name: (part["from"], part["to"]) for name, part in offset.items()}
