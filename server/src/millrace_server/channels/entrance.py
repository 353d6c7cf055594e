"""Entrances: names that callers append to as to a channel, and behind which a source passes the events on.

An entrance is a channel that never holds an event: its appends and transactions are those of any channel, and a source
commits, in channels of its own, what is committed here. It has no stamps of its own, since those channels have them.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import NamedTuple

from millrace_server.channels.admission import Capacity, LimitingChannels
from millrace_server.channels.append_queue import AppendQueue
from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_core import ChannelStorage
from millrace_server.channels.commit import Commit, CommitState, Receipt
from millrace_server.channels.committer import ClaimRecord
from millrace_server.channels.config import BYTES_MAX, CAPACITY_MAX, ChannelConfig, MemoryChannelConfig
from millrace_server.channels.contents import Contents
from millrace_server.channels.stamps import Stamp, StampLedger
from millrace_server.channels.transactions import TxnDirectory
from millrace_server.errors import DrainingError, MillraceError, NotAChannelError, ReplayingError

_RETRY_DELAY_SECONDS = 0.5


class EntranceLimits(NamedTuple):
    """What an entrance accepts at once."""

    transaction_capacity: int
    body_bytes_max: int
    limiting: LimitingChannels
    """The source's channels that these two come from."""
    lease_seconds: float
    keep_alive_seconds: float
    open_transactions_max: int


class Route(NamedTuple):
    """A source at work behind an entrance."""

    limits: Callable[[], EntranceLimits]
    store: Callable[[Commit], None]
    """Begins to store a prepared commit, and ends it later with `settle` or `refuse`."""


def settle(commit: Commit, *, is_deduplicated: bool) -> None:
    """Ends a commit that is stored in the source's channels, whose sequences mean nothing to the caller."""
    commit.move(CommitState.DURABLE)
    commit.receipt = Receipt(is_deduplicated=is_deduplicated)
    commit.complete()


def refuse(commit: Commit, error: MillraceError) -> None:
    """Ends a commit that is not stored; its transactions stay open."""
    commit.move(CommitState.ABORTED)
    commit.fail(error)


class Entrance:
    """The entrance of a source, from the configuration on; while the source restarts, callers are to try again.

    Attributes:
        channel: Takes the appends and the transactions.
    """

    def __init__(self, name: str, directory: TxnDirectory, response_bytes_max: int) -> None:
        self._name = name
        self._limits: EntranceLimits | None = None
        self._committer = _RoutingCommitter(name)
        contents = Contents(name, Capacity(CAPACITY_MAX, BYTES_MAX))
        contents.ledger = _NoLedger()
        storage = ChannelStorage(
            channel_id=secrets.token_hex(16), contents=contents, committer=self._committer, epochs_from=0
        )
        config = MemoryChannelConfig(type="memory", capacity=CAPACITY_MAX, byte_capacity=BYTES_MAX)
        self.channel = Channel(name, config, storage, directory, response_bytes_max)
        # Only the source's channels know whether they can store an append: one must not have others refused with it.
        self.channel.append_queue = AppendQueue(self.channel.appends, shares_commits=False)

    def open(self, route: Route) -> None:
        """Passes what is committed from now on to a source."""
        self._committer.route = route
        self._committer.is_open = True

    def close(self) -> None:
        """Refuses new appends and transactions; the transactions that are open can still be committed."""
        self._committer.is_open = False

    def accepting(self) -> Channel:
        """Returns the channel for an append or a new transaction, with the limits of now.

        Raises ReplayingError or DrainingError while the source does not run.
        """
        self._committer.refuse_while_closed()
        self._adjust()
        return self.channel

    def not_a_channel(self) -> NotAChannelError:
        """Returns the error for a call that only channels support."""
        error = NotAChannelError(
            f"channel: {self._name!r} is a source of type grpc, which takes events and holds none; events can be "
            "appended to it, and read from its channels",
            channel=self._name,
        )
        if self._committer.is_open:
            self._adjust()
            error.metadata["transaction_capacity"] = str(self.channel.config.transaction_capacity)
        return error

    def _adjust(self) -> None:
        """Follows the limits of the source's channels, which operators change."""
        route = self._committer.route
        assert route is not None, "it is open"
        limits = route.limits()
        if limits != self._limits:
            self._limits = limits
            self.channel.enforce(_config_of(limits), limits.limiting)


def _config_of(limits: EntranceLimits) -> ChannelConfig:
    return MemoryChannelConfig(
        type="memory",
        # Many transactions may be committed together: the source's channels say how many.
        capacity=CAPACITY_MAX,
        byte_capacity=limits.body_bytes_max,
        byte_capacity_buffer_percentage=0,
        transaction_capacity=limits.transaction_capacity,
        lease_seconds=limits.lease_seconds,
        keep_alive_seconds=limits.keep_alive_seconds,
        open_transactions_max=limits.open_transactions_max,
    )


class _NoLedger(StampLedger):
    """Knows no producer, and lets each stamp pass: the source's channels know what they have stored."""

    def refuse_gap(self, stamp: Stamp) -> None:
        """The channels refuse it."""


class _RoutingCommitter:
    fault: MillraceError | None = None
    is_stalled = False
    disk_trouble = ""
    memory_event_count = 0

    def __init__(self, name: str) -> None:
        self._name = name
        self.route: Route | None = None
        self.is_open = False

    def enforce(self, _config: ChannelConfig) -> None:
        """Nothing depends on the configuration."""

    def refuse_while_closed(self) -> None:
        if self.is_open:
            return
        if self.route is None:
            raise ReplayingError(
                f"source {self._name!r} has not started yet; try again",
                retry_delay_seconds=_RETRY_DELAY_SECONDS,
                channel=self._name,
            )
        raise DrainingError(
            f"source {self._name!r} has stopped; try again, or use another server",
            retry_delay_seconds=_RETRY_DELAY_SECONDS,
            channel=self._name,
        )

    def refuse_unfit(self, _commit: Commit) -> None:
        """The source's channels refuse it."""

    def submit(self, commit: Commit) -> None:
        if not commit.txn_ids or self.route is None:
            self.refuse_while_closed()
        assert self.route is not None, "only then it is open"
        commit.move(CommitState.PREPARED)
        commit.receipt = Receipt()
        self.route.store(commit)

    def record_rollback(self, txn_id: str, *, has_expired: bool) -> None:
        """Nothing is stored."""

    def record_claim(self, _claim: ClaimRecord) -> "asyncio.Future[None] | None":
        """No one claims an entrance."""
        return None
