"""The source `kafka`."""

import asyncio
from collections.abc import Sequence
from functools import partial

import structlog

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.sources.kafka.config import KafkaSourceConfig
from millrace_server.agent.sources.kafka.consumer import Fetched, PartitionConsumer
from millrace_server.agent.sources.kafka.records import SKIPPED
from millrace_server.agent.sources.stored_ranges import asked_by_threads
from millrace_server.agent.worker_thread import WorkerThread
from millrace_server.channels.stamps import Stamp

STAY_SECONDS = 2.0
"""The interval at which the source polls to remain in the group while records cannot be stored."""

CLOSE_SECONDS = 5.0
"""How long a run waits for the brokers to accept the last commit when it ends; the channels know what is stored."""


class KafkaSource:
    """Stores the records of partitions, each exactly once and in order.

    Each partition is a producer, and the stamp of a batch says which offsets it covers. So the channels themselves know
    what they have stored, whether or not the subsequent commit of the group's offset succeeds.

    A thread fetches the next records, and converts them to events, while the previous ones are being stored.
    """

    def __init__(self, name: str, config: KafkaSourceConfig) -> None:
        self._name = name
        self._config = config

    async def run(self, writer: ChannelWriter) -> None:
        thread = WorkerThread(f"kafka {self._name}")
        consumer = await thread.submit(partial(self._consumer, writer, asyncio.get_running_loop()))
        try:
            await thread.submit(consumer.open)
            await _Pump(writer, thread, consumer).run()
        finally:
            # A rebalance must not wait for records that will not be stored.
            consumer.is_stored.set()
            await thread.end_with(consumer.close, CLOSE_SECONDS)

    def _consumer(self, writer: ChannelWriter, loop: asyncio.AbstractEventLoop) -> PartitionConsumer:
        log = structlog.stdlib.get_logger(__name__).bind(source=self._name)

        def report(incident: str, message: str, **fields: object) -> None:
            level = log.info if incident == "rebalance" else log.warning
            level(message, **fields)
            loop.call_soon_threadsafe(writer.note_incident, incident)

        return PartitionConsumer(self._config, self._name, asked_by_threads(writer, loop), report)


class _Pump:
    """Moves records from the consumer to the writer."""

    def __init__(self, writer: ChannelWriter, thread: WorkerThread, consumer: PartitionConsumer) -> None:
        self._writer = writer
        self._thread = thread
        self._consumer = consumer

    async def run(self) -> None:
        upcoming = self._thread.submit(self._consumer.fetch)
        try:
            while True:
                fetched = await upcoming
                # Only now, since a missing topic is an error of the first fetch.
                self._writer.report_running()
                self._count_remarks()
                # Before the next fetch, in which a rebalance may wait for these records.
                self._consumer.is_stored.clear()
                upcoming = self._thread.submit(self._consumer.fetch)
                await self._store(fetched, upcoming)
        finally:
            upcoming.cancel()

    def _count_remarks(self) -> None:
        remarks = self._consumer.records.remarks
        for remark in list(remarks):
            count = remarks.pop(remark)
            if remark == SKIPPED:
                self._writer.count_filtered(count)
            self._writer.note_incident(remark, count)

    async def _store(self, fetched: Sequence[Fetched], upcoming: "asyncio.Future[list[Fetched]]") -> None:
        tasks = [asyncio.create_task(self._store_partition(each)) for each in fetched]
        storing = asyncio.gather(*tasks)
        # A callback, since a rebalance on the thread may be waiting for it.
        storing.add_done_callback(lambda _: self._consumer.is_stored.set())
        try:
            while not storing.done():
                await asyncio.wait({storing}, timeout=STAY_SECONDS)
                if not storing.done() and upcoming.done():
                    await self._thread.submit(self._consumer.stay_in_group)
            storing.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, storing, return_exceptions=True)

    async def _store_partition(self, fetched: Fetched) -> None:
        writer, assigned = self._writer, fetched.assigned
        for batch in fetched.batches:
            sizes = list(map(len, batch.table.bodies))
            for piece in assigned.cutter.pieces(batch.offsets, sizes, writer.events_max, writer.body_bytes_max):
                first, last = piece.first_number, piece.last_number
                # Older records no longer exist, so channels need not remember which of them were skipped.
                oldest_open = min(assigned.oldest_offset, first) or None
                stamp = Stamp(assigned.producer_id, first, last, oldest_open=oldest_open)
                await writer.deliver(batch.table.part(piece.start, piece.stop), stamp)
                self._consumer.note_stored(fetched.key, batch.offsets[piece.stop - 1] + 1)
            self._consumer.note_stored(fetched.key, batch.next_offset)
