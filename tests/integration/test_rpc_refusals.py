"""Invalid input over the wire: each gets its code, its reason and its sentence, and changes nothing."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from grpc import aio

from millrace.v1 import admin_service_pb2, event_pb2
from millrace.v1 import channel_service_pb2 as pb
from tests.rpc import NO_WAIT, TIMEOUT_SECONDS, Refusal, Rpc, columns, events, refused, seconds

INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION

U64_MAX = (1 << 64) - 1
NO_PROTOBUF = b"\xff\xff no protobuf"
SERVICES = {
    module.DESCRIPTOR.services_by_name[name].full_name: module.DESCRIPTOR.services_by_name[name]
    for module, name in ((pb, "ChannelService"), (admin_service_pb2, "AdminService"))
}


async def response_to(rpc: Rpc, service: str, method: str, request: bytes) -> Any:
    """The first response to a request of raw bytes, for every kind of call."""
    path, call = f"/{service}/{method}", SERVICES[service].methods_by_name[method]
    if call.client_streaming:
        both_ways: Any = rpc.connection.stream_stream(path)
        stream = both_ways(timeout=TIMEOUT_SECONDS)
        await stream.write(request)
        return await stream.read()
    if call.server_streaming:
        one_way: Any = rpc.connection.unary_stream(path)
        return await one_way(request, timeout=TIMEOUT_SECONDS).read()
    unary: Any = rpc.connection.unary_unary(path)
    return await unary(request, timeout=TIMEOUT_SECONDS)


ALL_METHODS = [(service, method) for service, described in SERVICES.items() for method in described.methods_by_name]


@pytest.mark.parametrize(("service", "method"), ALL_METHODS)
async def test_bytes_that_are_no_protobuf_are_refused(rpc: Rpc, service: str, method: str) -> None:
    """Every call says that it could not parse its request, and which message it expected."""
    wanted = SERVICES[service].methods_by_name[method].input_type.full_name
    sentence = f"request: its {len(NO_PROTOBUF)} bytes are not a valid {wanted}"
    if method == "AppendStream":
        response = pb.AppendStreamResponse.FromString(await response_to(rpc, service, method, NO_PROTOBUF))
        refusal = Refusal.of_status(response.error)
        assert (refusal.code, refusal.reason, refusal.message) == (INVALID_ARGUMENT, "BAD_ARGUMENT", sentence)
        return
    async with refused(INVALID_ARGUMENT, "BAD_ARGUMENT", re.escape(sentence)):
        await response_to(rpc, service, method, NO_PROTOBUF)


@pytest.mark.parametrize("cut", [1, 5, 11])
async def test_request_cut_short_is_refused(rpc: Rpc, cut: int) -> None:
    """A truncated message is refused."""
    name = await rpc.make_channel()
    whole = pb.AppendRequest(channel=name, columns=columns(b"aaaa", key="value")).SerializeToString()
    async with (
        rpc.unchanged(name),
        refused(INVALID_ARGUMENT, "BAD_ARGUMENT", "are not a valid millrace.v1.AppendRequest"),
    ):
        await response_to(rpc, "millrace.v1.ChannelService", "Append", whole[:-cut])


async def test_text_that_is_no_utf_8_is_refused(rpc: Rpc) -> None:
    """Names and headers are text; bodies may be any bytes."""
    name = await rpc.make_channel()
    whole = pb.AppendRequest(channel=name, events=[event_pb2.Event(headers={"key": "value"}, body=b"\xff")])
    broken = whole.SerializeToString().replace(b"value", b"va\xffue")
    async with rpc.unchanged(name), refused(INVALID_ARGUMENT, "BAD_ARGUMENT"):
        await response_to(rpc, "millrace.v1.ChannelService", "Append", broken)


OF_ALL = {"ListTransactions", "ListConsumers"}
"""Without a name, these list all channels."""
OF_TXNS = {"Put", "Take", "Commit", "Rollback", "RenewTxn"}
"""Without a name, these find the transaction by its id."""
BAD_NAMES = ["../x", "", "a\0b", "x" * 300, "%2e", "%2e%2e%2fx", "caf\u00e9", "\u202ex", ".", "..", "-a", "A", "a/b"]


@pytest.mark.parametrize(
    ("service", "method"),
    [
        (service, method)
        for service, method in ALL_METHODS
        if {"name", "channel"} & {field.name for field in SERVICES[service].methods_by_name[method].input_type.fields}
        and method not in {"AppendStream", "RetryComponent"}
    ],
)
async def test_bad_names_are_refused_wherever_a_name_is_taken(rpc: Rpc, service: str, method: str) -> None:
    """BAD_NAME quotes a bounded part of the name, without control characters; no channel is created."""
    async with rpc.unchanged():
        for name in BAD_NAMES:
            if name or method not in OF_ALL | OF_TXNS:
                await _refuses_name(rpc, service, method, name)


async def _refuses_name(rpc: Rpc, service: str, method: str, name: str) -> None:
    kind = SERVICES[service].methods_by_name[method].input_type._concrete_class
    request = kind(**{"channel" if "channel" in kind.DESCRIPTOR.fields_by_name else "name": name})
    if method in {"Append", "Put"}:
        request.events.add(body=b"a")
    if "txn_ids" in kind.DESCRIPTOR.fields_by_name:
        request.txn_ids.append("t")
    elif method in OF_TXNS:
        request.txn_id = "t"
    async with refused(INVALID_ARGUMENT, "BAD_NAME", "channel: is .*; it must match") as caught:
        await response_to(rpc, service, method, request.SerializeToString())
    message = caught.refusal.message
    assert message.isascii()
    assert message.isprintable()
    assert len(message) < 200


@pytest.mark.parametrize(
    "request_of",
    [
        lambda name: pb.BeginTxnRequest(channel=name),
        lambda name: pb.AppendRequest(channel=name, events=events(b"a")),
        lambda name: pb.ClaimRequest(channel=name, reader_id="r"),
        lambda name: pb.ReadRequest(channel=name, reader_id="r"),
        lambda name: pb.AcknowledgeRequest(channel=name, reader_id="r"),
        lambda name: pb.ReleaseRequest(channel=name, reader_id="r"),
        lambda name: pb.ConsumeRequest(start=pb.ConsumeRequest.Start(channel=name)),
        lambda name: admin_service_pb2.UpdateChannelRequest(name=name),
        lambda name: admin_service_pb2.DeleteChannelRequest(name=name),
        lambda name: admin_service_pb2.GetChannelRequest(name=name),
        lambda name: admin_service_pb2.PeekEventsRequest(channel=name),
        lambda name: admin_service_pb2.PurgeChannelRequest(name=name),
    ],
)
async def test_unknown_channel_is_not_found(rpc: Rpc, request_of: Callable[[str], Message]) -> None:
    """CHANNEL_NOT_FOUND contains the name, and no channel is created implicitly."""
    request = request_of("not-there")
    method = type(request).__name__.removesuffix("Request")
    [service] = [service for service, described in SERVICES.items() if method in described.methods_by_name]
    async with (
        rpc.unchanged(),
        refused(NOT_FOUND, "CHANNEL_NOT_FOUND", "'not-there' does not exist; create it") as caught,
    ):
        await response_to(rpc, service, method, request.SerializeToString())
    assert caught.refusal.metadata == {"channel": "not-there"}
    assert caught.refusal.retry_delay_seconds is None


def renew(rpc: Rpc, txn_id: str) -> Awaitable[pb.RenewTxnResponse]:
    response: Awaitable[pb.RenewTxnResponse] = rpc.channels.RenewTxn(pb.RenewTxnRequest(txn_id=txn_id))
    return response


TXN_CALLS: dict[str, Callable[[Rpc, str], Awaitable[object]]] = {
    "put": lambda rpc, txn_id: rpc.put(txn_id, b"x"),
    "take": lambda rpc, txn_id: rpc.take(txn_id),
    "commit": lambda rpc, txn_id: rpc.commit(txn_id),
    "rollback": lambda rpc, txn_id: rpc.rollback(txn_id),
    "renew": renew,
}


@pytest.mark.parametrize("call", TXN_CALLS)
async def test_unknown_transaction_is_not_found(rpc: Rpc, call: str) -> None:
    """TXN_NOT_FOUND contains the id."""
    async with refused(NOT_FOUND, "TXN_NOT_FOUND", "never existed, it ended long ago") as caught:
        await TXN_CALLS[call](rpc, "never begun")
    assert caught.refusal.metadata == {"txn_id": "never begun"}


@pytest.mark.parametrize("call", TXN_CALLS)
@pytest.mark.parametrize("txn_id", ["", "nul\0", "é", "x" * 100_000], ids=lambda it: f"{it[:12]!a}")
async def test_transaction_that_no_id_can_name_is_refused(rpc: Rpc, call: str, txn_id: str) -> None:
    """BAD_ARGUMENT quotes a bounded part of the id, so that the error fits a response."""
    async with refused(INVALID_ARGUMENT, "BAD_ARGUMENT", "txn_id: is .*; it must have 1 to 128") as caught:
        await TXN_CALLS[call](rpc, txn_id)
    assert len(caught.refusal.message) < 200
    if call != "commit" and txn_id:
        assert caught.refusal.metadata == {"txn_id": txn_id[:256]}


@pytest.mark.parametrize(
    ("ending", "refused_calls", "sentence"),
    [
        ("commit", ["put", "take", "rollback", "renew"], "is committed already"),
        ("rollback", ["put", "take", "commit", "renew"], "is rolled back already"),
    ],
)
async def test_calls_on_an_ended_transaction_are_refused(
    rpc: Rpc, ending: str, refused_calls: list[str], sentence: str
) -> None:
    """TXN_STATE contains the outcome, which stays."""
    name = await rpc.make_channel()
    txn_id = await rpc.begin(name)
    await rpc.put(txn_id, b"a")
    await TXN_CALLS[ending](rpc, txn_id)
    for call in refused_calls:
        async with rpc.unchanged(name), refused(FAILED_PRECONDITION, "TXN_STATE", sentence) as caught:
            await TXN_CALLS[call](rpc, txn_id)
        assert caught.refusal.metadata == {"txn_id": txn_id}
    async with rpc.unchanged(name), refused(FAILED_PRECONDITION, "TXN_STATE", "use another id"):
        await rpc.begin(name, txn_id=txn_id)


async def test_commit_with_another_channels_transaction_changes_neither(rpc: Rpc) -> None:
    """TXN_STATE names both channels; each transaction stays open and can be committed alone."""
    one, other = await rpc.make_channel(), await rpc.make_channel()
    txn_ids = [await rpc.begin(name) for name in (one, other)]
    for txn_id in txn_ids:
        await rpc.put(txn_id, b"a")
    async with rpc.unchanged(one, other), refused(FAILED_PRECONDITION, "TXN_STATE", f"'{one}' and '{other}'"):
        await rpc.commit(*txn_ids)
    for txn_id in txn_ids:
        assert (await rpc.commit(txn_id)).first_sequence == 1


async def test_begin_beyond_the_open_transactions_is_refused(rpc: Rpc) -> None:
    """TOO_MANY_TXNS has a retry delay; a transaction that ends makes space."""
    name = await rpc.make_channel(open_transactions_max=1)
    txn_id = await rpc.begin(name)
    async with rpc.unchanged(name), refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_TXNS") as caught:
        await rpc.begin(name)
    assert caught.refusal.retry_delay_seconds
    await rpc.rollback(txn_id)
    await rpc.begin(name)


def stamp(first: int, last: int, producer_id: str = "p", **numbers: int) -> event_pb2.ProducerStamp:
    return event_pb2.ProducerStamp(producer_id=producer_id, first_sequence=first, last_sequence=last, **numbers)


def broken_columns(**fields: Any) -> event_pb2.EventColumns:
    encoded = columns(b"aa", b"b", key="v")
    broken = event_pb2.EventColumns(**fields)
    for field in fields:
        encoded.ClearField(field)
    encoded.MergeFrom(broken)
    return encoded


BAD_EVENTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "both forms": ({"events": events(b"a"), "columns": columns(b"a")}, "BAD_ARGUMENT", "in rows and in columns"),
    "a large body": ({"events": events(bytes(81))}, "EVENT_TOO_LARGE", "81 bytes; byte_capacity allows 80 in all"),
    "a large body in columns": ({"columns": columns(b"a", bytes(81))}, "EVENT_TOO_LARGE", "a body has 81 bytes"),
    "too many events": ({"events": events(*[b""] * 6)}, "TXN_CAPACITY", "would put 6 events; .* is 5"),
    "too many bytes": (
        {"events": events(*[bytes(30)] * 3)},
        "TXN_CAPACITY",
        "put 90 body bytes; byte_capacity and .* allow 80 at once",
    ),
    "257 headers": (
        {"events": [event_pb2.Event(headers={str(number): "" for number in range(257)})]},
        "BAD_ARGUMENT",
        "an event has 257 headers; at most 256",
    ),
    "a wrong count": ({"columns": broken_columns(count=3)}, "BAD_ARGUMENT", "body_sizes: has 2 entries; .* is 3"),
    "a huge count": ({"columns": broken_columns(count=(1 << 32) - 1)}, "BAD_ARGUMENT", "columns.count is 4294967295"),
    "a wrong sum": ({"columns": broken_columns(bodies=b"aab?")}, "BAD_ARGUMENT", "bodies: has 4 bytes; .* sum to 3"),
    "a key twice": (
        {"columns": broken_columns(headers=[event_pb2.HeaderColumn(key="k", sizes=[1], values=b"")] * 2)},
        "BAD_ARGUMENT",
        "a key is duplicated",
    ),
    "wrong header sizes": (
        {"columns": broken_columns(headers=[event_pb2.HeaderColumn(key="k", sizes=[1, 1, 1])])},
        "BAD_ARGUMENT",
        r"headers\[0\].sizes: has 3 entries",
    ),
    "values that are no text": (
        {"columns": broken_columns(headers=[event_pb2.HeaderColumn(key="k", sizes=[2], values=b"\xff")])},
        "BAD_ARGUMENT",
        r"headers\[0\].values: is not UTF-8 at byte 0",
    ),
    "columns without count": ({"columns": broken_columns(count=0)}, "BAD_ARGUMENT", "columns.count is 0"),
}


@pytest.mark.parametrize("call", ["Put", "Append", "AppendStream"])
@pytest.mark.parametrize(("fields", "reason", "sentence"), BAD_EVENTS.values(), ids=BAD_EVENTS)
async def test_bad_events_are_refused_whole(
    rpc: Rpc, call: str, fields: dict[str, Any], reason: str, sentence: str
) -> None:
    """No part of the request is stored, and the transaction stays usable."""
    name = await rpc.make_channel(capacity=10, transaction_capacity=5, byte_capacity=100)
    txn_id = await rpc.begin(name)
    async with rpc.unchanged(name):
        match call:
            case "Put":
                async with refused(INVALID_ARGUMENT, reason, sentence):
                    await rpc.channels.Put(pb.PutRequest(txn_id=txn_id, **fields))
            case "Append":
                async with refused(INVALID_ARGUMENT, reason, sentence):
                    await rpc.channels.Append(pb.AppendRequest(channel=name, **fields))
            case _:
                request = pb.AppendStreamRequest(channel=name, **fields).SerializeToString()
                response = await response_to(rpc, "millrace.v1.ChannelService", "AppendStream", request)
                refusal = Refusal.of_status(pb.AppendStreamResponse.FromString(response).error)
                assert (refusal.code, refusal.reason) == (INVALID_ARGUMENT, reason)
                assert re.search(sentence, refusal.message)
    assert await rpc.put(txn_id, b"a") == 1


BAD_CALLS: dict[str, tuple[Callable[[Rpc, str, str], Awaitable[object]], str, str]] = {
    "an append of nothing": (lambda rpc, name, _: rpc.append(name), "BAD_ARGUMENT", "at least one event"),
    "a commit of nothing": (lambda rpc, _, __: rpc.commit(), "BAD_ARGUMENT", "txn_ids: has 0 ids"),
    "a commit of too many": (
        lambda rpc, _, txn: rpc.commit(*[txn] * 1001),
        "BAD_ARGUMENT",
        "has 1001 ids; 1 to 1000 are allowed",
    ),
    "a gap in put_offset": (lambda rpc, _, txn: rpc.put(txn, b"a", put_offset=2), "OFFSET_GAP", "is 2; .* has 1"),
    "a huge put_offset": (lambda rpc, _, txn: rpc.put(txn, b"a", put_offset=U64_MAX), "OFFSET_GAP", str(U64_MAX)),
    "a gap in take_offset": (lambda rpc, _, txn: rpc.take(txn, take_offset=1), "OFFSET_GAP", "is 1; .* has 0"),
    "a gap before a stamp": (
        lambda rpc, name, _: rpc.append(name, b"a", stamp=stamp(2, 2, after_sequence=1)),
        "OFFSET_GAP",
        r"stamp\.after_sequence: is 1, which the channel has not accepted from producer 'p'",
    ),
    "a stamp that is over already": (
        lambda rpc, name, _: rpc.append(name, b"a", stamp=stamp(2, 2, oldest_open_sequence=3)),
        "BAD_ARGUMENT",
        r"stamp\.oldest_open_sequence: is 3; it must not be above .*, 2",
    ),
    "an empty txn_id": (lambda rpc, name, _: rpc.begin(name, txn_id=""), "BAD_ARGUMENT", "txn_id: is ''"),
    "a long txn_id": (lambda rpc, name, _: rpc.begin(name, txn_id="x" * 129), "BAD_ARGUMENT", "129 characters"),
    "a txn_id with NUL": (lambda rpc, name, _: rpc.begin(name, txn_id="a\0"), "BAD_ARGUMENT", r"is 'a\\x00'"),
    "a txn_id beyond ASCII": (lambda rpc, name, _: rpc.begin(name, txn_id="é"), "BAD_ARGUMENT", r"is '\\xe9'"),
    "a negative lease": (lambda rpc, name, _: rpc.begin(name, lease=seconds(-1)), "BAD_ARGUMENT", "lease: is -1 s"),
    "a hugely negative lease": (
        lambda rpc, name, _: rpc.begin(name, lease=Duration(seconds=-(1 << 63))),
        "BAD_ARGUMENT",
        "must not be negative",
    ),
    "a lease of mixed signs": (
        lambda rpc, name, _: rpc.begin(name, lease=Duration(seconds=1, nanos=-1)),
        "BAD_ARGUMENT",
        "have the sign of the seconds",
    ),
    "a lease of too many nanos": (
        lambda rpc, name, _: rpc.begin(name, lease=Duration(nanos=1_000_000_000)),
        "BAD_ARGUMENT",
        "nanos must be between",
    ),
    "a negative wait": (lambda rpc, _, txn: rpc.take(txn, wait=seconds(-0.5)), "BAD_ARGUMENT", "wait: is -0.5 s"),
    "a negative lease of a claim": (
        lambda rpc, name, _: rpc.claim(name, "r", lease=seconds(-1)),
        "BAD_ARGUMENT",
        "lease: is -1 s",
    ),
    "an empty reader_id": (lambda rpc, name, _: rpc.claim(name, ""), "BAD_ARGUMENT", "reader_id: is ''"),
    "a long reader_id": (lambda rpc, name, _: rpc.claim(name, "x" * 200), "BAD_ARGUMENT", "200 characters"),
    "an empty producer_id": (
        lambda rpc, name, _: rpc.append(name, b"a", stamp=stamp(1, 1, "")),
        "BAD_ARGUMENT",
        "stamp.producer_id: is ''",
    ),
    "a stamp upside down": (
        lambda rpc, name, _: rpc.append(name, b"a", stamp=stamp(2, 1)),
        "BAD_ARGUMENT",
        "stamp.last_sequence: is 1; it must not be below stamp.first_sequence, 2",
    ),
    "an overlapping stamp": (
        lambda rpc, name, _: rpc.append(name, b"a", stamp=stamp(5, 7)),
        "BAD_ARGUMENT",
        "stamp: 5 to 7 covers 1 events as a whole and overlaps in part",
    ),
    "an overlapping stamp of a commit": (
        lambda rpc, _, txn: rpc.commit(txn, stamp=stamp(0, U64_MAX)),
        "BAD_ARGUMENT",
        "it must be all new or all stored",
    ),
}


@pytest.mark.parametrize(("call", "reason", "sentence"), BAD_CALLS.values(), ids=BAD_CALLS)
async def test_bad_arguments_are_refused(
    rpc: Rpc, call: Callable[[Rpc, str, str], Awaitable[object]], reason: str, sentence: str
) -> None:
    """The sentence contains the field, its value and what is allowed; the transaction stays open."""
    name = await rpc.make_channel()
    await rpc.append(name, b"stored", stamp=stamp(5, 5))
    txn_id = await rpc.begin(name)
    await rpc.put(txn_id, b"put")
    async with rpc.unchanged(name), refused(INVALID_ARGUMENT, reason, sentence) as caught:
        await call(rpc, name, txn_id)
    assert caught.refusal.retry_delay_seconds is None
    assert await rpc.peek(name) == [b"stored"]
    assert (await rpc.commit(txn_id)).first_sequence == 2


@pytest.mark.parametrize("wait", [seconds(3601), Duration(seconds=(1 << 63) - 1, nanos=999_999_999)])
async def test_huge_waits_are_capped(rpc: Rpc, wait: Duration) -> None:
    """A wait above the limit is not an error: the take waits as long as allowed."""
    name = await rpc.make_channel()
    await rpc.append(name, b"a")
    assert (await rpc.take(await rpc.begin(name), wait=wait)).take_count == 1


@pytest.mark.parametrize("limit", [{"max_events": (1 << 32) - 1}, {"max_bytes": U64_MAX}])
async def test_huge_limits_of_a_take_are_no_limits(rpc: Rpc, limit: dict[str, int]) -> None:
    """Limits that cannot be reached have no effect."""
    name = await rpc.make_channel()
    await rpc.append(name, b"a", b"b")
    assert (await rpc.take(await rpc.begin(name), **limit)).take_count == 2


async def test_unknown_methods_are_unimplemented(rpc: Rpc) -> None:
    """A client of a newer contract gets UNIMPLEMENTED from gRPC itself."""
    call: Any = rpc.connection.unary_unary("/millrace.v1.ChannelService/Fly")
    with pytest.raises(aio.AioRpcError) as raised:
        await call(b"", timeout=TIMEOUT_SECONDS)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_unknown_fields_are_passed_over(rpc: Rpc) -> None:
    """A request of a newer contract is handled without its unknown fields."""
    name = await rpc.make_channel()
    newer = pb.AppendRequest(channel=name, events=events(b"a")).SerializeToString() + b"\xa2\x06\x03new"
    response = await response_to(rpc, "millrace.v1.ChannelService", "Append", newer)
    assert pb.AppendResponse.FromString(response).first_sequence == 1


async def test_refusals_are_counted_by_their_reason(rpc: Rpc) -> None:
    """Of calls that name the channel or a transaction of it, and of streams; not of other channels."""
    name, other = await rpc.make_channel(capacity=1, keep_alive=NO_WAIT), await rpc.make_channel()
    txn_id = await rpc.begin(name)
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "TXN_CAPACITY"):
        await rpc.put(txn_id, b"a", b"b")
    await rpc.rollback(txn_id)
    async with refused(grpc.StatusCode.FAILED_PRECONDITION, "TXN_STATE"):
        await rpc.commit(txn_id)
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "TXN_CAPACITY"):
        await rpc.append(name, b"a", b"b")
    stream = rpc.channels.AppendStream(timeout=TIMEOUT_SECONDS)
    await stream.write(pb.AppendStreamRequest(channel=name))
    assert (await stream.read()).HasField("error")
    await stream.done_writing()
    consuming = rpc.channels.Consume(timeout=TIMEOUT_SECONDS)
    await consuming.write(pb.ConsumeRequest(start=pb.ConsumeRequest.Start(channel=name)))
    await consuming.write(pb.ConsumeRequest(ack=pb.ConsumeRequest.Ack(delivery_ids=[9])))
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT"):
        await consuming.read()
        await consuming.read()
    assert dict((await rpc.look(name)).counters.refused) == {"TXN_CAPACITY": 2, "TXN_STATE": 1, "BAD_ARGUMENT": 2}
    assert not (await rpc.look(other)).counters.refused
