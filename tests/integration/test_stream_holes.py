"""A stream's driver, without Spark, on a real channel with gaps left by consumers."""

from contextlib import closing

import millrace_client as millrace
from millrace_spark.reading.offsets import OffsetJson
from millrace_spark.reading.options import parse_stream_options
from millrace_spark.reading.ranges import RangePartition
from millrace_spark.reading.stream import Stream
from tests.millraced import Millraced

_NAME = "stream-holes"


def sequences(channel: millrace.Channel, parts: list[RangePartition]) -> list[int]:
    """The sequences that tasks read from the partitions."""
    return [
        batch.first_sequence + index
        for part in parts
        for batch in channel.read(
            part.claimed.reader_id,
            from_sequence=part.from_sequence,
            to_sequence=part.to_sequence,
            epoch=part.claimed.epoch,
        )
        for index in range(len(batch))
    ]


def test_stream_over_a_hole_reads_each_event_once_across_restarts(shared_server: Millraced) -> None:
    """A prefetching consumer has committed 10 to 14 and rolled 1 to 9 back; batches of nine end exactly there."""
    with millrace.connect(shared_server.grpc) as client:
        client.admin.create_channel(_NAME, millrace.ChannelConfig(capacity=100))
        channel = client.channel(_NAME)
        channel.append([f"{number}" for number in range(1, 31)])
        with channel.transaction() as first, channel.transaction() as second:
            assert sum(map(len, first.take(9))) == 9
            assert sum(map(len, second.take(5))) == 5
            second.commit()
            first.rollback()
        options = {"endpoints": shared_server.grpc, "channels": _NAME, "readerId": "me", "maxEventsPerTrigger": "9"}
        read: list[int] = []
        start: OffsetJson | None = None
        # Each micro-batch is a run of its own, which plans, is ended, and reads again what was logged.
        for _ in range(3):
            with closing(Stream(parse_stream_options(options))) as stream:
                begin = start or stream.initial_offset()
                # Spark asks again, too.
                while (end := stream.next_offset(begin, is_limited=True)) is begin:
                    pass
                again = sequences(channel, stream.partitions(end))
            with closing(Stream(parse_stream_options(options))) as stream:
                assert sequences(channel, stream.partitions(end)) == again
            read += again
            start = end
        with closing(Stream(parse_stream_options(options))) as stream:
            stream.fix_end()
            assert stream.next_offset(start or {}, is_limited=True) is start
        assert read == [*range(1, 10), *range(15, 31)]
        assert client.admin.get_channel(_NAME).gauges.queued_events == 0
