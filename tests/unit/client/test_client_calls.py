"""Single calls against a scripted server: responses, repeats, deadlines and errors."""

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import grpc
import pytest

import millrace_client as millrace
from millrace.columns import columns_from_events
from millrace.v1 import admin_service_pb2 as admin_pb
from millrace.v1 import channel_service_pb2 as pb
from millrace_client import _connection
from millrace_client._settings import stream_repeats
from millrace_client.aio import _connection as aio_connection
from tests.client_variants import Connect
from tests.unit.client.fake_server import FakeServer, RefusalError, unavailable

STORED = pb.AppendResponse(first_sequence=7, last_sequence=8)
WAIT_SECONDS = 60.0
PURGED = admin_pb.PurgeChannelResponse(purged_count=3)
WEST = timezone(timedelta(hours=-1))


@pytest.fixture
def patient_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the first response of a stream take long on a busy machine; the client's timeout is for the others."""
    for module in (_connection, aio_connection):
        monkeypatch.setattr(module, "stream_repeats", lambda _seconds: stream_repeats(WAIT_SECONDS))


def test_append_sends_columns_and_stamp(client: Any, server: FakeServer) -> None:
    """The request equals the generated message's encoding, and the response becomes a receipt."""
    server.script("Append", STORED)
    receipt = client.channel("orders").append([millrace.Event(b"a", {"host": "x"}), b"b"])
    assert receipt == millrace.Receipt(7, 8, deduplicated=False)
    [request] = server.requests["Append"]
    [columns] = columns_from_events([({"host": "x"}, b"a"), ({}, b"b")])
    assert (request.channel, request.columns, list(request.events)) == ("orders", columns, [])
    assert request.stamp.last_sequence - request.stamp.first_sequence == 1


def test_append_and_commit_tell_when_they_were_committed(client: Any, server: FakeServer) -> None:
    """Receipts have the server's time; what was stored before has none."""
    time = datetime(2026, 5, 4, 3, 2, 1, 123_456, tzinfo=UTC)
    server.script("Append", pb.AppendResponse(first_sequence=7, last_sequence=8, commit_time=time), STORED)
    server.script("Commit", pb.CommitResponse(commit_time=time))
    orders = client.channel("orders")
    assert [orders.append([b"a"]).commit_time for _ in range(2)] == [time, None]
    assert orders.commit(["txn"]).commit_time == time


def test_find_sequence_tells_the_event_and_its_time(client: Any, server: FakeServer) -> None:
    """Any time zone will do; without an event there is no time."""
    time = datetime(2026, 5, 4, 3, 2, 1, 123_456, tzinfo=UTC)
    found = pb.FindSequenceResponse(sequence=7, commit_time=time)
    server.script("FindSequence", found, pb.FindSequenceResponse(sequence=9))
    orders = client.channel("orders")
    results = [orders.find_sequence(time.astimezone(timezone(timedelta(hours=2)))) for _ in range(2)]
    assert results == [millrace.FoundSequence(7, time), millrace.FoundSequence(9, None)]
    requests = server.requests["FindSequence"]
    assert [(request.channel, request.time.ToDatetime(UTC)) for request in requests] == [("orders", time)] * 2


def test_peek_since_sends_the_time_and_gives_times(client: Any, server: FakeServer) -> None:
    """The server chooses the events, and each batch has its commit's time."""
    time = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
    [columns] = columns_from_events([({}, b"a"), ({}, b"b")])
    batch = {"first_sequence": 7, "columns": columns, "commit_time": time, "commit_offsets": [0, 5]}
    server.script("PeekEvents", [admin_pb.PeekEventsResponse(batch=batch)])
    [peeked] = client.channel("orders").peek(since=time)
    assert list(peeked.commit_times()) == [time, time + timedelta(microseconds=5)]
    [request] = server.requests["PeekEvents"]
    assert (request.from_time.ToDatetime(UTC), request.from_sequence) == (time, 0)


def test_append_numbers_each_event_once(client: Any, server: FakeServer) -> None:
    """Appends of one client are numbered consecutively."""
    server.script("Append", STORED)
    for bodies in ([b"a"], [b"b", b"c"], [b"d"]):
        client.channel("orders").append(bodies)
    stamps = [request.stamp for request in server.requests["Append"]]
    assert [(stamp.first_sequence, stamp.last_sequence) for stamp in stamps] == [(1, 1), (2, 3), (4, 4)]
    assert len({stamp.producer_id for stamp in stamps}) == 1


def test_append_with_a_stamp_sends_that_stamp(client: Any, server: FakeServer) -> None:
    """The caller's stamp is sent unchanged."""
    server.script("Append", STORED)
    client.channel("orders").append([b"a"], stamp=millrace.Stamp("me", 0, 0))
    [request] = server.requests["Append"]
    assert (request.stamp.producer_id, request.stamp.first_sequence, request.stamp.last_sequence) == ("me", 0, 0)


