"""The channel: its identity and configuration, and the parts that do its work."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from millrace_server.channels.activity import ConsumerInfo, OpenTransaction
from millrace_server.channels.admission import NAMED_CHANNEL, Capacity, LimitingChannels
from millrace_server.channels.append_queue import AppendQueue
from millrace_server.channels.appends import Appends
from millrace_server.channels.batches import Form, StoredBatch
from millrace_server.channels.channel_core import ChannelCore, ChannelStorage
from millrace_server.channels.claims import Claim, ClaimRegistry
from millrace_server.channels.commit import Commit
from millrace_server.channels.committer import REMOVED_BATCHES_MAX, MemoryCommitter, remove
from millrace_server.channels.config import ChannelConfig, check_identifier
from millrace_server.channels.contents import ChannelCounters, Contents, Subscriber
from millrace_server.channels.deliveries import Deliveries
from millrace_server.channels.forecast import Forecast, Forecaster
from millrace_server.channels.queue import ResponseBudget, TakeLimits
from millrace_server.channels.queue_times import QueueTimes
from millrace_server.channels.stamps import StampLedger
from millrace_server.channels.transactions import Transactions, TxnDirectory
from millrace_server.errors import MillraceError, ProducerNotFoundError
from millrace_server.histograms import Histograms

_MICROSECONDS = 1_000_000
_start_time = attrgetter("start_time")


def memory_storage(name: str, config: ChannelConfig, histograms: Histograms | None = None) -> ChannelStorage:
    """Returns the storage of a new channel in memory."""
    queue_times = None if histograms is None else QueueTimes(histograms.queue_times.of(config.type))
    contents = Contents(name, Capacity(config.capacity, config.body_bytes_max), queue_times=queue_times)
    return ChannelStorage(
        channel_id=secrets.token_hex(16),
        contents=contents,
        committer=MemoryCommitter(contents),
        epochs_from=int(time.time() * _MICROSECONDS),
    )


class ChannelGauges(NamedTuple):
    """A channel at one moment."""

    capacity: int  # Events that it may hold.
    queued_events: int  # Events that are not taken.
    taken_events: int  # Events that transactions and deliveries have taken.
    memory_events: int  # Events that a crash loses.
    body_bytes: int  # Bytes of all bodies in the channel, taken ones included.
    body_bytes_max: int
    open_transactions: int  # Deliveries included.
    waiting_takes: int  # Takes that wait for an event.
    waiting_commits: int  # Commits that wait for space.
    producers: int  # Producers whose stamps are remembered.
    claims: int  # 1 while a reader's claim lives, else 0.
    first_sequence: int  # The oldest queued sequence; the next one where the queue is empty.
    next_sequence: int  # The sequence that the next event gets.
    oldest_commit_time: int  # Of the oldest event, queued or taken, in microseconds since 1970; 0 if there is none.
    last_put_time: int  # When a commit last stored events since the opening; 0 if none has. So is `last_take_time`.
    last_take_time: int


@dataclass(slots=True)
class Taking:
    """Single events that are taken for a while; see `Channel.taking`."""

    events: Sequence[StoredBatch]
    """Each a batch of one."""
    kept: set[int] = field(default_factory=set)
    """The sequences of those that return to their positions."""


class Channel:
    """A named, ordered queue of events.

    All methods run on the event loop that created the channel. Those that are not coroutines are atomic. The holder of
    `updating` changes the configuration: a change may wait for space, and the next one builds on it.
    """

    def __init__(
        self,
        name: str,
        config: ChannelConfig,
        storage: ChannelStorage,
        directory: TxnDirectory,
        response_bytes_max: int,
    ) -> None:
        self.name = name
        self.channel_id = storage.channel_id
        self.start_time = time.time()
        self.updating = asyncio.Lock()
        self._core = ChannelCore(name, config, storage, directory.limit, response_bytes_max)
        self._contents = storage.contents
        self._clock = asyncio.get_running_loop().time
        self._forecaster = Forecaster(storage.contents.capacity)
        self.transactions = Transactions(self._core, directory, storage.ended)
        self.appends = Appends(self._core)
        self.append_queue = AppendQueue(self.appends)
        self.deliveries = Deliveries(self._core, self.transactions)
        self._last_forgetting: Commit | None = None

    # Its state.

    @property
    def config(self) -> ChannelConfig:
        return self._core.config

    @property
    def claims(self) -> ClaimRegistry:
        return self._core.claims

    @property
    def fault(self) -> MillraceError | None:
        return self._core.committer.fault

    @property
    def is_stalled(self) -> bool:
        return self._core.committer.is_stalled

    @property
    def disk_trouble(self) -> str:
        return self._core.committer.disk_trouble

    @property
    def ledger(self) -> StampLedger:
        """What producers have stored; their last commits may still be in flight."""
        return self._contents.ledger

    @property
    def counters(self) -> ChannelCounters:
        return self._contents.counters

    @property
    def event_count(self) -> int:
        return self._contents.capacity.event_count

    @property
    def queued_count(self) -> int:
        """Events that are committed and not taken."""
        return self._contents.queue.event_count

    @property
    def taken_count(self) -> int:
        """Events that transactions and deliveries have taken."""
        return self._contents.taken_count

    @property
    def last_put_time(self) -> int:
        """When a commit last stored events since the opening, in microseconds since 1970; 0 if none has."""
        return self._contents.last_put_time

    @property
    def last_take_time(self) -> int:
        return self._contents.last_take_time

    @property
    def open_transactions(self) -> int:
        return self._core.channel_limit.open_count

    @property
    def first_sequence(self) -> int:
        return self._contents.first_sequence

    @property
    def oldest_sequence(self) -> int:
        """The oldest sequence, queued or taken; all before it are removed. Takes O(taken batches)."""
        return self._contents.oldest_sequence

    @property
    def next_sequence(self) -> int:
        return self._contents.next_sequence

    @property
    def used_fraction(self) -> float:
        """The used part of the capacity, in events or in bytes, whichever is larger."""
        capacity = self._contents.capacity
        return max(capacity.event_count / capacity.events_max, capacity.body_bytes / capacity.body_bytes_max)

    @property
    def has_waiting_commits(self) -> bool:
        return bool(self._contents.capacity.waiters)

    def gauges(self) -> ChannelGauges:
        contents, capacity, core = self._contents, self._contents.capacity, self._core
        # By position: by name it would take more than twice as long, for each of thousands of channels at each scrape.
        return ChannelGauges(
            capacity.events_max,
            contents.queue.event_count,
            contents.taken_count,
            core.committer.memory_event_count,
            capacity.body_bytes,
            capacity.body_bytes_max,
            core.channel_limit.open_count,
            len(contents.takers),
            len(capacity.waiters),
            len(contents.ledger),
            int(core.claims.claim is not None),
            contents.first_sequence,
            contents.next_sequence,
            contents.oldest_commit_time,
            contents.last_put_time,
            contents.last_take_time,
        )

    def forecast(self) -> Forecast:
        """Returns when the channel will be full or empty; see `Forecaster`."""
        return self._forecaster.forecast()

    def has_space(self, event_count: int, body_bytes: int) -> bool:
        return self._contents.capacity.admits(event_count, body_bytes)

    def refuse_if_closed(self) -> None:
        self._contents.refuse_if_closed()

    # Reading without taking.

    def first_since(self, time: int) -> tuple[int, int]:
        """Returns the first event that was committed at or after a time; see `Contents.first_since`."""
        self._contents.refuse_reading()
        return self._contents.first_since(time)

    async def queued(self, from_sequence: int) -> AsyncGenerator[StoredBatch]:
        """Yields the queued batches from a sequence on, up to the newest that is committed now."""
        # Also where there are none: the owner may have some.
        self._contents.refuse_reading()
        end = self._contents.next_sequence
        while batches := self._contents.queue.read(from_sequence, end):
            async for batch in self._contents.load(batches):
                self._contents.refuse_reading()
                yield batch
            from_sequence = batches[-1].end_sequence

    def subscribe(self) -> Subscriber:
        """Returns a subscriber to all batches that are committed from now on, until `unsubscribe`."""
        return self._contents.subscribe()

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self._contents.unsubscribe(subscriber)

    def parts(self, batch: StoredBatch, form: Form) -> Iterator[StoredBatch]:
        """Splits a batch into parts that each fit a response; most batches fit whole."""
        start = 0
        while start < batch.count:
            rest = batch.part(start, batch.count)
            response = self._core.limits.response_limits(TakeLimits(form=form), rest.count)
            count = ResponseBudget(response).admit(rest)
            yield rest.part(0, count)
            start += count

    def wake_takers(self) -> None:
        """Wakes all takes and deliveries that wait for events, to check their conditions again."""
        self._contents.takers.wake_all()

    # Claims.

    async def claim(self, reader_id: str, lease_seconds: float | None, *, takeover: bool, owner: str = "") -> Claim:
        self._core.refuse_new()
        lease_seconds = lease_seconds or self.config.lease_seconds
        return await self.claims.grant(reader_id, lease_seconds, takeover=takeover, owner=owner)

    def renew_claim(self, reader_id: str, epoch: int, lease_seconds: float | None) -> Claim:
        """Renews a claim, also while the server drains."""
        return self.claims.renew(reader_id, epoch, lease_seconds or self.config.lease_seconds)

    async def wait_for_events(self, claim: Claim, after_sequence: int, wait_seconds: float) -> None:
        """Waits until there is an event after a sequence, or the time has passed. The claim's lease is paused.

        Raises:
            NotClaimedError, ChannelClaimedError, StaleEpochError: The claim has ended in the meantime.
        """
        give_up = self._clock() + wait_seconds
        with claim.lease.paused(), self._contents.readers.join() as waiter:
            while self._contents.next_sequence - 1 <= after_sequence and give_up > self._clock():
                self._core.refuse_new()
                await waiter.wait(give_up - self._clock())
                self.claims.renew(claim.reader_id, claim.epoch)

    # Operations.

    def list_transactions(self) -> list[OpenTransaction]:
        """Returns the open transactions and deliveries, the oldest first."""
        return sorted(self.transactions.describe() + self.deliveries.describe(), key=_start_time)

    def end_transaction(self, txn_id: str) -> None:
        """Rolls a transaction or a listed delivery back; does nothing where it was rolled back before.

        Raises:
            TxnNotFoundError: There is none of this id.
            TxnStateError: It is committed, or is being committed.
        """
        self._contents.refuse_if_closed()
        if not self.deliveries.end(txn_id):
            self.transactions.rollback(txn_id)

    def list_consumers(self) -> list[ConsumerInfo]:
        """Returns the streams and sinks that get deliveries, the oldest first."""
        return self.deliveries.describe_consumers()

    async def forget_producer(self, producer_id: str) -> None:
        """Forgets what a producer has stored, durably once this returns; a repeat for the last one changes nothing.

        Raises:
            ProducerNotFoundError: The channel does not know it.
            DiskFullError, ChannelLogFailedError: Nothing was changed.
        """
        self._contents.refuse_if_closed()
        check_identifier("producer_id", producer_id)
        forgetting = self._last_forgetting
        if producer_id in self._contents.ledger:
            forgetting = self._last_forgetting = Commit([], [])
            forgetting.forgotten_producer = producer_id
            self._core.committer.submit(forgetting)
        elif forgetting is None or forgetting.forgotten_producer != producer_id:
            raise ProducerNotFoundError(f"the channel knows no producer {producer_id!r}", channel=self.name)
        await forgetting

    async def purge(self) -> int:
        """Removes all queued events without delivering them; returns their number."""
        self._contents.refuse_if_closed()
        newest, count = self._contents.next_sequence - 1, 0
        while True:
            purged = self._contents.take_through(newest, REMOVED_BATCHES_MAX)
            await remove(self._contents, self._core.committer, purged, is_purge=True)
            count += sum(batch.count for batch in purged)
            if len(purged) < REMOVED_BATCHES_MAX:
                return count
            await asyncio.sleep(0)

    @asynccontextmanager
    async def taking(self, sequences: Sequence[int]) -> AsyncGenerator[Taking]:
        """Takes single events, those that are queued, while the block runs.

        At its end they are removed, durably, except those that are to be kept; after an error all are kept.
        """
        self._core.refuse_new()
        self.claims.refuse_if_claimed()
        taken = await self._contents.take_events(sequences)
        self._core.count_take(taken)
        taking = Taking(taken)
        try:
            yield taking
        except BaseException:
            self._contents.put_back(taken)
            raise
        self._contents.put_back([event for event in taken if event.first_sequence in taking.kept])
        removed = [event for event in taken if event.first_sequence not in taking.kept]
        await remove(self._contents, self._core.committer, removed)

    async def update(self, config: ChannelConfig) -> str:
        """Applies a new configuration, all of it or nothing.

        Growing is immediate. Shrinking below what the channel holds waits up to the keep-alive.

        Returns:
            Why nothing was changed; empty on success.
        """
        contents = self._contents
        if not await contents.resize(config.capacity, config.body_bytes_max, self.config.keep_alive_seconds):
            return (
                f"the channel holds {contents.capacity.event_count} events with {contents.capacity.body_bytes} body "
                f"bytes, and the new limits are {config.capacity} and {config.body_bytes_max}"
            )
        self.enforce(config)
        return ""

    def enforce(self, config: ChannelConfig, limiting: LimitingChannels = NAMED_CHANNEL) -> None:
        """Applies a configuration at once; the channel may hold more than its limits allow.

        `limiting` are the channels that errors name for its limits, if not this one.
        """
        self._core.enforce(config, limiting)

    def drain(self, error: Callable[[], MillraceError] | None = None) -> None:
        """Refuses new work from now on, with an error, DrainingError without one; open transactions may end."""
        if error is not None:
            self._core.draining_error = error
        self._core.is_draining = True
        self._core.retention.stop()
        self._contents.takers.wake_all()
        self._contents.readers.wake_all()

    def guard_reading(self, may_be_read: Callable[[], bool]) -> None:
        """Refuses takes, reads and peeks whenever this server may not be the channel's owner any more."""
        self._contents.may_be_read = may_be_read

    def delete(self) -> None:
        """Ends everything; waiting and later calls raise ChannelNotFoundError."""
        self.close()

    def close(self, error: Callable[[], MillraceError] | None = None) -> None:
        """Ends everything, open transactions too; waiting and later calls raise the error; see `Contents.close`."""
        self._core.retention.stop()
        self._contents.close(error)
        self.claims.forget()
        # These first: the ids of those that were listed belong to the transactions.
        self.deliveries.close()
        self.transactions.close()
