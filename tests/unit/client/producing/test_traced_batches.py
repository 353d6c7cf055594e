import grpc
import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import TraceFlags

from millrace_client import Event, ProducerConfig, SendFailedError
from millrace_client.aio import AsyncProducer
from tests.recorded_spans import attributes_of, is_child, linked, recording, traceparent_of
from tests.unit.client.fake_server import RefusalError
from tests.unit.client.producing.conftest import QUICK, FakeChannels, MakeProducer

TRACEPARENT = f"00-{7:032x}-{7:016x}-01"


def test_batch_of_one_sender_is_a_child_of_its_span(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """Its events carry the sender's context, and the span tells where they went."""
    with recording(event_context=True) as recorded:
        producer = producer_of(channels, linger_seconds=60)
        with recorded.tracer.start_as_current_span("request"):
            producer.send(b"1")
            producer.send_many([b"2", b"3"])
        producer.flush()
        producer.close()
    request, batch = recorded.named("request"), recorded.named("append orders")
    assert is_child(batch, request)
    assert channels.headers == [{"traceparent": traceparent_of(request)}] * 3
    host, port = channels.address.split(":")
    assert attributes_of(batch) == {
        "messaging.system": "millrace",
        "messaging.operation.name": "append",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.batch.message_count": 3,
        "server.address": host,
        "server.port": int(port),
        "millrace.attempt_count": 1,
    }


def test_batch_of_several_senders_is_linked_to_them(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """A span has one parent only. The user's own context of an event is kept."""
    with recording(event_context=True) as recorded:
        producer = producer_of(channels, linger_seconds=60)
        for name in ("a", "b"):
            with recorded.tracer.start_as_current_span(name):
                producer.send(Event(b"", {"k": "v"}))
        producer.send(Event(b"", {"traceparent": TRACEPARENT}))
        producer.flush()
        producer.close()
    batch = recorded.named("append orders")
    assert batch.parent is None
    contexts = [traceparent_of(recorded.named(name)) for name in ("a", "b")]
    assert linked(batch) == {context.split("-")[2] for context in (*contexts, TRACEPARENT)}
    assert [headers["traceparent"] for headers in channels.headers] == [*contexts, TRACEPARENT]


async def test_batch_of_several_senders_is_no_child_of_the_one_who_woke_the_producer(channels: FakeChannels) -> None:
    """The event loop runs the producer in the context of the first sender, also when others have sent by then."""
    with recording() as recorded:
        async with AsyncProducer(channels.address, "orders", config=ProducerConfig(**QUICK)) as producer:
            await (await producer.send(b"0"))
            with recorded.tracer.start_as_current_span("a"):
                _ = await producer.send(b"a")
            with recorded.tracer.start_as_current_span("b"):
                stored = await producer.send(b"b")
            await stored
    assert [span.parent for span in recorded.all() if span.name == "append orders"] == [None, None]


def test_batch_without_a_senders_span_gives_its_own_context(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """So that its consumers are linked to it."""
    with recording(event_context=True) as recorded:
        producer = producer_of(channels)
        producer.send(b"1").result(60)
        producer.close()
    assert channels.headers == [{"traceparent": traceparent_of(recorded.named("append orders"))}]


def test_batch_without_event_context_changes_no_event(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """Spans alone add nothing to what is stored."""
    with recording() as recorded:
        producer = producer_of(channels)
        with recorded.tracer.start_as_current_span("request"):
            producer.send(b"1").result(60)
        producer.close()
    assert channels.headers == [{}]
    assert recorded.named("append orders").parent is None


def test_batch_that_is_not_sampled_still_passes_the_context_on(
    channels: FakeChannels, producer_of: MakeProducer
) -> None:
    """Others must learn that the trace is not sampled."""
    with recording(ALWAYS_OFF, event_context=True) as recorded:
        producer = producer_of(channels)
        producer.send(b"1").result(60)
        producer.close()
    assert recorded.all() == []
    [headers] = channels.headers
    assert not int(headers["traceparent"].split("-")[3], 16) & TraceFlags.SAMPLED


def test_batch_that_fails_has_the_error(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """By the reason that the server gave."""
    channels.outcomes.append(RefusalError(grpc.StatusCode.NOT_FOUND, "CHANNEL_NOT_FOUND"))
    with recording() as recorded:
        producer = producer_of(channels)
        with pytest.raises(SendFailedError):
            producer.send(b"1").result(60)
        producer.close()
    batch = recorded.named("append orders")
    assert attributes_of(batch)["error.type"] == "CHANNEL_NOT_FOUND"
    assert not batch.status.is_ok
