"""Chooses the server and channel of each row."""

from array import array
from collections.abc import Iterator
from functools import cache
from itertools import accumulate, pairwise
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from millrace.arrow import plain
from millrace_client.producing.channel_buffer import BUCKETS
from millrace_client.producing.routing import ranked
from millrace_spark.errors import MillraceSparkError
from millrace_spark.shards import Shard
from millrace_spark.writing.options import WriteOptions, WriteRouting

_EVENT_COLUMNS = ("body", "headers")

assert not BUCKETS & (BUCKETS - 1), "lanes are masked out of a hash"


class RowRouter:
    """Distributes rows among shards, and keeps their order within each shard.

    A key goes to the same server as with a `Producer` that routes by key. If a server is added or removed, only the
    keys that it gains or loses move.

    Args:
        turn: Chooses the server of rows without a key; a repeat of the same rows needs the same number.
    """

    def __init__(self, options: WriteOptions, turn: int) -> None:
        self._endpoints = options.endpoints
        self._channel = options.channel
        self._is_by_key = len(options.endpoints) > 1 and options.routing is WriteRouting.KEY
        self._turn = turn % len(options.endpoints)

    def route(self, rows: pa.RecordBatch) -> Iterator[tuple[Shard, pa.RecordBatch]]:
        """Yields the rows of each shard, with the columns `body` and `headers` only."""
        columns = {name.lower(): rows.column(position) for position, name in enumerate(rows.schema.names)}
        events = pa.RecordBatch.from_arrays(
            [columns[name] for name in _EVENT_COLUMNS if name in columns],
            names=[name for name in _EVENT_COLUMNS if name in columns],
        )
        if not rows.num_rows:
            return
        channels, channel_numbers = self._channels(columns)
        server_numbers = self._servers(columns)
        if channel_numbers is None and server_numbers is None:
            yield Shard(channels[0], self._endpoints[self._turn]), events
            return
        numbers = _numbers(channel_numbers, server_numbers, self._turn, len(self._endpoints))
        # A stable sort keeps the rows of each shard in order.
        order = pc.array_sort_indices(numbers)
        counts = {counted["values"]: counted["counts"] for counted in pc.value_counts(numbers).to_pylist()}
        ends = accumulate((counts[number] for number in sorted(counts)), initial=0)
        for number, (start, stop) in zip(sorted(counts), pairwise(ends), strict=True):
            channel_number, server_number = divmod(number, len(self._endpoints))
            shard = Shard(channels[channel_number], self._endpoints[server_number])
            # Not a slice, which would keep all rows in memory while a few of them wait in the buffer.
            yield shard, events.take(order.slice(start, stop - start))

    def _channels(self, columns: dict[str, pa.Array]) -> tuple[list[str], pa.Array | None]:
        """Returns the channels, and the index of each row's channel; None if all rows go to the first."""
        if self._channel:
            return [self._channel], None
        names = columns["channel"]
        if names.null_count:
            raise MillraceSparkError(
                "column channel: is null in a row; fill it in, or set the option channel, which applies to all rows"
            )
        encoded = plain(names).cast(pa.string()).dictionary_encode()
        try:
            channels = encoded.dictionary.to_pylist()
        except UnicodeDecodeError:
            raise MillraceSparkError("column channel: a name is not UTF-8; it must be that of a channel") from None
        return channels, None if len(channels) == 1 else encoded.indices

    def _servers(self, columns: dict[str, pa.Array]) -> pa.Array | None:
        """Returns the index of each row's server; None if all rows go to the server of this turn."""
        if not self._is_by_key:
            return None
        keys = plain(columns["key"]).cast(pa.binary()).dictionary_encode()
        # Keys may be unique to each event, so the loop is in C.
        hashes = array("I", map(crc32, keys.dictionary.to_pylist()))
        lanes = pc.bit_wise_and(
            pa.Array.from_buffers(pa.uint32(), len(hashes), [None, pa.py_buffer(hashes)]),
            pa.scalar(BUCKETS - 1, pa.uint32()),
        )
        homes = _homes(self._endpoints).take(lanes)
        return homes.take(keys.indices).fill_null(self._turn)


@cache
def _homes(endpoints: tuple[str, ...]) -> pa.Array:
    """For each lane of keys the number of its server."""
    return pa.array([endpoints.index(ranked(lane, endpoints)[0]) for lane in range(BUCKETS)], pa.int32())


def _numbers(channels: pa.Array | None, servers: pa.Array | None, turn: int, server_count: int) -> pa.Array:
    """Returns one number for the channel and server of each row."""
    if servers is None:
        servers = pa.scalar(turn, pa.int32())
    if channels is None:
        return servers
    return pc.add(pc.multiply(channels, pa.scalar(server_count, pa.int32())), servers)
