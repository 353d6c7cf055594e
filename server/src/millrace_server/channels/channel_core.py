"""What the transactions, deliveries and claims of one channel share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from millrace_server.channels.batches import Form, StoredBatch, StoredColumns
from millrace_server.channels.claims import ClaimRegistry
from millrace_server.channels.committer import ClaimRecord, Committer
from millrace_server.channels.config import ChannelConfig
from millrace_server.channels.contents import Contents
from millrace_server.channels.queue import AnswerLimits
from millrace_server.channels.transaction import EndedTxns, TxnLimit
from millrace_server.errors import BytesFullError, DrainingError, EventTooLargeError, TxnCapacityError

_UNLIMITED_BYTES = 1 << 62
_OPEN_BYTES_RETRY_DELAY_SECONDS = 1.0
_ROWS_MAX = 10_000
_ROWS_BYTES_MAX = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeLimits:
    """The limits that the caller of a take or a delivery sets; the channel's own limits apply too."""

    events_max: int = 0
    """At most this many events; 0: no limit."""

    body_bytes_max: int = 0
    """At most this many bytes of bodies; 0: no limit."""

    form: Form = Form.COLUMNS
    """How the answer is encoded."""


class ChannelLimits:
    """Refuses requests that are too large for a channel.

    Args:
        config: The channel's configuration.
        answer_bytes_max: Bytes that the events of one answer may have.
    """

    def __init__(self, config: ChannelConfig, answer_bytes_max: int) -> None:
        self.transaction_capacity = config.transaction_capacity
        self._body_bytes_max = config.body_bytes_max
        self._open_body_bytes_max = config.open_body_bytes_max
        self._answer_bytes_max = answer_bytes_max

    def refuse_too_large(self, batches: Sequence[StoredColumns]) -> None:
        """Raises EventTooLargeError where one event could not be stored, or not be fetched."""
        body_bytes_max = self._body_bytes_max
        for stored in batches:
            # No body is larger than all of them together, which is known without reading any.
            if stored.body_bytes > body_bytes_max and stored.largest_body_bytes > body_bytes_max:
                raise EventTooLargeError(
                    f"events: a body has {stored.largest_body_bytes} bytes; the channel holds {body_bytes_max} in all"
                )
            if (index := stored.first_index_above(self._answer_bytes_max)) is not None:
                raise EventTooLargeError(
                    f"events[{index}]: with its headers it would not fit an answer, which holds "
                    f"{self._answer_bytes_max} bytes"
                )

    def refuse_above_open_bytes(self, batches: Sequence[StoredColumns]) -> None:
        """Raises EventTooLargeError where one body has more bytes than one transaction may put."""
        body_bytes_max = self._open_body_bytes_max
        for stored in batches:
            if stored.body_bytes > body_bytes_max and stored.largest_body_bytes > body_bytes_max:
                raise EventTooLargeError(
                    f"events: a body has {stored.largest_body_bytes} bytes; the channel takes {body_bytes_max} at once"
                )

    def refuse_too_much(self, put_count: int, body_bytes: int) -> None:
        """Raises TxnCapacityError where a transaction would put more events or bytes of bodies than it may."""
        if put_count > self.transaction_capacity:
            raise TxnCapacityError(
                f"the transaction would put {put_count} events; transaction_capacity is {self.transaction_capacity}"
            )
        if body_bytes > self._open_body_bytes_max:
            raise TxnCapacityError(
                f"the transaction would put {body_bytes} body bytes; the channel takes {self._open_body_bytes_max} at "
                "once"
            )

    def refuse_open_bytes(self, open_body_bytes: int, body_bytes: int) -> None:
        """Raises BytesFullError where open transactions would hold too much: they may never commit it."""
        if open_body_bytes + body_bytes > self._open_body_bytes_max:
            raise BytesFullError(
                f"open transactions hold {open_body_bytes} body bytes, and {body_bytes} more are above what they may "
                f"hold together, {self._open_body_bytes_max}; put again when some have ended",
                retry_delay_seconds=_OPEN_BYTES_RETRY_DELAY_SECONDS,
            )

    def takes_left(self, take_count: int, txn_id: str) -> int:
        """How many more events a transaction may take; raises TxnCapacityError where there are none."""
        left = self.transaction_capacity - take_count
        if left <= 0:
            raise TxnCapacityError(
                f"the transaction has taken {take_count} events, all that transaction_capacity allows; "
                "commit it or roll it back",
                txn_id=txn_id,
            )
        return left

    def answer_limits(self, limits: TakeLimits, events_max: int) -> AnswerLimits:
        """What one answer holds, of at most `events_max` events."""
        answer_bytes_max = self._answer_bytes_max
        if limits.form is Form.ROWS:
            # Rows are encoded one by one, which holds up all other calls: so an answer in rows is small.
            events_max = min(events_max, _ROWS_MAX)
            answer_bytes_max = min(answer_bytes_max, _ROWS_BYTES_MAX)
        return AnswerLimits(
            events_max=min(limits.events_max or events_max, events_max),
            body_bytes_max=limits.body_bytes_max or _UNLIMITED_BYTES,
            answer_bytes_max=answer_bytes_max,
            form=limits.form,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStorage:
    """What a channel is opened with: its identity, what it holds, and how its commits become durable."""

    channel_id: str
    """Differs where a channel of the same name was deleted and created again."""
    contents: Contents
    committer: Committer
    epochs_from: int
    """All epochs of its claims are above it, so that no epoch of a former channel of the name is granted again."""
    ended: EndedTxns = field(default_factory=EndedTxns)
    """Transactions that ended before a restart."""
    claim: ClaimRecord | None = None
    """The newest claim before a restart."""


class ChannelCore:
    """The state that a channel's transactions and deliveries share.

    Attributes:
        server_limit: Counts the open transactions of all channels.
        channel_limit: Counts those of this one.
    """

    def __init__(
        self, name: str, config: ChannelConfig, storage: ChannelStorage, server_limit: TxnLimit, answer_bytes_max: int
    ) -> None:
        self.name = name
        self.config = config
        self.contents = storage.contents
        self.committer = storage.committer
        self.claims = ClaimRegistry(storage.contents, storage.committer, storage.epochs_from)
        self.limits = ChannelLimits(config, answer_bytes_max)
        self.server_limit = server_limit
        self.channel_limit = TxnLimit(f"channel {name!r}", lambda: self.config.open_transactions_max)
        self.is_draining = False
        self._answer_bytes_max = answer_bytes_max
        if storage.claim is not None:
            self.claims.restore(storage.claim)

    def enforce(self, config: ChannelConfig) -> None:
        """Puts a configuration in force; the channel may hold more than its limits allow."""
        self.config = config
        self.limits = ChannelLimits(config, self._answer_bytes_max)
        self.committer.enforce(config)
        self.contents.capacity.resize(config.capacity, config.body_bytes_max)

    def refuse_if_draining(self) -> None:
        """Raises DrainingError where the server stops."""
        if self.is_draining:
            raise DrainingError("the server is stopping and begins nothing new; go to another or come back later")

    def refuse_new(self) -> None:
        """Raises where nothing new may begin: the channel is deleted, or the server stops."""
        self.contents.refuse_if_closed()
        self.refuse_if_draining()

    def refuse_one_more(self) -> None:
        """Raises TooManyTxnsError where no more transactions may be open."""
        self.server_limit.refuse_if_reached()
        self.channel_limit.refuse_if_reached()

    def count_open(self, change: int) -> None:
        """Counts a transaction or delivery that was opened, or has ended."""
        self.channel_limit.count(change)
        self.server_limit.count(change)

    def largest_answer(self, limits: TakeLimits) -> AnswerLimits:
        """What one answer holds of as many events as a transaction may take."""
        return self.limits.answer_limits(limits, self.limits.transaction_capacity)

    def take_removable(self, limits: AnswerLimits) -> list[StoredBatch]:
        """Takes the oldest events.

        Where the log has failed and the oldest events are in memory only, they are taken without any of the log, so
        that they can still be removed.
        """
        batches = self.contents.take(limits)
        if self.committer.fault is None:
            return batches
        removable = list(takewhile(lambda batch: not batch.is_in_log, batches))
        if not removable:
            return batches
        self.contents.put_back(batches[len(removable) :])
        return removable

    def count_take(self, batches: Sequence[StoredBatch]) -> None:
        """Counts a take that has ended, and wakes the next one: this one may have left events."""
        self.contents.counters.take_attempts += sum(batch.count for batch in batches) or 1
        self.contents.wake_taker()
