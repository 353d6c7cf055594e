import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.columns import HEADER_KEYS_MAX, ColumnsCutter, check_columns, columns_from_events
from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from millrace_server.agent.channel_reader import ChannelReader, Delivery
from millrace_server.agent.sinks.millrace import requests
from millrace_server.agent.sinks.millrace.requests import ColumnsJoiner, Request, RequestEncoder
from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.channel import Channel
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.registry import ChannelRegistry
from tests.agent_components import registry_with
from tests.channel_events import append, stored
from tests.forward_targets import bodies_in, reader_of

Row = tuple[dict[str, str], bytes]

ROWS = st.tuples(
    st.dictionaries(st.sampled_from("abc"), st.sampled_from(["", "x", "ü", "long value"])), st.binary(max_size=5)
)
BATCHES = st.lists(st.lists(ROWS, min_size=1, max_size=5), min_size=1, max_size=8)


@pytest.fixture
async def registry() -> ChannelRegistry:
    return registry_with("orders", capacity=100_000, transaction_capacity=100_000)


@pytest.fixture
async def channel(registry: ChannelRegistry) -> Channel:
    return registry.get("orders")


@pytest.fixture
async def reader(registry: ChannelRegistry) -> ChannelReader:
    return reader_of(registry, batch_events_max=1_000)


async def taken(reader: ChannelReader) -> Delivery:
    delivery = await reader.take()
    assert delivery is not None
    return delivery


def parsed(encoded: list[Request]) -> list[pb.AppendStreamRequest]:
    return [pb.AppendStreamRequest.FromString(request.encoded) for request in encoded]


def ranges(encoded: list[Request]) -> list[tuple[int, int]]:
    return [(request.stamp.first_sequence, request.stamp.last_sequence) for request in parsed(encoded)]


async def take_away(channel: Channel, event_count: int) -> None:
    """Takes and commits events as another consumer."""
    delivery = await channel.deliveries.deliver(TakeLimits(events_max=event_count))
    _ = channel.deliveries.settle(delivery)


async def test_requests_for_a_batch_hold_the_original_bytes(channel: Channel, reader: ChannelReader) -> None:
    """The stamp has the channel's id and the events' own sequences; the columns are not decoded."""
    sent = StoredColumns.of(columns_from_events([({"host": "web-1"}, b"a"), ({}, bytes(50_000))])[0])
    await channel.appends.append([sent], None)
    encoder = RequestEncoder("there", 100, 100)
    [request] = encoder.requests(await taken(reader))
    assert request.encoded.endswith(sent.raw)
    [message] = parsed([request])
    assert message.channel == "there"
    assert message.columns.SerializeToString() == sent.raw
    stamp = message.stamp
    assert (stamp.producer_id, stamp.first_sequence, stamp.last_sequence) == (channel.channel_id, 1, 2)
    assert request.event_count == 2


async def test_requests_but_the_first_name_the_one_before_them(channel: Channel, reader: ChannelReader) -> None:
    """This condition keeps a request from overtaking one that was refused, also over a gap."""
    encoder = RequestEncoder("orders", 100, 100)
    encoded = []
    for _ in range(3):
        await append(channel, b"a", b"b")
        encoded += encoder.requests(await taken(reader))
    await append(channel, b"c")
    await take_away(channel, 1)
    await append(channel, b"d")
    encoded += encoder.requests(await taken(reader))
    stamps = [request.stamp for request in parsed(encoded)]
    assert [request.has_condition for request in encoded] == [False, True, True, True]
    assert not stamps[0].HasField("after_sequence")
    assert [stamp.after_sequence for stamp in stamps[1:]] == [2, 4, 6]
    assert stamps[3].first_sequence == 8


