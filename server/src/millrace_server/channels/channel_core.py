"""What the transactions, deliveries and claims of one channel share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from millrace_server.channels.admission import NAMED_CHANNEL, ChannelLimits, LimitingChannels
from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.claims import ClaimRegistry
from millrace_server.channels.committer import ClaimRecord, Committer
from millrace_server.channels.config import ChannelConfig
from millrace_server.channels.contents import Contents
from millrace_server.channels.queue import ResponseLimits, TakeLimits
from millrace_server.channels.retention import Retention
from millrace_server.channels.transaction import EndedTxns, TxnLimit
from millrace_server.errors import DrainingError, MillraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStorage:
    """The identity, contents and committer that a channel is opened with."""

    channel_id: str  # Differs where a channel of the same name was deleted and created again.
    contents: Contents
    committer: Committer
    epochs_from: int  # Claim epochs start above it, so that no epoch of a former channel of the name is reused.
    ended: EndedTxns = field(default_factory=EndedTxns)  # Transactions that ended before a restart.
    claim: ClaimRecord | None = None  # The newest claim before a restart.


class ChannelCore:
    """The state that a channel's transactions and deliveries share."""

    def __init__(
        self, name: str, config: ChannelConfig, storage: ChannelStorage, server_limit: TxnLimit, response_bytes_max: int
    ) -> None:
        self.name = name
        self.config = config
        self.contents = storage.contents
        self.committer = storage.committer
        self.claims = ClaimRegistry(storage.contents, storage.committer, storage.epochs_from)
        self.limits = ChannelLimits(config, response_bytes_max)
        self.server_limit = server_limit
        self.channel_limit = TxnLimit(f"channel {name!r}", lambda: self.config.open_transactions_max)
        self.is_draining = False
        self.draining_error: Callable[[], MillraceError] = _stopping
        self.retention = Retention(name, storage.contents, storage.committer)
        self.retention.enforce(config.retention_seconds)
        self._response_bytes_max = response_bytes_max
        if storage.claim is not None:
            self.claims.restore(storage.claim)

    def enforce(self, config: ChannelConfig, limiting: LimitingChannels = NAMED_CHANNEL) -> None:
        self.config = config
        self.limits = ChannelLimits(config, self._response_bytes_max, limiting)
        self.committer.enforce(config)
        self.contents.capacity.resize(config.capacity, config.body_bytes_max)
        self.retention.enforce(None if self.is_draining else config.retention_seconds)

    def refuse_if_draining(self) -> None:
        if self.is_draining:
            raise self.draining_error()

    def refuse_new(self) -> None:
        """Raises where the channel is deleted or the server stops."""
        self.contents.refuse_if_closed()
        self.refuse_if_draining()

    def refuse_one_more(self) -> None:
        self.server_limit.refuse_if_reached()
        self.channel_limit.refuse_if_reached()

    def count_open(self, change: int) -> None:
        self.channel_limit.count(change)
        self.server_limit.count(change)

    def largest_response(self, limits: TakeLimits) -> ResponseLimits:
        """Returns the limits of a response of as many events as a transaction may take."""
        return self.limits.response_limits(limits, self.limits.transaction_capacity)

    def take_removable(self, limits: ResponseLimits) -> list[StoredBatch]:
        """Takes the oldest events.

        Where the log has failed and the oldest events are in memory only, they are taken without any of the log, so
        that they can still be removed. Raises NotOwnerError where another server may own the channel.
        """
        self.contents.refuse_reading()
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
        if batches:
            self.contents.note_take()
        self.contents.wake_taker()


def _stopping() -> MillraceError:
    return DrainingError("the server is stopping and accepts no new work; use another server or retry later")