def test_append_columns_sends_them_as_they_are(client: Any, server: FakeServer) -> None:
    """Prepared columns are sent unchanged, numbered by their count."""
    server.script("Append", STORED)
    [columns] = columns_from_events([({"host": "x"}, b"a"), ({}, b"")])
    client.channel("orders").append_columns(columns)
    [request] = server.requests["Append"]
    assert request.columns == columns
    assert request.stamp.last_sequence == request.stamp.first_sequence + 1


def test_append_of_nothing_is_refused_without_a_call(client: Any, server: FakeServer) -> None:
    """The client refuses an append without events."""
    with pytest.raises(millrace.BadArgumentError, match="events"):
        client.channel("orders").append([])
    assert not server.requests


def test_call_when_unavailable_at_first_is_repeated(client: Any, server: FakeServer) -> None:
    """Two failed attempts are hidden from the caller."""
    server.script("PurgeChannel", unavailable(), unavailable(), PURGED)
    assert client.admin.purge_channel("orders") == 3
    assert len(server.requests["PurgeChannel"]) == 3


def test_call_when_always_unavailable_ends_after_five_attempts(client: Any, server: FakeServer) -> None:
    """The error names the server's address and how to start one."""
    server.script("PurgeChannel", unavailable())
    with pytest.raises(millrace.UnavailableError, match="millraced") as caught:
        client.admin.purge_channel("orders")
    assert len(server.requests["PurgeChannel"]) == 5
    assert server.address in caught.value.message
    assert (caught.value.reason, caught.value.channel) == ("UNAVAILABLE", "orders")
    assert not caught.value.is_outcome_known


def test_call_while_the_channel_replays_is_repeated(client: Any, server: FakeServer) -> None:
    """A restarted server replays its log for a moment, which most callers never notice."""
    replaying = RefusalError(grpc.StatusCode.UNAVAILABLE, "REPLAYING")
    server.script("PurgeChannel", unavailable(), replaying, PURGED)
    assert client.admin.purge_channel("orders") == 3
    server.script("PurgeChannel", replaying)
    with pytest.raises(millrace.ReplayingError) as caught:
        client.admin.purge_channel("orders")
    assert len(server.requests["PurgeChannel"]) == 3 + 5
    # The first attempt may have taken effect on the server before its restart.
    assert not caught.value.is_outcome_known


def test_call_when_refused_is_not_repeated(client: Any, server: FakeServer) -> None:
    """A refusal is a response, and not repeated."""
    server.script("PurgeChannel", RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"), PURGED)
    with pytest.raises(millrace.OverloadedError):
        client.admin.purge_channel("orders")
    assert len(server.requests["PurgeChannel"]) == 1


def test_append_whose_large_request_is_lost_is_repeated_with_its_stamp(client: Any, server: FakeServer) -> None:
    """Requests of any size are repeated by gRPC (by default only up to 256 KiB); the stamp identifies the repeat."""
    server.script("Append", unavailable(), STORED)
    client.channel("orders").append([bytes(1_000_000)] * 8)
    first, second = server.requests["Append"]
    assert first == second


def test_stream_when_unavailable_at_first_is_opened_again(client: Any, server: FakeServer) -> None:
    """A stream that has not delivered anything yet is repeated like any call."""
    server.script("PeekEvents", unavailable(), [admin_pb.PeekEventsResponse(batch={"first_sequence": 5})])
    assert [batch.first_sequence for batch in client.channel("orders").peek()] == [5]


def test_stream_whose_server_is_gone_before_the_first_response_says_so(connect: Connect, server: FakeServer) -> None:
    """It is repeated like any call, and then raises: gRPC's own repeats of it would end without telling the reader."""
    stopping = threading.Thread(target=server.close)

    def stop(_request: Any, context: Any) -> None:
        ended = threading.Event()
        context.add_callback(ended.set)
        stopping.start()
        ended.wait()

    server.script("PeekEvents", stop)
    with pytest.raises(millrace.UnavailableError):
        next(iter(connect(server.address).channel("orders").peek()))
    stopping.join()


def test_stream_that_is_always_unavailable_ends_after_five_attempts(connect: Connect, server: FakeServer) -> None:
    """The same as for other calls."""
    server.script("PeekEvents", unavailable())
    with pytest.raises(millrace.UnavailableError):
        next(iter(connect(server.address).channel("orders").peek()))
    assert len(server.requests["PeekEvents"]) == 5


def test_stream_that_breaks_later_says_so(client: Any, server: FakeServer) -> None:
    """A stream that has delivered something is not repeated, and the caller gets the error."""
    received = threading.Event()

    def break_off(_request: Any, _context: Any) -> Iterator[Any]:
        yield admin_pb.PeekEventsResponse(batch={"first_sequence": 5})
        # When an error arrives, gRPC drops messages that have not been read.
        received.wait(WAIT_SECONDS)
        raise unavailable()

    server.script("PeekEvents", break_off)
    batches = iter(client.channel("orders").peek())
    assert next(batches).first_sequence == 5
    received.set()
    with pytest.raises(millrace.UnavailableError):
        next(batches)
    assert len(server.requests["PeekEvents"]) == 1


def test_refusal_tells_all_that_the_server_said(client: Any, server: FakeServer) -> None:
    """Class, reason, message, channel, transaction, delay and code are taken from the status."""
    refusal = RefusalError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "CHANNEL_FULL",
        "channel orders is full",
        retry_delay_seconds=1.5,
        channel="orders",
        txn_id="t1",
    )
    server.script("PurgeChannel", refusal)
    with pytest.raises(millrace.ChannelFullError, match="channel orders is full") as caught:
        client.admin.purge_channel("other")
    error = caught.value
    assert (error.reason, error.message) == ("CHANNEL_FULL", "channel orders is full")
    assert (error.channel, error.txn_id, error.retry_delay_seconds) == ("orders", "t1", 1.5)
    assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.is_outcome_known