async def test_requests_over_gaps_promise_at_times_what_never_comes(
    channel: Channel, reader: ChannelReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request reports the channel's oldest event after every so many gaps; without gaps it reports nothing."""
    monkeypatch.setattr(requests, "GAPS_PER_REPORT", 2)
    await append(channel, *[b"%d" % number for number in range(40)])
    elsewhere = await channel.deliveries.deliver(TakeLimits(events_max=3))
    encoder = RequestEncoder("orders", 100, 100)
    reader._events_max = 1
    stamps = []
    for _ in range(8):
        stamps += [request.stamp for request in parsed(encoder.requests(await taken(reader)))]
        await take_away(channel, 1)
    assert [stamp.HasField("oldest_open_sequence") for stamp in stamps] == 2 * [True, False, False] + [True, False]
    assert {stamp.oldest_open_sequence for stamp in stamps if stamp.HasField("oldest_open_sequence")} == {1}
    _ = channel.deliveries.settle(elsewhere)
    reader.nack_all()
    [again] = parsed(RequestEncoder("orders", 100, 100).requests(await taken(reader)))
    assert again.stamp.oldest_open_sequence == again.stamp.first_sequence == 4


async def test_requests_for_small_batches_are_joined(channel: Channel, reader: ChannelReader) -> None:
    """A thousand events appended one by one become one request, with all their headers."""
    rows = [({"number": str(number), f"odd-{number % 3}": "yes"}, b"%d" % number) for number in range(300)]
    for row in rows:
        await channel.appends.append([StoredColumns.of(columns_from_events([row])[0])], None)
    encoded = RequestEncoder("orders", 1_000, 1_000).requests(await taken(reader))
    [message] = parsed(encoded)
    assert ranges(encoded) == [(1, 300)]
    check_columns(message.columns)
    assert list(ColumnsCutter(message.columns).rows(0, 300)) == rows


async def test_requests_for_batches_apart_are_not_joined(channel: Channel, reader: ChannelReader) -> None:
    """Each number of a stamp is one event, so a gap needs two stamps."""
    await append(channel, b"1", b"2")
    await append(channel, b"3")
    held = await channel.deliveries.deliver(TakeLimits(events_max=2))
    await take_away(channel, 1)
    await append(channel, b"4")
    channel.deliveries.nack(held)
    encoded = RequestEncoder("orders", 100, 100).requests(await taken(reader))
    assert ranges(encoded) == [(1, 2), (4, 4)]
    assert bodies_in(parsed(encoded)) == [b"1", b"2", b"4"]


async def test_requests_for_large_batches_are_not_joined(
    channel: Channel, reader: ChannelReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copying them would cost more than another request."""
    monkeypatch.setattr(requests, "JOINED_BYTES_MAX", 10_000)
    for _ in range(3):
        await append(channel, bytes(6_000))
    encoded = RequestEncoder("orders", 100, 100).requests(await taken(reader))
    assert ranges(encoded) == [(1, 1), (2, 2), (3, 3)]


async def test_requests_of_many_keys_are_joined_as_far_as_columns_can_hold_them(
    channel: Channel, reader: ChannelReader
) -> None:
    """A batch has at most 256 keys; further ones start another batch."""
    for number in range(300):
        await channel.appends.append([StoredColumns.of(columns_from_events([({f"key-{number}": "x"}, b"")])[0])], None)
    encoded = RequestEncoder("orders", 1_000, 1_000).requests(await taken(reader))
    assert ranges(encoded) == [(1, 256), (257, 300)]
    for message in parsed(encoded):
        check_columns(message.columns)


@pytest.mark.parametrize(("capacity", "events_max"), [(3, 100), (100, 3)])
async def test_requests_are_no_larger_than_the_target_takes(
    channel: Channel, reader: ChannelReader, capacity: int, events_max: int
) -> None:
    """A larger batch is cut, and its parts are not joined beyond the limit."""
    await append(channel, *[b"%d" % number for number in range(7)])
    await append(channel, b"7", b"8")
    encoded = RequestEncoder("orders", capacity, events_max).requests(await taken(reader))
    assert ranges(encoded) == [(1, 3), (4, 6), (7, 9)]
    assert bodies_in(parsed(encoded)) == [b"%d" % number for number in range(9)]


async def test_requests_grow_again_once_many_were_taken(channel: Channel, reader: ChannelReader) -> None:
    """They grow up to the target's limit after a large batch has made them small."""
    await channel.appends.append([stored(*[b"x"] * 16)], None)
    encoder = RequestEncoder("orders", 8, 2)
    for largest in (2, 4, 8, 8):
        delivery = await taken(reader)
        assert max(request.event_count for request in encoder.requests(delivery)) == largest
        delivery.nack()
        for _ in range(requests.DELIVERIES_BEFORE_GROWTH):
            encoder.note_stored()


def columns(*rows: Row) -> event_pb2.EventColumns:
    [made] = columns_from_events(rows)
    return made


def rows_of(made: event_pb2.EventColumns) -> list[Row]:
    check_columns(made)
    return list(ColumnsCutter(made).rows(0, made.count))


@given(BATCHES)
def test_build_of_any_batches_has_their_events_one_after_the_other(batches: list[list[Row]]) -> None:
    """A header may be missing, the same for all events, or different."""
    joiner = ColumnsJoiner()
    assert {joiner.add(columns(*rows)) for rows in batches} == {True}
    assert joiner.count == sum(map(len, batches))
    assert rows_of(joiner.build()) == [row for rows in batches for row in rows]


def test_build_keeps_a_value_that_all_events_have_single() -> None:
    """A header of the host is not repeated a thousand times."""
    joiner = ColumnsJoiner()
    for count in (3, 1, 2):
        joiner.add(columns(*[({"host": "web-1"}, b"x")] * count))
    [header] = joiner.build().headers
    assert (list(header.sizes), header.values) == ([6], b"web-1")


def test_add_of_more_keys_than_a_batch_may_have_refuses() -> None:
    """Refused events are not in the request."""
    joiner = ColumnsJoiner()
    assert joiner.add(columns(({str(number): "x" for number in range(HEADER_KEYS_MAX)}, b"a")))
    assert joiner.add(columns(({"0": "y"}, b"b")))
    assert not joiner.add(columns(({"other": "z"}, b"c")))
    assert [body for _, body in rows_of(joiner.build())] == [b"a", b"b"]


def test_add_of_values_that_would_be_copied_often_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long value of all events is repeated for each event once another batch has a different value."""
    monkeypatch.setattr(requests, "JOINED_BYTES_MAX", 10_000)
    joiner = ColumnsJoiner()
    assert joiner.add(columns(*[({"note": "x" * 90}, b"a")] * 100))
    assert not joiner.add(columns(*[({"note": "y" * 90}, b"b")] * 100))


def test_add_of_sparse_headers_bounds_the_sizes_that_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key costs an entry for each event, whether it has it or not."""
    monkeypatch.setattr(requests, "HEADER_CELLS_MAX", 20)
    joiner = ColumnsJoiner()
    assert [joiner.add(columns(({str(number): "x"}, b""))) for number in range(6)] == [True] * 4 + [False] * 2


def test_add_of_the_first_takes_anything() -> None:
    """Every single event must be sent, whatever its size."""
    assert ColumnsJoiner().add(columns(({}, bytes(2 * requests.JOINED_BYTES_MAX))))
