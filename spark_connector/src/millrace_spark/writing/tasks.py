"""The task's part of a write: puts rows into open transactions, which the driver commits."""

import sys
from collections.abc import Iterable
from contextlib import ExitStack

import pyarrow as pa

import millrace_client as millrace
from millrace.columns import ColumnsCutter
from millrace.v1 import event_pb2
from millrace_spark.errors import MillraceSparkError
from millrace_spark.servers import TRANSIENT, RetryPolicy, translated_errors
from millrace_spark.shards import Shard
from millrace_spark.tracing import traced
from millrace_spark.workers import freeze_loaded_objects
from millrace_spark.writing.driver import PUT_ADVICE, ShardPuts, roll_back
from millrace_spark.writing.event_columns import MESSAGE_BYTES_MAX, MESSAGE_ROWS_MAX, event_columns
from millrace_spark.writing.leases import LeaseKeeper
from millrace_spark.writing.options import WriteOptions
from millrace_spark.writing.routing import RowRouter

SHARDS_MAX = 1_000
"""The most shards of one task; each has an open transaction and rows in memory."""

BUFFERED_BYTES_MAX = 64 * 1024 * 1024
"""The maximum number of bytes of rows that a task buffers, for all shards together, until there are enough for a
message."""

_CALL_SECONDS_MIN = 10.0
"""The shortest deadline of a call, however short retrySeconds is."""


def put_all(batches: Iterable[pa.RecordBatch], options: WriteOptions, turn: int) -> tuple[ShardPuts, ...]:
    """Puts rows into open transactions, whose remaining lease is `leaseSeconds` when this returns.

    Args:
        batches: The rows; `millrace_spark.writing.schema` describes their columns.
        options: Where to, and how.
        turn: Chooses the server of rows that have no key.

    Raises:
        MillraceSparkError: A row cannot be stored, or a server refuses or is unreachable. The transactions are rolled
            back if possible; otherwise they end with their leases.
    """
    freeze_loaded_objects()
    router = RowRouter(options, turn)
    with traced(options.tracing, "append", options.channel) as span, ExitStack() as stack:
        puts = _TaskWriter(options, stack)
        try:
            for rows in batches:
                for shard, events in router.route(rows):
                    puts.add(shard, events)
            finished = puts.finish()
        except BaseException:
            puts.abandon()
            raise
        if span is not None:
            span.set_attribute("messaging.batch.message_count", sum(shard_puts.event_count for shard_puts in finished))
        return finished


class _TaskWriter:
    """Writes the rows of one task, to all shards."""

    def __init__(self, options: WriteOptions, stack: ExitStack) -> None:
        self._options = options
        self._stack = stack
        self._keeper = LeaseKeeper(options.lease_seconds, options.security)
        self._clients: dict[str, millrace.Client] = {}
        self._shards: dict[Shard, _ShardWriter] = {}
        self._buffered_bytes = 0

    def add(self, shard: Shard, events: pa.RecordBatch) -> None:
        writer = self._shards.get(shard)
        if writer is None:
            writer = self._shards[shard] = self._writer(shard)
        self._buffered_bytes -= writer.buffered_bytes
        writer.add(events)
        self._buffered_bytes += writer.buffered_bytes
        if self._buffered_bytes > BUFFERED_BYTES_MAX:
            self._put_buffered()

    def finish(self) -> tuple[ShardPuts, ...]:
        self._put_buffered()
        self._keeper.stop(is_for_commit=True)
        return self._puts()

    def abandon(self) -> None:
        self._keeper.stop(is_for_commit=False)
        roll_back(self._puts(), self._options.security)

    def _puts(self) -> tuple[ShardPuts, ...]:
        return tuple(writer.puts for writer in self._shards.values() if writer.puts.txn_ids)

    def _put_buffered(self) -> None:
        for writer in self._shards.values():
            writer.put_buffered()
        self._buffered_bytes = 0

    def _writer(self, shard: Shard) -> "_ShardWriter":
        if len(self._shards) >= SHARDS_MAX:
            raise MillraceSparkError(
                f"column channel: a task writes to more than {SHARDS_MAX:,} channels; repartition by channel, or write "
                "to fewer channels at once"
            )
        client = self._clients.get(shard.endpoint)
        if client is None:
            # Waits for an unreachable server within the deadline of a call.
            connected = self._options.security.connect(
                shard.endpoint,
                timeout_seconds=max(self._options.retry_seconds, _CALL_SECONDS_MIN),
                wait_for_ready=True,
            )
            client = self._clients[shard.endpoint] = self._stack.enter_context(connected)
        return _ShardWriter(client, shard, self._options, self._keeper)


