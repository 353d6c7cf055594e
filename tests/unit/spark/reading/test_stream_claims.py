"""The claims of a stream, and channels and servers that come and go under it."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import millrace_client as millrace
from millrace_spark import MillraceSparkError
from millrace_spark.errors import DataLossError
from millrace_spark.reading import stream_claims
from tests.unit.spark.fake_servers import FakeServers
from tests.unit.spark.reading.conftest import MakeStream, next_batch, ranges
from tests.waiting import WAIT_SECONDS_MAX, wait_until


def test_claim_whose_lease_expired_is_claimed_again(fakes: FakeServers, make_stream: MakeStream) -> None:
    """If no other reader has claimed the channel, the query continues with a new epoch."""
    a = fakes.make("a:1", event_count=5)
    stream = make_stream(endpoints="a:1")
    first = next_batch(stream, stream.initial_offset())
    [before] = stream.partitions(first)
    a.reader_id, a.next = None, 8
    second = next_batch(stream, first)
    assert ranges(second) == {"orders@a:1": (6, 8)}
    wait_until(lambda: a.first == 6)
    [after] = stream.partitions(second)
    assert after.claimed.epoch == a.epoch > before.claimed.epoch


@pytest.mark.parametrize("reader_id", ["me", "another"])
def test_claim_that_was_taken_over_ends_the_query(fakes: FakeServers, make_stream: MakeStream, reader_id: str) -> None:
    """The error names the other reader, which may be another run of this query."""
    a = fakes.make("a:1")
    stream = make_stream(endpoints="a:1")
    start = stream.initial_offset()
    with fakes.lock:
        a.reader_id, a.epoch = reader_id, a.epoch + 1
    with pytest.raises(
        MillraceSparkError, match=rf"^channel orders@a:1: reader '{reader_id}' has taken over the claim"
    ):
        next_batch(stream, start)


def test_fault_of_a_claims_thread_ends_the_query(fakes: FakeServers, make_stream: MakeStream) -> None:
    """Otherwise the query would stay idle forever."""
    fakes.make("a:1", event_count=3)
    stream = make_stream(endpoints="a:1")
    start = stream.initial_offset()
    fakes.fault = ValueError("cannot be decoded")
    with pytest.raises(
        MillraceSparkError, match=r"orders@a:1: .*because of a bug in the connector \(ValueError: cannot be"
    ):
        next_batch(stream, next_batch(stream, start))


def test_refused_token_leaves_the_query_its_claim(fakes: FakeServers, make_stream: MakeStream) -> None:
    """Another token may come into the file before the lease ends; the query then goes on."""
    state = fakes.make("a:1", event_count=3)
    stream = make_stream(endpoints="a:1")
    first = next_batch(stream, stream.initial_offset())
    epoch, state.next = state.epoch, 6
    fakes.fault = millrace.TokenExpiredError("the token has expired")
    threading.Timer(0.1, setattr, (fakes, "fault", None)).start()
    wait_until(lambda: stream.progress()["orders@a:1"]["next"] == 6)
    assert ranges(next_batch(stream, first)) == {"orders@a:1": (4, 6)}
    assert state.epoch == epoch


def test_channel_that_is_created_again_under_the_query_is_reported(fakes: FakeServers, make_stream: MakeStream) -> None:
    """The sequences of the new channel start over, so continuing would skip events."""
    fakes.make("a:1", event_count=5)
    stream = make_stream(endpoints="a:1")
    first = next_batch(stream, stream.initial_offset())
    fakes.make("a:1", event_count=9)
    with pytest.raises(DataLossError, match="was created again"):
        next_batch(stream, first)
    stream.close()
    lenient = make_stream(endpoints="a:1", failOnDataLoss="false")
    created_again = fakes.make("a:1", event_count=9)
    assert ranges(next_batch(lenient, first)) == {"orders@a:1": (1, 10)}
    assert created_again.acknowledged == []


def test_channel_that_comes_joins_by_itself(
    fakes: FakeServers, make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new channel is read from its oldest event, and a claimed one does not end the query."""
    monkeypatch.setattr(stream_claims, "DISCOVERY_SECONDS", 0.01)
    fakes.make("a:1", "orders-1")
    stream = make_stream(endpoints="a:1", channels="orders-*")
    start = stream.initial_offset()
    with fakes.lock:
        fakes.make("a:1", "other", event_count=2)
        held = fakes.make("a:1", "orders-2", event_count=2)
        held.reader_id = "another"
        fakes.make("a:1", "orders-3", event_count=2)
    end = next_batch(stream, start)
    assert ranges(end) == {"orders-1@a:1": (1, 1), "orders-3@a:1": (1, 3)}
    held.reader_id = None
    assert ranges(next_batch(stream, end))["orders-2@a:1"] == (1, 3)


