import logging
import threading
import time

import pytest

import millrace_client as millrace
from millrace_spark import MillraceSparkError
from millrace_spark.errors import DataLossError, OptionError
from millrace_spark.reading import stream as stream_module
from millrace_spark.reading.offsets import OffsetJson
from tests.logged import messages_of
from tests.unit.spark.fake_servers import FakeServers
from tests.unit.spark.reading.conftest import MakeStream, next_batch, ranges
from tests.waiting import WAIT_SECONDS_MAX, wait_until


def test_next_offset_acknowledges_what_spark_has_done(fakes: FakeServers, make_stream: MakeStream) -> None:
    """Events before the start are removed on each server, but not those of the current batch."""
    a, b = fakes.make("a:1", event_count=5), fakes.make("b:1", event_count=3)
    stream = make_stream()
    first = next_batch(stream, stream.initial_offset())
    assert ranges(first) == {"orders@a:1": (1, 6), "orders@b:1": (1, 4)}
    assert (a.acknowledged, b.acknowledged) == ([], [])
    b.next = 9
    second = next_batch(stream, first)
    assert ranges(second) == {"orders@a:1": (6, 6), "orders@b:1": (4, 9)}
    wait_until(lambda: (a.first, b.first) == (6, 4))
    assert stream.next_offset(second, is_limited=True) is second
    wait_until(lambda: (a.first, b.first) == (6, 9))


