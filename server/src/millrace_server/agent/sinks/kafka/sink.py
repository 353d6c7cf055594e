"""The sink `kafka`."""

import asyncio
from functools import partial

from millrace_server.agent.channel_reader import ChannelReader, Delivery, EventsRejectedError
from millrace_server.agent.sinks.kafka.config import KafkaSinkConfig
from millrace_server.agent.sinks.kafka.transactions import TransactionalProducer
from millrace_server.agent.worker_thread import WorkerThread

SLOW_SECONDS = 5.0
"""Brokers that have not responded for this long are reported in the sink's state."""

CLOSE_SECONDS = 2.0
"""How long a run waits for the brokers when it ends."""


class KafkaSink:
    """Sends each delivery in a transaction, and settles it once Kafka has committed the transaction.

    If the outcome of a transaction is uncertain, the sink starts over: the new producer reads from Kafka which events
    were committed, and these are settled without being sent again.
    """

    def __init__(self, config: KafkaSinkConfig, name: str) -> None:
        self._config = config
        self._name = name

    async def run(self, reader: ChannelReader) -> None:
        thread = WorkerThread(f"kafka {self._name}")
        make = partial(TransactionalProducer, self._config, self._name, reader.channel_id)
        producer = await thread.submit(make)
        try:
            await _open(producer, thread, reader)
            await _Run(self._config, reader, thread, producer).until_closed()
        finally:
            # If the thread is blocked, its transaction may end either way: the next producer fences this one, and then
            # reads the outcome.
            await thread.end_with(producer.close, CLOSE_SECONDS)


async def _open(producer: TransactionalProducer, thread: WorkerThread, reader: ChannelReader) -> None:
    """Opens the producer. Without brokers this takes up to `timeout_seconds`; the state shows the reason earlier."""
    opening = thread.submit(producer.open)
    try:
        done, _ = await asyncio.wait({opening}, timeout=SLOW_SECONDS)
        if not done:
            _report_slow_brokers(reader)
        await opening
    finally:
        opening.cancel()


def _report_slow_brokers(reader: ChannelReader) -> None:
    reader.report_problem(f"the brokers have not responded for {SLOW_SECONDS:g} s or more")


class _Run:
    """Sends one transaction at a time; deliveries that arrive in the meantime are joined for the next one.

    At most three things are in progress: `_taking` the next delivery, deliveries that are `_collected`, and `_sending`
    the previous ones.
    """

    def __init__(
        self, config: KafkaSinkConfig, reader: ChannelReader, thread: WorkerThread, producer: TransactionalProducer
    ) -> None:
        self._config = config
        self._reader = reader
        self._thread = thread
        self._producer = producer
        self._taking: asyncio.Future[Delivery | None] | None = None
        self._collected: Delivery | None = None
        self._sending: asyncio.Future[None] | None = None
        self._in_transaction: Delivery | None = None
        self._settling: set[asyncio.Task[None]] = set()
        self._has_ended = False

    async def until_closed(self) -> None:
        try:
            while self._begin_next():
                waiting = {future for future in (self._taking, self._sending) if future is not None}
                timeout = None if self._sending is None else SLOW_SECONDS
                done, _ = await asyncio.wait(
                    {*waiting, *self._settling}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    _report_slow_brokers(self._reader)
                await self._end_sending()
                self._end_taking()
                self._end_settling()
        finally:
            unfinished = [future for future in (self._taking, self._sending) if future is not None]
            for future in unfinished:
                future.cancel()
            # Settling continues even if these tasks are cancelled.
            await asyncio.gather(*unfinished, *self._settling, return_exceptions=True)

    def _begin_next(self) -> bool:
        """Starts whatever can be started now; returns whether anything is in progress."""
        if self._sending is None and self._collected is not None:
            self._in_transaction, self._collected = self._collected, None
            self._sending = asyncio.ensure_future(self._send(self._in_transaction))
        if self._taking is None and not self._has_ended and not self._is_full:
            self._taking = asyncio.ensure_future(self._reader.take(self._config.transaction_bytes_max))
        return not (self._taking is None and self._sending is None and not self._settling)

    @property
    def _is_full(self) -> bool:
        collected, config = self._collected, self._config
        return collected is not None and (
            collected.count >= config.batch_events_max or collected.body_bytes >= config.transaction_bytes_max
        )

    async def _send(self, delivery: Delivery) -> None:
        position = self._producer.position
        # On the event loop, to which the channel's columns belong.
        unsent = [batch.window.columns() for batch in position.unsent(delivery.batches)]
        if unsent:
            reached = position.after(delivery.batches, delivery.oldest_open_sequence)
            await self._thread.submit(partial(self._producer.send, unsent, reached))

    async def _end_sending(self) -> None:
        delivery = self._in_transaction
        if self._sending is None or not self._sending.done() or delivery is None:
            return
        sending, self._sending, self._in_transaction = self._sending, None, None
        try:
            sending.result()
        except EventsRejectedError as error:
            self._return_taken()
            await self._reader.reject(delivery, error)
        else:
            self._settling.add(asyncio.create_task(delivery.settle()))

    def _return_taken(self) -> None:
        """Returns the deliveries after a rejected one to the channel, so that the events keep their order."""
        if self._collected is not None:
            self._collected.nack()
            self._collected = None
        if self._taking is None or self._taking.cancel():
            self._taking = None
            return
        taken, self._taking = self._taking.result(), None
        self._has_ended = taken is None
        if taken is not None:
            taken.nack()

    def _end_taking(self) -> None:
        if self._taking is None or not self._taking.done():
            return
        delivery, self._taking = self._taking.result(), None
        if delivery is None:
            self._has_ended = True
        elif self._collected is None:
            self._collected = delivery
        else:
            self._collected.join(delivery)

    def _end_settling(self) -> None:
        for task in [task for task in self._settling if task.done()]:
            self._settling.discard(task)
            task.result()