def test_channel_that_is_deleted_and_comes_back_joins_again(
    fakes: FakeServers, make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A query that tolerates lost events waits for the channel, although no pattern has it look for channels."""
    monkeypatch.setattr(stream_claims, "DISCOVERY_SECONDS", 0.01)
    fakes.make("a:1", event_count=5)
    stream = make_stream(endpoints="a:1", failOnDataLoss="false")
    first = next_batch(stream, stream.initial_offset())
    with fakes.lock:
        del fakes.channels["a:1", "orders"]
    wait_until(lambda: stream.next_offset(first, is_limited=True) is first and "try again" in caplog.text)
    fakes.make("a:1", event_count=3)
    assert ranges(next_batch(stream, first)) == {"orders@a:1": (1, 4)}
    assert caplog.text.count("try again") == 1


def test_claim_that_is_granted_after_close_is_released(
    fakes: FakeServers, make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that is granted during a close is released."""
    monkeypatch.setattr(stream_claims, "DISCOVERY_SECONDS", 0.01)
    fakes.make("a:1", "orders-1")
    is_granted, is_closing = threading.Event(), threading.Event()

    def slow_claim(channel: Any, options: Any, *_args: Any, **_settings: Any) -> Any:
        granted = channel.claim(options.reader_id, options.lease_seconds, takeover=True)
        if channel.name == "orders-2":
            is_granted.set()
            is_closing.wait(WAIT_SECONDS_MAX)
        return granted

    monkeypatch.setattr(stream_claims, "reclaim", slow_claim)
    stream = make_stream(endpoints="a:1", channels="orders-*")
    late = fakes.make("a:1", "orders-2")
    assert is_granted.wait(WAIT_SECONDS_MAX)
    threading.Timer(0.1, is_closing.set).start()
    stream.close()
    assert late.reader_id is None
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("millrace-claim-orders-2@")]


def test_shard_that_is_left_out_must_be_drained(fakes: FakeServers, make_stream: MakeStream) -> None:
    """A removed shard stays in the checkpoint if it is empty; otherwise its unread events are reported."""
    fakes.make("a:1", event_count=1)
    b = fakes.make("b:1", event_count=5)
    stream = make_stream()
    end = next_batch(stream, stream.initial_offset())
    stream.close()
    b.next = 8
    with pytest.raises(DataLossError, match=r"orders@b:1: .*no longer name it, and its events 6 to 7 have not"):
        next_batch(make_stream(endpoints="a:1"), end)
    fakes.away.add("b:1")
    with pytest.raises(DataLossError, match="it cannot be checked for unread events: cannot reach b:1"):
        next_batch(make_stream(endpoints="a:1"), end)
    fakes.away.clear()
    b.first = 8
    fakes.channels["a:1", "orders"].next = 3
    again = next_batch(make_stream(endpoints="a:1"), end)
    assert ranges(again) == {"orders@a:1": (2, 3), "orders@b:1": (6, 6)}


def test_close_frees_all_channels(fakes: FakeServers, make_stream: MakeStream) -> None:
    """All claims are released, even on a second close or after a failed start."""
    a, b = fakes.make("a:1"), fakes.make("b:1")
    stream = make_stream()
    assert (a.reader_id, b.reader_id) == ("me", "me")
    stream.close()
    stream.close()
    assert (a.reader_id, b.reader_id) == (None, None)
    b.reader_id = "another"
    with pytest.raises(MillraceSparkError, match="channel orders at b:1: reader 'another' has claimed the channel"):
        make_stream()
    assert a.reader_id is None


def test_close_under_a_thread_that_plans_looks_like_no_loss(fakes: FakeServers, make_stream: MakeStream) -> None:
    """The end of its claim does not end the wait for events, and the channel is not claimed again."""
    a = fakes.make("a:1", event_count=1)
    stream = make_stream(endpoints="a:1", failOnDataLoss="true")
    first = next_batch(stream, stream.initial_offset())
    epoch = a.epoch
    with ThreadPoolExecutor(1) as planning:
        waiting = planning.submit(stream.next_offset, first, is_limited=True)
        stream.close()
        assert waiting.result(WAIT_SECONDS_MAX) is first
    assert stream.next_offset(first, is_limited=True) is first
    assert (a.reader_id, a.epoch) == (None, epoch)


def test_idle_claims_are_renewed(fakes: FakeServers, make_stream: MakeStream) -> None:
    """Claims are renewed during a long batch, even if events are waiting."""
    a, b = fakes.make("a:1", event_count=5), fakes.make("b:1")
    make_stream(leaseSeconds="0.1")
    wait_until(lambda: a.renewals > 3 and b.renewals > 3)
