"""The claim of a stream on one shard."""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import millrace_client as millrace
from millrace_spark.reading.offsets import ArrivalRate
from millrace_spark.shards import Shard

POLL_SECONDS_MAX = 1.0
"""The longest wait of one call for events; a new request is delayed by at most this."""

_CALLS_PER_LEASE = 3
_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 1.0


@dataclass(frozen=True)
class ShardRequest:
    """The stream's current request to a shard."""

    from_sequence: int
    """The stream waits for events from this sequence on."""
    through_sequence: int


@dataclass(frozen=True, kw_only=True)
class ShardView:
    """The state of a shard by the server's last response."""

    channel_id: str
    epoch: int
    lease_seconds: float
    first_sequence: int
    next_sequence: int
    rate: float = 0.0
    responded: ShardRequest | None = None
    """The request that this view responds to; None before the first request."""
    acknowledged: int = 0
    """The last sequence that was acknowledged."""
    failure: millrace.MillraceError | None = None
    """The error of the last call; None if it succeeded."""
    failing_since: float = 0.0
    """The time of the first failure in a row, by the monotonic clock."""
    lost: millrace.MillraceError | None = None
    """The error that ended the claim; None while it is held."""
    fault: Exception | None = None
    """The unexpected exception that ended the claim's thread; None while it runs."""

    @property
    def is_ready(self) -> bool:
        return self.failure is None and self.lost is None and self.fault is None


class ShardClaim:
    """Keeps a claim alive, acknowledges, and waits for events, in a background thread.

    None of this delays another shard, nor the stream's planning, which only reads `view`. Every call renews the claim
    under its epoch, and never claims again: after the lease, other readers may have taken events. `changed`
    guards `view`, and is notified when it changes.
    """

    def __init__(
        self,
        shard: Shard,
        claim: millrace.Claim,
        changed: threading.Condition,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shard = shard
        self._claim = claim
        self._changed = changed
        self._clock = clock
        self._rate = ArrivalRate(clock)
        self._request: ShardRequest | None = None
        self._pause_seconds = _PAUSE_SECONDS
        self._is_released = False
        self.view = ShardView(
            channel_id=claim.channel_id,
            epoch=claim.epoch,
            lease_seconds=claim.lease_seconds,
            first_sequence=claim.first_sequence,
            next_sequence=claim.next_sequence,
        )
        self._thread = threading.Thread(target=self._run, name=f"millrace-claim-{shard}", daemon=True)
        self._thread.start()

    def request(self, request: ShardRequest) -> None:
        with self._changed:
            if request != self._request:
                self._request = request
                self._changed.notify_all()

    def is_known(self) -> bool:
        """Whether `view` responds to the request, or has its events, or the server cannot respond at the moment."""
        request, view = self._request, self.view
        has_events = request is None or view.next_sequence > request.from_sequence
        return has_events or view.responded == request or not view.is_ready

    def is_settled(self) -> bool:
        """Whether the events of the request are acknowledged, or cannot be at the moment."""
        return self.is_acknowledged() or not self.view.is_ready

    def is_acknowledged(self) -> bool:
        return self._request is None or self.view.acknowledged >= self._request.through_sequence

    def first_event(self, from_sequence: int) -> int | None:
        """Returns the first event at or after a sequence; None if there is none.

        It reads, as the tasks do, so that a stream needs no further permission.
        """
        # Mostly it is that very event, which is then all that is sent.
        for to_sequence in (from_sequence + 1, 0):
            if (batch := next(self._claim.read(from_sequence, to_sequence), None)) is not None:
                return batch.first_sequence
        return None

    def stop(self) -> None:
        """Stops the thread; the claim ends with its lease."""
        with self._changed:
            self._is_released = True
            self._changed.notify_all()

    def release(self) -> None:
        """Ends the claim. If the server is unreachable, the claim ends with its lease."""
        self.stop()
        if self.view.lost is None:
            with contextlib.suppress(millrace.MillraceError):
                self._claim.release()

    def _run(self) -> None:
        while (request := self._next_request()) is not None:
            try:
                self._work_on(request)
            except millrace.MillraceError as error:
                self._on_error(error)
            except Exception as error:  # noqa: BLE001 - without its thread the claim would stop silently
                self._publish(replace(self.view, fault=error))

    def _next_request(self) -> ShardRequest | None:
        """Waits until the request needs a call or the claim must be renewed; returns None at the end."""
        with self._changed:
            seconds = self._pause_seconds if self.view.failure else self._seconds_between_calls
            self._changed.wait_for(self._is_over if self.view.failure else self._has_work, seconds)
            return None if self._is_over() else self._request or ShardRequest(self.view.first_sequence, 0)

    @property
    def _seconds_between_calls(self) -> float:
        return min(self.view.lease_seconds / _CALLS_PER_LEASE, POLL_SECONDS_MAX)

    def _is_over(self) -> bool:
        return self._is_released or self.view.lost is not None or self.view.fault is not None

    def _has_work(self) -> bool:
        # Before the first request, and after its response, the next call only renews the claim.
        is_idle = self._request is None or (
            self.view.responded == self._request and self.view.next_sequence > self._request.from_sequence
        )
        return self._is_over() or not is_idle

    def _work_on(self, request: ShardRequest) -> None:
        acknowledged = self.view.acknowledged
        if request.through_sequence > acknowledged:
            acknowledged = request.through_sequence
            self._claim.acknowledge(acknowledged)
        # The first call of a request does not wait, so that the stream has a response; later calls wait for events.
        is_waiting = self.view.responded == request and self.view.next_sequence <= request.from_sequence
        self._claim.renew(wait_seconds=self._seconds_between_calls if is_waiting else 0.0)
        self._rate.update(self._claim.next_sequence)
        self._pause_seconds = _PAUSE_SECONDS
        self._publish(
            replace(
                self.view,
                first_sequence=self._claim.first_sequence,
                next_sequence=self._claim.next_sequence,
                rate=self._rate.rate,
                responded=request,
                acknowledged=acknowledged,
                failure=None,
            )
        )

    def _on_error(self, error: millrace.MillraceError) -> None:
        if ends_claim(error):
            self._publish(replace(self.view, lost=error))
            return
        since = self.view.failing_since if self.view.failure else self._clock()
        self._pause_seconds = min(self._pause_seconds * 2, _PAUSE_SECONDS_MAX)
        self._publish(replace(self.view, failure=error, failing_since=since))

    def _publish(self, view: ShardView) -> None:
        with self._changed:
            # The release ends a call that waits for events, and the stream must not take that for a lost claim.
            if not self._is_released:
                self.view = view
                self._changed.notify_all()


def ends_claim(error: millrace.MillraceError) -> bool:
    """Whether an error of a call under a claim says that the claim has ended."""
    if isinstance(error, millrace.UnauthenticatedError):
        # The claim continues as long as its lease, and another token may come in time.
        return False
    return error.advice is millrace.RetryAdvice.LOST or isinstance(error, millrace.ChannelNotFoundError)
