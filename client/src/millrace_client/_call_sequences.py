"""Operations of several calls, written once for both APIs.

A call sequence is a generator: it yields calls, receives their results or errors, and returns the operation's result.
Each API drives it in its own way, by waiting or by awaiting.
"""

import logging
from collections.abc import Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from millrace.columns import ColumnsCutter
from millrace.tracing import TRACING, note_received, operation_span
from millrace.v1 import event_pb2
from millrace_client import _calls
from millrace_client._calls import Call, TakeLimits
from millrace_client._decoding import ClaimGrant
from millrace_client._settings import REQUEST_BYTES_MAX, Numbering
from millrace_client.channel_info import ChannelInfo, ClaimStatus
from millrace_client.errors import (
    BadArgumentError,
    ChannelClaimedError,
    EventTooLargeError,
    ForbiddenError,
    LeaseExpiredError,
    MillraceError,
    NotAChannelError,
    NotClaimedError,
    ReplayingError,
    RetryAdvice,
    StaleEpochError,
    TxnStateError,
)
from millrace_client.events import Batch, Receipt, Stamp

T = TypeVar("T")
_LOG = logging.getLogger("millrace_client")

CallSequence: TypeAlias = Generator[Call[Any], Any, T]

REQUEST_HEAD_BYTES_MAX = 4096
"""The maximum number of bytes of a request besides its columns: names, ids and a stamp."""


def append(
    channel: str,
    batches: Sequence[event_pb2.EventColumns],
    stamp: Stamp | None,
    numbering: Numbering,
    txn_id: str,
) -> CallSequence[Receipt]:
    """Stores events, all or none: in one call if they fit, otherwise in a transaction."""
    event_count = sum(columns.count for columns in batches)
    if not event_count:
        raise BadArgumentError("events: there are none; at least one is needed", channel=channel)
    with operation_span("append", channel, batches):
        parts = encoded_parts(batches)
        if stamp is not None:
            return (yield from _append_stamped(channel, parts, stamp, txn_id))
        try:
            return (yield from _append_stamped(channel, parts, numbering.next_stamp(channel, event_count), txn_id))
        except BaseException:
            numbering.note_gap(channel)
            raise


def _append_stamped(channel: str, parts: Sequence[bytes], stamp: Stamp, txn_id: str) -> CallSequence[Receipt]:
    if len(parts) == 1:
        receipt: Receipt = yield _calls.append(channel, parts[0], stamp)
        return receipt
    txn = TxnCalls(channel, txn_id, lease_seconds=None)
    yield from txn.begin()
    try:
        yield from txn.put(parts)
        return (yield from txn.commit(stamp))
    except GeneratorExit:
        raise
    except BaseException as error:
        yield from txn.leave(error)
        raise


def encoded_parts(
    batches: Sequence[event_pb2.EventColumns], bytes_max: int = REQUEST_BYTES_MAX - REQUEST_HEAD_BYTES_MAX
) -> list[bytes]:
    """Encodes batches; splits those larger than a request may be. Raises EventTooLargeError if one event is."""
    parts: list[bytes] = []
    for columns in batches:
        parts.extend(_parts_within(columns, bytes_max))
    return parts


def _parts_within(columns: event_pb2.EventColumns, bytes_max: int) -> list[bytes]:
    encoded = columns.SerializeToString()
    if (spans := TRACING.spans) is not None:
        encoded += spans.context_fields(columns)
    if len(encoded) <= bytes_max:
        return [encoded]
    if columns.count <= 1:
        raise EventTooLargeError(f"events: one has {len(encoded)} bytes; a request holds at most {bytes_max}")
    cutter = ColumnsCutter(columns)
    middle = columns.count // 2
    halves = (cutter.cut(0, middle), cutter.cut(middle, columns.count))
    return [part for half in halves for part in _parts_within(half, bytes_max)]