def test_next_offset_without_events_waits_and_gives_the_start_itself(
    fakes: FakeServers, make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without events the call waits and returns the start; new events end the wait."""
    a = fakes.make("a:1")
    fakes.make("b:1")
    stream = make_stream()
    start = stream.initial_offset()
    began_at = time.monotonic()
    assert stream.next_offset(start, is_limited=True) is start
    assert time.monotonic() - began_at >= stream_module.WAIT_SECONDS
    monkeypatch.setattr(stream_module, "WAIT_SECONDS", 100 * WAIT_SECONDS_MAX)
    threading.Timer(0.05, lambda: setattr(a, "next", 2)).start()
    assert ranges(stream.next_offset(start, is_limited=True)) == {"orders@a:1": (1, 2), "orders@b:1": (1, 1)}


def test_initial_offset_is_where_the_options_say(fakes: FakeServers, make_stream: MakeStream) -> None:
    """The start is the same on each call, and lies within the channel."""
    a, b = fakes.make("a:1", event_count=9), fakes.make("b:1", event_count=9)
    a.first = 3
    stream = make_stream(startingSequences='{"orders": 5, "orders@b:1": 10}')
    start = stream.initial_offset()
    assert ranges(start) == {"orders@a:1": (5, 5), "orders@b:1": (10, 10)}
    a.next = b.next = 20
    assert stream.initial_offset() == start
    first = last = next_batch(stream, start)
    assert {name: part["from"] for name, part in first.items()} == {"orders@a:1": 5, "orders@b:1": 10}
    # One claim may see its new events before the other.
    while {part["to"] for part in last.values()} != {20}:
        last = next_batch(stream, start)
    # Skipped events are removed only once a batch is done.
    assert (a.acknowledged, b.acknowledged) == ([], [])
    stream.close()
    with pytest.raises(OptionError, match="is 21 for orders@a:1, whose next event will be 20; set it to that or less"):
        make_stream(startingSequences='{"orders": 21}').initial_offset()
    with pytest.raises(DataLossError, match="orders@a:1: events 2 to 2 are gone"):
        make_stream(startingSequences='{"orders": 2}').initial_offset()
    with pytest.raises(OptionError, match="startingSequences: names orders@c:1, which is not read; these are read:"):
        make_stream(startingSequences='{"orders@c:1": 2}').initial_offset()


def test_start_at_latest_is_a_micro_batch_of_its_own(fakes: FakeServers, make_stream: MakeStream) -> None:
    """An empty first batch logs the start, so a restart reads the events since then."""
    a = fakes.make("a:1", event_count=9)
    stream = make_stream(endpoints="a:1", startingSequences="latest")
    start = stream.initial_offset()
    assert start == {}
    began = stream.next_offset(start, is_limited=True)
    assert ranges(began) == {"orders@a:1": (10, 10)}
    assert stream.partitions(began) == []
    assert stream.next_offset(began, is_limited=True) is began
    stream.close()
    a.next = 110
    restarted = make_stream(endpoints="a:1", startingSequences="latest")
    first = next_batch(restarted, began)
    assert ranges(first) == {"orders@a:1": (10, 110)}
    # Skipped events are removed only once a batch is done.
    assert a.acknowledged == []
    assert restarted.next_offset(first, is_limited=True) is first
    wait_until(lambda: a.first == 110)


def test_start_since_a_time_is_at_the_first_event_of_each_shard(fakes: FakeServers, make_stream: MakeStream) -> None:
    """A shard without such an event starts at its latest one, which the first batch logs."""
    a, _ = fakes.make("a:1", event_count=9), fakes.make("b:1", event_count=4)
    a.holes = [range(5, 7)]
    stream = make_stream(startingTimestamp="1970-01-01T00:00:04.5Z")
    start = stream.initial_offset()
    assert start == {}
    assert ranges(stream.next_offset(start, is_limited=False)) == {"orders@a:1": (7, 10), "orders@b:1": (5, 5)}
    stream.close()
    alone = make_stream(endpoints="a:1", startingTimestamp="4500")
    assert ranges(alone.initial_offset()) == {"orders@a:1": (7, 7)}


def test_start_at_latest_in_part_reads_the_rest_at_once(fakes: FakeServers, make_stream: MakeStream) -> None:
    """The first batch holds the events of other shards, since the trigger `once` has no second batch."""
    fakes.make("a:1", event_count=9)
    fakes.make("b:1", event_count=9)
    stream = make_stream(startingSequences='{"orders@b:1": "latest"}')
    end = stream.next_offset(stream.initial_offset(), is_limited=False)
    assert ranges(end) == {"orders@a:1": (1, 10), "orders@b:1": (10, 10)}


def test_batches_of_a_channel_with_holes_end_at_events(fakes: FakeServers, make_stream: MakeStream) -> None:
    """A gap at the end of a batch does not look like a loss to the next batch or a restart."""
    a = fakes.make("a:1", event_count=20)
    a.holes = [range(10, 15)]
    stream = make_stream(endpoints="a:1", maxEventsPerTrigger="9")
    first = next_batch(stream, stream.initial_offset())
    assert ranges(first) == {"orders@a:1": (1, 15)}
    second = next_batch(stream, first)
    wait_until(lambda: a.first == 15)
    assert ranges(second) == {"orders@a:1": (15, 21)}
    stream.close()
    restarted = make_stream(endpoints="a:1", maxEventsPerTrigger="9")
    [part] = restarted.partitions(second)
    assert (part.from_sequence, part.to_sequence) == (15, 21)
    assert restarted.next_offset(second, is_limited=True) is second


def test_start_in_a_hole_is_at_the_event_behind_it(fakes: FakeServers, make_stream: MakeStream) -> None:
    """A start in a gap does not look like a loss after another shard's first batch."""
    a = fakes.make("a:1", event_count=20)
    a.holes = [range(10, 15)]
    start = make_stream(endpoints="a:1", startingSequences='{"orders": 12}').initial_offset()
    assert ranges(start) == {"orders@a:1": (15, 15)}


def test_shard_that_does_not_tell_where_its_next_event_is_waits(fakes: FakeServers, make_stream: MakeStream) -> None:
    """Other shards continue, and a run with a fixed end waits for the response."""
    fakes.make("a:1", event_count=20)
    fakes.make("b:1", event_count=2)
    stream = make_stream(maxEventsPerTrigger="10")
    stream.fix_end()
    start = stream.initial_offset()
    fakes.silent.add("a:1")
    first = next_batch(stream, start)
    assert ranges(first) == {"orders@a:1": (1, 1), "orders@b:1": (1, 3)}
    threading.Timer(0.1, fakes.silent.clear).start()
    assert ranges(stream.next_offset(first, is_limited=True))["orders@a:1"] == (1, 11)


def test_events_that_are_purged_while_a_batch_is_planned_are_reported(
    fakes: FakeServers, make_stream: MakeStream
) -> None:
    """The server refuses to read from them, but only the claim's next response shows how many they are."""
    a = fakes.make("a:1", event_count=20)
    stream = make_stream(endpoints="a:1", maxEventsPerTrigger="10")
    start = stream.initial_offset()
    fakes.silent.add("a:1")
    fakes.refusal = millrace.SequenceGoneError("sequence 11 is acknowledged")
    assert stream.next_offset(start, is_limited=True) is start
    a.first = a.next
    with pytest.raises(DataLossError, match="events 1 to 20 are gone, consumed by others, purged or expired"):
        next_batch(stream, start)


@pytest.mark.parametrize(
    ("refusal", "retry_seconds"),
    [
        (millrace.DeadlineError("no response"), "0.2"),
        (millrace.UnauthenticatedError("the token is not valid"), "0.2"),
        (millrace.CorruptError("a record is damaged"), "60"),
    ],
)
def test_shard_that_does_not_tell_for_too_long_ends_the_query(
    fakes: FakeServers, make_stream: MakeStream, refusal: millrace.MillraceError, retry_seconds: str
) -> None:
    """A shard that does not respond for too long, or has a permanent error, ends the query."""
    fakes.make("a:1", event_count=20)
    stream = make_stream(endpoints="a:1", maxEventsPerTrigger="10", retrySeconds=retry_seconds)
    start = stream.initial_offset()
    fakes.silent.add("a:1")
    fakes.refusal = refusal
    with pytest.raises(MillraceSparkError, match=f"channel orders at a:1: {refusal}"):
        next_batch(stream, start)


@pytest.mark.parametrize("is_limited", [True, False])
def test_next_offset_respects_limits_unless_spark_knows_none(
    fakes: FakeServers, make_stream: MakeStream, *, is_limited: bool
) -> None:
    """Trigger.Once reads everything."""
    fakes.make("a:1", event_count=50)
    fakes.make("b:1", event_count=2)
    stream = make_stream(maxEventsPerTrigger="10")
    end = next_batch(stream, stream.initial_offset(), is_limited=is_limited)
    expected = {"orders@a:1": (1, 9), "orders@b:1": (1, 3)}
    assert ranges(end) == (expected if is_limited else {"orders@a:1": (1, 51), "orders@b:1": (1, 3)})


def test_next_offset_within_bytes_counts_the_mean_size(fakes: FakeServers, make_stream: MakeStream) -> None:
    """The mean size comes from the contents of the channel."""
    fakes.make("a:1", event_count=50).body_bytes = 5_000
    stream = make_stream(endpoints="a:1", maxBytesPerTrigger="1000")
    assert ranges(next_batch(stream, stream.initial_offset())) == {"orders@a:1": (1, 11)}


def test_next_offset_within_bytes_leaves_a_shard_of_unknown_size_out(
    fakes: FakeServers, make_stream: MakeStream
) -> None:
    """A shard waits until its size is known, and the last known size is kept."""
    fakes.make("a:1", event_count=50).body_bytes = 5_000
    fakes.make("b:1", event_count=2).body_bytes = 20
    stream = make_stream(maxBytesPerTrigger="1000")
    start = stream.initial_offset()
    fakes.silent.add("a:1")
    first = next_batch(stream, start)
    assert ranges(first) == {"orders@a:1": (1, 1), "orders@b:1": (1, 3)}
    fakes.silent.clear()
    second = next_batch(stream, first)
    assert ranges(second)["orders@a:1"] == (1, 11)
    fakes.silent.add("b:1")
    fakes.channels["b:1", "orders"].next = 4
    wait_until(lambda: stream.progress()["orders@b:1"]["next"] == 4)
    assert ranges(next_batch(stream, second))["orders@b:1"] == (3, 4)


def test_next_offset_holds_few_events_back(fakes: FakeServers, make_stream: MakeStream) -> None:
    """Few events wait for others, or for the maximum delay."""
    a = fakes.make("a:1", event_count=3)
    stream = make_stream(endpoints="a:1", minEventsPerTrigger="10", maxTriggerDelay="60s")
    start = stream.initial_offset()
    assert stream.next_offset(start, is_limited=True) is start
    a.next = 11
    first = next_batch(stream, start)
    assert ranges(first) == {"orders@a:1": (1, 11)}
    stream.close()
    impatient = make_stream(endpoints="a:1", minEventsPerTrigger="10", maxTriggerDelay="300ms")
    a.next = 12
    assert ranges(next_batch(impatient, first)) == {"orders@a:1": (11, 12)}


def test_fixed_end_is_reached_and_acknowledged(fakes: FakeServers, make_stream: MakeStream) -> None:
    """Later events are left for another run, and the last call acknowledges the last batch."""
    a = fakes.make("a:1", event_count=5)
    stream = make_stream(endpoints="a:1", minEventsPerTrigger="100")
    stream.fix_end()
    a.next = 9
    end = next_batch(stream, stream.initial_offset())
    assert ranges(end) == {"orders@a:1": (1, 6)}
    assert stream.next_offset(end, is_limited=True) is end
    assert (a.first, a.next) == (6, 9)


def test_fixed_end_that_cannot_be_acknowledged_is_logged(
    fakes: FakeServers, make_stream: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    """The run ends, and the log names the channel with events to remove."""
    a, b = fakes.make("a:1", event_count=5), fakes.make("b:1", event_count=5)
    stream = make_stream()
    stream.fix_end()
    end = next_batch(stream, stream.initial_offset())
    fakes.away.add("b:1")
    with caplog.at_level(logging.WARNING, "millrace_spark"):
        assert stream.next_offset(end, is_limited=True) is end
    assert [message.partition(";")[0] for message in messages_of("millrace_spark", caplog)] == [
        "channel orders@b:1: did not acknowledge in time"
    ]
    assert (a.first, b.first) == (6, 1)


def test_fixed_end_waits_for_a_server_that_is_away(fakes: FakeServers, make_stream: MakeStream) -> None:
    """The run does not end while an unreachable server has unread events."""
    fakes.make("a:1", event_count=5)
    fakes.make("b:1", event_count=5)
    stream = make_stream()
    stream.fix_end()
    fakes.away.add("b:1")
    start = stream.initial_offset()
    wait_until(lambda: not stream.progress()["orders@b:1"]["reachable"])
    first = stream.next_offset(start, is_limited=True)
    assert ranges(first) == {"orders@a:1": (1, 6), "orders@b:1": (1, 1)}
    threading.Timer(0.2, fakes.away.clear).start()
    assert ranges(stream.next_offset(first, is_limited=True)) == {"orders@a:1": (6, 6), "orders@b:1": (1, 6)}


def test_server_that_is_away_too_long_ends_the_query(fakes: FakeServers, make_stream: MakeStream) -> None:
    """The error is that of the client."""
    fakes.make("a:1")
    stream = make_stream(endpoints="a:1", retrySeconds="0.2")
    start = stream.initial_offset()
    fakes.away.add("a:1")
    with pytest.raises(MillraceSparkError, match="channel orders at a:1: cannot reach a:1"):
        next_batch(stream, start)


@pytest.mark.parametrize(("ack_mode", "acknowledged"), [("commit", [5]), ("never", [])])
def test_ack_modes_remove_when_they_say(
    fakes: FakeServers, make_stream: MakeStream, ack_mode: str, acknowledged: list[int]
) -> None:
    """With `commit`, Spark's commit removes events, and with `never`, nothing does."""
    a = fakes.make("a:1", event_count=5)
    stream = make_stream(endpoints="a:1", ackMode=ack_mode)
    first = next_batch(stream, stream.initial_offset())
    a.next = 8
    second = next_batch(stream, first)
    assert a.acknowledged == []
    stream.commit(first)
    wait_until(lambda: a.acknowledged == [5] or ack_mode == "never")
    assert a.acknowledged == acknowledged
    assert ranges(second) == {"orders@a:1": (6, 8)}


def test_partitions_read_what_the_end_says_under_the_held_claim(fakes: FakeServers, make_stream: MakeStream) -> None:
    """The start that Spark passes is ignored, and an unclaimed shard is an error."""
    a = fakes.make("a:1", event_count=9)
    stream = make_stream(endpoints="a:1", maxEventsPerPartition="2")
    logged: OffsetJson = {"orders@a:1": {"from": 4, "id": a.channel_id, "to": 7}}
    parts = stream.partitions(logged)
    assert [(part.from_sequence, part.to_sequence) for part in parts] == [(4, 5), (5, 7)]
    claimed = parts[0].claimed
    assert (claimed.reader_id, claimed.epoch, claimed.is_held) == ("me", a.epoch, True)
    with pytest.raises(MillraceSparkError, match="channel orders@b:1: Spark repeats a micro-batch that reads it"):
        stream.partitions({"orders@b:1": {"from": 1, "id": "x", "to": 2}})


def test_progress_tells_how_far_each_shard_is(fakes: FakeServers, make_stream: MakeStream) -> None:
    """Progress has the position, the range, the lag and the state of the server."""
    fakes.make("a:1", event_count=9)
    stream = make_stream(endpoints="a:1", maxEventsPerTrigger="4")
    next_batch(stream, stream.initial_offset())
    reported = {"position": 5, "first": 1, "next": 10, "lag": 5, "rate": 0.0, "reachable": True}
    assert stream.progress() == {"orders@a:1": reported}