class _ShardWriter:
    """Puts rows into one channel on one server, one transaction after the other."""

    def __init__(self, client: millrace.Client, shard: Shard, options: WriteOptions, keeper: LeaseKeeper) -> None:
        self.buffered_bytes = 0
        self._client = client
        self._shard = shard
        self._options = options
        self._keeper = keeper
        self._buffered: list[pa.RecordBatch] = []
        self._buffered_count = 0
        self._txn: millrace.Transaction | None = None
        self._txn_ids: list[str] = []
        self._capacity: int | None = None
        self._space = 0
        self._message_events_max = sys.maxsize
        self._event_count = 0

    @property
    def puts(self) -> ShardPuts:
        return ShardPuts(self._shard, tuple(self._txn_ids), self._event_count)

    def add(self, events: pa.RecordBatch) -> None:
        """Buffers rows until there are enough for a message."""
        self._buffered.append(events)
        self._buffered_count += events.num_rows
        self.buffered_bytes += events.nbytes
        if self._buffered_count >= MESSAGE_ROWS_MAX or self.buffered_bytes >= MESSAGE_BYTES_MAX:
            self.put_buffered()

    def put_buffered(self) -> None:
        buffered, self._buffered = self._buffered, []
        self._buffered_count = self.buffered_bytes = 0
        if not buffered:
            return
        joined = pa.Table.from_batches(buffered).combine_chunks().to_batches() if len(buffered) > 1 else buffered
        with translated_errors(self._shard.endpoint, self._shard.channel, advice_by_reason=PUT_ADVICE):
            for rows in joined:
                for columns in event_columns(rows):
                    self._put(columns)

    def _put(self, columns: event_pb2.EventColumns) -> None:
        cutter: ColumnsCutter | None = None
        start = 0
        while start < columns.count:
            if not self._space:
                self._begin()
            stop = min(start + min(self._space, self._message_events_max), columns.count)
            part = columns
            if stop - start < columns.count:
                cutter = cutter or ColumnsCutter(columns)
                part = cutter.cut(start, stop)
            try:
                self._put_into_txn(part)
            except millrace.TxnCapacityError:
                # The channel's transaction capacity may have been reduced since it was read.
                known, self._capacity = self._capacity, None
                self._begin()
                if self._space >= (known or 0):
                    raise
                continue
            except millrace.MessageTooLargeError:
                # The server has a lower message limit. It has not seen this message, but the transaction cannot know
                # that, and refuses further puts.
                if part.count == 1:
                    raise
                self._message_events_max = part.count // 2
                self._begin()
                continue
            self._space -= stop - start
            self._event_count += stop - start
            start = stop

    def _begin(self) -> None:
        retries = RetryPolicy(self._options.retry_seconds, TRANSIENT)
        self._txn, self._space = retries.call(self._begun)
        self._txn_ids.append(self._txn.txn_id)
        self._keeper.add(self._shard, self._txn.txn_id)

    def _begun(self) -> tuple[millrace.Transaction, int]:
        """Begins a transaction; returns it with its capacity in events."""
        channel = self._client.channel(self._shard.channel)
        if self._capacity is None:
            self._capacity = self._client.admin.append_capacity(channel.name)
        return channel.transaction(self._options.lease_seconds).begin(), self._capacity

    def _put_into_txn(self, columns: event_pb2.EventColumns) -> None:
        txn = self._txn
        assert txn is not None, "there is space only in a transaction"
        # If the outcome of a put is unknown, the transaction fails with another error, which is not retried.
        RetryPolicy(self._options.retry_seconds, {millrace.RetryAdvice.FULL}).call(lambda: txn.put_columns(columns))