class TxnCalls:
    """The state of one transaction, and its calls.

    A put or take that got no response may have been executed. gRPC has repeated it already, so this is rare; but a
    commit could then store events that the caller believes lost, or remove events that the caller never saw. So such a
    transaction refuses to commit. Another take resolves the doubt, since it returns the same events.
    """

    def __init__(self, channel: str, txn_id: str, lease_seconds: float | None) -> None:
        self.channel = channel
        self.txn_id = txn_id
        self.lease_seconds = lease_seconds
        self.put_count = 0
        self.take_count = 0
        self.receipt: Receipt | None = None
        self.has_ended = False
        self._is_put_in_doubt = False
        self._is_take_in_doubt = False

    def begin(self) -> CallSequence[None]:
        granted = yield _calls.begin_txn(self.channel, self.txn_id, self.lease_seconds)
        _warn_of_shorter_lease(f"transaction {self.txn_id} on {self.channel}", self.lease_seconds, granted)
        self.lease_seconds = granted

    def put(self, parts: Sequence[bytes]) -> CallSequence[int]:
        """Puts encoded columns; returns the number of events put so far."""
        self._check_known(take=False)
        with operation_span("put", self.channel):
            for index, part in enumerate(parts):
                try:
                    self.put_count = yield _calls.put(self.channel, self.txn_id, part, self.put_count)
                except BaseException as error:
                    # If a part of the events was put, repeating all of them would put that part twice.
                    self._is_put_in_doubt = index > 0 or not _is_refusal(error)
                    raise
        return self.put_count

    def take(self, limits: TakeLimits) -> CallSequence[list[Batch]]:
        """Takes events; returns the events of a lost response again."""
        self._check_known(take=False)
        with operation_span("take", self.channel) as span:
            try:
                taken = yield _calls.take(self.channel, self.txn_id, limits, self.take_count)
            except BaseException as error:
                self._is_take_in_doubt = self._is_take_in_doubt or not _is_refusal(error)
                raise
            batches: list[Batch] = taken.batches
            if span is not None:
                note_received(span, [batch.columns for batch in batches])
        self.take_count = taken.take_count
        self._is_take_in_doubt = False
        return batches

    def renew(self) -> CallSequence[float]:
        self.lease_seconds = yield _calls.renew_txn(self.channel, self.txn_id)
        return self.lease_seconds

    def commit(self, stamp: Stamp | None) -> CallSequence[Receipt]:
        self._check_known(take=True)
        try:
            with operation_span("commit", self.channel):
                receipt: Receipt = yield _calls.commit(self.channel, [self.txn_id], stamp)
        except MillraceError as error:
            self.has_ended = error.advice is RetryAdvice.LOST
            raise
        self.receipt = receipt
        self.has_ended = True
        return receipt

    def rollback(self) -> CallSequence[None]:
        with operation_span("rollback", self.channel):
            yield _calls.rollback(self.channel, self.txn_id)
        self.has_ended = True

    def leave(self, error: BaseException | None) -> CallSequence[None]:
        """Ends the transaction after its block: commits, or rolls back if the block raised.

        The first error is raised; an error of the rollback becomes a note of it.
        """
        if self.has_ended:
            return
        if error is not None:
            yield from self._roll_back_after(error)
            return
        try:
            yield from self.commit(None)
        except GeneratorExit:
            raise
        except BaseException as commit_error:
            yield from self._roll_back_after(commit_error)
            raise

    def _roll_back_after(self, error: BaseException) -> CallSequence[None]:
        if self.has_ended:
            return
        try:
            yield from self.rollback()
        except MillraceError as rollback_error:
            if rollback_error.reason == TxnStateError.default_reason:
                error.add_note(f"transaction {self.txn_id} had been committed already")
            elif rollback_error.advice is not RetryAdvice.LOST:
                error.add_note(f"rolling back transaction {self.txn_id} failed too: {rollback_error}")

    def _check_known(self, *, take: bool) -> None:
        what = "put" if self._is_put_in_doubt else "take" if take and self._is_take_in_doubt else None
        if what:
            raise TxnStateError(
                f"the transaction's last {what} failed, but the server may have executed it; roll back and begin a new "
                "transaction",
                channel=self.channel,
                txn_id=self.txn_id,
            )


class ClaimCalls:
    """The state of one claim, and its calls."""

    def __init__(self, channel: str, reader_id: str, lease_seconds: float | None, grant: ClaimGrant) -> None:
        self.channel = channel
        self.reader_id = reader_id
        self.grant = grant
        self._lease_seconds = lease_seconds
        self._is_released = False
        _warn_of_shorter_lease(f"claim of {reader_id} on {channel}", lease_seconds, grant.lease_seconds)

    def renew(self, wait_seconds: float) -> CallSequence[float]:
        try:
            self.grant = yield _calls.renew_claim(
                self.channel, self.grant, self.reader_id, self._lease_seconds, wait_seconds
            )
        except (NotClaimedError, StaleEpochError, ChannelClaimedError) as error:
            raise LeaseExpiredError(
                f"reader {self.reader_id} has lost its claim ({error}); claim again", channel=self.channel
            ) from error
        return self.grant.lease_seconds

    def release(self) -> CallSequence[None]:
        yield _calls.release(self.channel, self.reader_id, self.grant.epoch)
        self._is_released = True

    def leave(self, error: BaseException | None) -> CallSequence[None]:
        """Ends the claim after its block, unless it has ended; the first error is raised."""
        if self._is_released:
            return
        try:
            yield from self.release()
        except MillraceError as release_error:
            if error is None:
                raise
            error.add_note(f"releasing the claim of reader {self.reader_id} failed too: {release_error}")


def append_capacity(name: str) -> CallSequence[int]:
    try:
        info: ChannelInfo = yield _calls.get_channel(name)
    except NotAChannelError as error:
        if error.transaction_capacity is None:
            raise ReplayingError(f"source {name} is not running; try again", channel=name, code=error.code) from None
        return error.transaction_capacity
    return info.config.transaction_capacity


def release_claim(channel: str, epoch: int | None) -> CallSequence[ClaimStatus]:
    """Ends anybody's claim; the result is the claim as it was.

    The request names an epoch, since its repeat could otherwise end a claim that was granted in between.
    """
    if epoch is None:
        epoch = yield from _epoch_of_claim(channel)
    released: ClaimStatus = yield _calls.release_claim(channel, epoch)
    return released


def _epoch_of_claim(channel: str) -> CallSequence[int | None]:
    """Returns the epoch of the active claim; None for a caller who may release claims, but not see them."""
    try:
        info: ChannelInfo = yield _calls.get_channel(channel)
    except ForbiddenError:
        return None
    if info.claim is None:
        raise NotClaimedError("no reader has claimed the channel", channel=channel)
    return info.claim.epoch


def _warn_of_shorter_lease(what: str, asked_seconds: float | None, granted_seconds: float) -> None:
    if asked_seconds is not None and granted_seconds < asked_seconds - 1e-6:
        _LOG.warning(
            "%s: the server granted a lease of %.15g s instead of the requested %.15g s",
            what,
            granted_seconds,
            asked_seconds,
        )


def _is_refusal(error: BaseException) -> bool:
    """Whether it is known that the server did nothing."""
    return isinstance(error, MillraceError) and error.is_outcome_known