def test_refusal_for_a_reason_from_the_future_keeps_it(client: Any, server: FakeServer) -> None:
    """A newer server's reason becomes the base class, and callers can still compare it."""
    server.script("PurgeChannel", RefusalError(grpc.StatusCode.ABORTED, "MOON_FULL"))
    with pytest.raises(millrace.MillraceError) as caught:
        client.admin.purge_channel("orders")
    assert caught.value.reason == "MOON_FULL"


def test_call_that_something_else_responds_to_says_so(client: Any, server: FakeServer) -> None:
    """A server that does not know the call is probably not Millrace."""
    server.script("PurgeChannel", RefusalError(grpc.StatusCode.UNIMPLEMENTED, message="unknown"))
    with pytest.raises(millrace.MillraceError, match="is it a Millrace server"):
        client.admin.purge_channel("orders")


def test_call_without_a_response_ends_at_its_deadline(connect: Connect, server: FakeServer) -> None:
    """Every call ends at its deadline."""
    server.script("PurgeChannel", lambda _request, _context: server.closing.wait())
    with pytest.raises(millrace.DeadlineError) as caught:
        connect(server.address, timeout_seconds=0.1).admin.purge_channel("orders")
    assert (caught.value.reason, caught.value.channel) == ("DEADLINE", "orders")
    server.closing.set()


@pytest.mark.usefixtures("patient_at_first")
def test_stream_without_a_response_ends_at_its_deadline(connect: Connect, server: FakeServer) -> None:
    """Each response of a stream has a deadline of its own."""

    def one_then_silence(_request: Any, _context: Any) -> Iterator[Any]:
        yield admin_pb.PeekEventsResponse(batch={"first_sequence": 5})
        server.closing.wait()

    server.script("PeekEvents", one_then_silence)
    batches = iter(connect(server.address, timeout_seconds=0.1).channel("orders").peek())
    next(batches)
    with pytest.raises(millrace.DeadlineError):
        next(batches)
    server.closing.set()


@pytest.mark.usefixtures("patient_at_first")
def test_stream_counts_only_the_time_of_waiting(connect: Connect, server: FakeServer) -> None:
    """The timeout does not include the time that the caller works on a batch."""
    server.script("PeekEvents", [admin_pb.PeekEventsResponse(batch={"first_sequence": n}) for n in (1, 2)])
    batches = iter(connect(server.address, timeout_seconds=0.3).channel("orders").peek())
    next(batches)
    time.sleep(0.4)
    waits_since = time.monotonic()
    try:
        assert next(batches).first_sequence == 2
    except millrace.DeadlineError:
        # A busy machine may take as long to hand over what has arrived.
        assert time.monotonic() - waits_since >= 0.3


def test_followed_stream_may_be_silent(connect: Connect, server: FakeServer) -> None:
    """A following stream waits beyond the timeout for events."""

    def late(_request: Any, _context: Any) -> Iterator[Any]:
        server.closing.wait(0.2)
        yield admin_pb.PeekEventsResponse(batch={"first_sequence": 5}, skipped_events=2)

    server.script("PeekEvents", late)
    [batch] = connect(server.address, timeout_seconds=0.1).channel("orders").peek(follow=True)
    assert (batch.first_sequence, batch.skipped_events) == (5, 2)


