"""Everything that a channel accepts can be delivered, in responses of any size."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from millrace_server.channels.batches import Form, StoredBatch
from millrace_server.channels.channel import Channel
from millrace_server.channels.queue import TakeLimits
from millrace_server.errors import EventTooLargeError
from millrace_server.grpc_services.messages import timestamp_of
from tests.channel_events import begin, open_channel, stored_rows
from tests.event_rows import Row, rows
from tests.virtual_clock import VirtualClockLoop

REQUESTS = st.lists(rows(min_size=1), min_size=1, max_size=5)
LIMITS = st.builds(
    TakeLimits, events_max=st.integers(0, 5), body_bytes_max=st.integers(0, 30), form=st.sampled_from(Form)
)


@given(REQUESTS, st.integers(100, 1500), st.data())
def test_responses_of_whatever_was_stored_keep_their_limit(
    requests: Sequence[Sequence[Row]], response_bytes_max: int, data: st.DataObject
) -> None:
    """Accepted events are delivered in order, in rows or in columns, and no response is too large."""
    loop = VirtualClockLoop()
    try:
        loop.run_until_complete(_put_and_take(requests, response_bytes_max, data))
    finally:
        loop.close()


async def _put_and_take(requests: Sequence[Sequence[Row]], response_bytes_max: int, data: st.DataObject) -> None:
    channel = open_channel(capacity=100, response_bytes_max=response_bytes_max)
    expected = await _append(channel, requests)
    txn_id = begin(channel)
    received: list[Row] = []
    while len(received) < len(expected):
        limits = data.draw(LIMITS, "limits")
        # Sometimes a response is lost, and requested again with other limits.
        lost = data.draw(st.integers(0, min(len(received), 3)), "lost")
        del received[len(received) - lost :]
        batches, take_count = await channel.transactions.take(txn_id, limits, 0, len(received))
        response = [_respond(batch, limits.form) for batch in batches]
        assert pb.TakeResponse(batches=response).ByteSize() <= response_bytes_max
        taken = [row for batch in batches for row in batch.window.rows()]
        assert taken
        received += taken
        assert take_count == len(received)
    assert received == expected


async def _append(channel: Channel, requests: Sequence[Sequence[Row]]) -> list[Row]:
    """Appends requests; returns the events of those that were accepted."""
    stored: list[Row] = []
    for request in requests:
        try:
            await channel.appends.append([stored_rows(request)], None)
        except EventTooLargeError:
            continue
        stored += request
    return stored


def _respond(batch: StoredBatch, form: Form) -> event_pb2.EventBatch:
    response = event_pb2.EventBatch(
        first_sequence=batch.first_sequence,
        commit_time=timestamp_of(batch.first_time),
        commit_offsets=batch.commit_offsets(),
    )
    if form is Form.COLUMNS:
        response.columns.ParseFromString(bytes(batch.window.columns()))
    else:
        response.events.extend(event_pb2.Event(headers=headers, body=body) for headers, body in batch.window.rows())
    return response
