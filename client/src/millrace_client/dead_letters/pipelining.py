"""Many small appends to one channel, none of which waits for the answer to the one before it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import grpc

from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from millrace.wire_format import field_head
from millrace_client._calls import KEEP_ALIVE_SECONDS
from millrace_client._methods import APPEND_STREAM
from millrace_client.channel import Channel
from millrace_client.events import Event, Stamp, columns_of


class StampedEvents(NamedTuple):
    """What one append stores."""

    events: Sequence[Event]
    stamp: Stamp


def append_pipelined(channel: Channel, appends: Sequence[StampedEvents], after_each: Callable[[], None]) -> int:
    """Stores appends of one producer, in order: none is stored unless all before it are.

    Does not say why one is refused: whoever appends the rest again, one by one, learns that, and the stamps keep what
    was stored without an answer from being stored twice.

    Args:
        channel: Where to.
        appends: Whose numbers ascend. All of them together should be small: they are sent at once.
        after_each: Called after each answer.

    Returns:
        How many are stored for sure, counted from the first.
    """
    connection = channel._connection  # noqa: SLF001 - of this package; the face has no call for many appends
    make: grpc.StreamStreamMultiCallable[bytes, pb.AppendStreamResponse]
    make = connection.opened().channel.stream_stream(APPEND_STREAM.path, None, APPEND_STREAM.parse)
    call = make(_requests(channel.name, appends), connection.settings.timeout_seconds + KEEP_ALIVE_SECONDS)
    stored_count = 0
    try:
        with suppress(grpc.RpcError):
            for answer in call:
                if answer.HasField("error"):
                    break
                stored_count += 1
                after_each()
    finally:
        call.cancel()
    return stored_count


def _requests(channel: str, appends: Sequence[StampedEvents]) -> Iterator[bytes]:
    after: int | None = None
    for events, stamp in appends:
        batches = columns_of(events)
        if len(batches) != 1:
            # They have too many different headers for one message.
            return
        wire_stamp = event_pb2.ProducerStamp(
            producer_id=stamp.producer_id,
            first_sequence=stamp.first_sequence,
            last_sequence=stamp.last_sequence,
            after_sequence=after,
        )
        head = pb.AppendStreamRequest(channel=channel, stamp=wire_stamp).SerializeToString()
        columns = batches[0].SerializeToString()
        yield b"".join((head, field_head(pb.AppendStreamRequest.COLUMNS_FIELD_NUMBER, len(columns)), columns))
        after = stamp.last_sequence