def test_take_has_its_wait_on_top_of_the_timeout(client: Any, server: FakeServer) -> None:
    """The client allows for the server's wait in addition to the timeout."""
    server.script("BeginTxn", pb.BeginTxnResponse())
    server.script("Take", pb.TakeResponse())
    server.script("Commit", pb.CommitResponse())
    with client.channel("orders").transaction() as txn:
        txn.take(wait_seconds=50.0)
        txn.take(wait_seconds=0.0)
    long, short = server.deadlines["Take"]
    # The client's timeout is 60 seconds; gRPC rounds up on the wire, and a call is some time on its way.
    assert 62 < long < 112
    assert short < 62


def test_stream_that_is_left_is_ended(client: Any, server: FakeServer) -> None:
    """Closing the iterator cancels the stream on the server."""
    ended = threading.Event()

    def endless(_request: Any, context: Any) -> Iterator[Any]:
        context.add_callback(ended.set)
        while context.is_active():
            yield admin_pb.WatchChannelsResponse()
            server.closing.wait(0.01)

    server.script("WatchChannels", endless)
    looks = client.admin.watch_channels()
    for look in looks:
        assert look == []
        break
    looks.close()
    assert ended.wait(WAIT_SECONDS)


def test_connect_makes_no_connection(connect: Connect) -> None:
    """A client of a server that does not exist can be created and closed."""
    connect("127.0.0.1:1").close()


def test_call_when_refused_a_connection_says_where(connect: Connect, dead: str) -> None:
    """A server that is not running is reported before the call's deadline, with its address."""
    with pytest.raises(millrace.UnavailableError, match=dead):
        connect(dead).admin.list_channels()


def test_stream_when_refused_a_connection_says_where(connect: Connect, dead: str) -> None:
    """The same holds for streams, also those without a deadline."""
    channel = connect(dead).channel("orders")
    for stream in (channel.peek(follow=True), channel.consume()):
        with pytest.raises(millrace.UnavailableError, match=dead):
            next(iter(stream))


def test_call_that_waits_for_the_server_ends_at_its_deadline(connect: Connect, dead: str) -> None:
    """With wait_for_ready the client waits for a missing server, up to the deadline."""
    with pytest.raises(millrace.DeadlineError):
        connect(dead, timeout_seconds=0.1, wait_for_ready=True).admin.list_channels()


def test_call_on_a_closed_client_is_refused(client: Any, server: FakeServer) -> None:
    """A closed client raises; closing it again has no effect."""
    server.script("PurgeChannel", PURGED)
    client.admin.purge_channel("orders")
    client.close()
    client.close()
    with pytest.raises(millrace.ClientClosedError):
        client.admin.purge_channel("orders")
    with pytest.raises(millrace.ClientClosedError):
        next(iter(client.channel("orders").peek()))
    with pytest.raises(millrace.ClientClosedError):
        next(iter(client.channel("orders").consume()))


def test_connect_with_an_impossible_timeout_is_refused(connect: Connect) -> None:
    """A timeout must be positive, and of a length that gRPC does not take for one that is over."""
    for seconds in (0.0, -1.0, float("nan"), float("inf"), 1e10):
        with pytest.raises(millrace.BadArgumentError, match="timeout_seconds"):
            connect("127.0.0.1:1", timeout_seconds=seconds)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda channel: channel.peek(from_sequence=-1), "from_sequence"),
        (lambda channel: channel.peek(max_events=1 << 64), "max_events"),
        (lambda channel: channel.consume(prefetch=-1), "prefetch"),
        (lambda channel: channel.read("r", to_sequence=-5), "to_sequence"),
        (lambda channel: channel.acknowledge("r", -1), "through_sequence"),
        (lambda channel: channel.claim("r", lease_seconds=float("nan")), "lease_seconds"),
        (lambda channel: channel.transaction(lease_seconds=1e300).begin(), "lease_seconds"),
        (lambda channel: channel.append([b"a"], stamp=millrace.Stamp("p", -1, 0)), "first_sequence"),
        (lambda channel: channel.find_sequence(datetime(2026, 5, 4)), "time: .*without a time zone"),  # noqa: DTZ001 - a user's
        (lambda channel: channel.find_sequence(datetime.max.replace(tzinfo=WEST)), "time: .*years 1 to 9999 in UTC"),
        (lambda channel: channel.peek(since=datetime(2026, 5, 4)), "since"),  # noqa: DTZ001 - so does a user
    ],
)
def test_argument_that_the_wire_cannot_carry_is_named(client: Any, make: Any, field: str) -> None:
    """Numbers that no message can hold are refused by name, before anything is sent."""
    with pytest.raises(millrace.BadArgumentError, match=field):
        make(client.channel("orders"))


def test_channel_name_that_is_no_unicode_is_refused(client: Any) -> None:
    """Half a surrogate pair cannot be sent."""
    for use in (lambda channel: channel.append([b"a"]), lambda channel: list(channel.peek())):
        with pytest.raises(millrace.RefusedError):
            use(client.channel("\ud800"))
