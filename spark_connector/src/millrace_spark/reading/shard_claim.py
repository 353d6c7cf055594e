"""A stream's claim on one shard."""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import millrace_client as millrace
from millrace_spark.reading.offsets import ArrivalRate
from millrace_spark.shards import Shard

POLL_SECONDS_MAX = 1.0
"""How long the server may think about one question; a new one waits for so long at most."""

_CALLS_PER_LEASE = 3
_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 1.0


@dataclass(frozen=True)
class ShardRequest:
    """What the stream wants of a shard."""

    from_sequence: int
    """It waits for events from here on."""
    through_sequence: int
    """Events up to here, included, are to be acknowledged."""


@dataclass(frozen=True, kw_only=True)
class ShardView:
    """A shard as its server's last answer showed it."""

    channel_id: str
    """Names the making of the channel."""
    epoch: int
    """The claim's."""
    first_sequence: int
    """The oldest event's."""
    next_sequence: int
    """One past the newest event's."""
    rate: float = 0.0
    """Events that came in, a second."""
    answered: ShardRequest | None = None
    """The request that this answers; None where none was made yet."""
    acknowledged: int = 0
    """Up to where this claim has acknowledged."""
    failure: millrace.MillraceError | None = None
    """Why the last call failed; None where it did not."""
    failing_since: float = 0.0
    """Since when calls have failed, on the monotonic clock."""
    lost: millrace.MillraceError | None = None
    """Why the claim is no longer held; None while it is."""
    fault: Exception | None = None
    """What nobody foresaw and has ended the thread that kept the claim; None while that works."""

    @property
    def is_ready(self) -> bool:
        """Whether the server answered last time."""
        return self.failure is None and self.lost is None and self.fault is None


class ShardClaim:
    """Keeps a claim alive, acknowledges, and waits for events, in a thread of its own.

    So that none of these holds up another shard, nor the stream's planning, which only looks at `view`. Every call
    renews the claim under its epoch, and none begins a new one: where the lease has run out, others may have taken.

    Args:
        shard: Which.
        claim: What was granted; used by nobody else.
        changed: Notified whenever `view` has changed. Also guards it.
        clock: Tells the time, in seconds.
    """

    def __init__(
        self,
        shard: Shard,
        claim: millrace.Claim,
        changed: threading.Condition,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shard = shard
        self.lease_seconds = claim.lease_seconds
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
            first_sequence=claim.first_sequence,
            next_sequence=claim.next_sequence,
        )
        self._thread = threading.Thread(target=self._run, name=f"millrace-claim-{shard}", daemon=True)
        self._thread.start()

    def ask(self, request: ShardRequest) -> None:
        """Has the thread work on a request, in place of the one before."""
        with self._changed:
            if request != self._request:
                self._request = request
                self._changed.notify_all()

    def is_known(self) -> bool:
        """Whether `view` tells if there are events from the requested sequence on, or cannot tell just now."""
        request, view = self._request, self.view
        has_events = request is None or view.next_sequence > request.from_sequence
        return has_events or view.answered == request or not view.is_ready

    def is_settled(self) -> bool:
        """Whether the request's events are acknowledged, or cannot be just now."""
        return self.is_acknowledged() or not self.view.is_ready

    def is_acknowledged(self) -> bool:
        """Whether the request's events are acknowledged."""
        return self._request is None or self.view.acknowledged >= self._request.through_sequence

    def forget(self) -> None:
        """Ends the thread, and leaves the claim to its lease."""
        with self._changed:
            self._is_released = True
            self._changed.notify_all()

    def release(self) -> None:
        """Ends the claim where it still lives; where the server cannot be reached, its lease ends it."""
        self.forget()
        if self.view.lost is None:
            with contextlib.suppress(millrace.MillraceError):
                self._claim.release()

    def _run(self) -> None:
        while (request := self._next_request()) is not None:
            try:
                self._work_on(request)
            except millrace.MillraceError as error:
                self._note(error)
            except Exception as error:  # noqa: BLE001 - without its thread the claim would stand still in silence
                self._show(replace(self.view, fault=error))

    def _next_request(self) -> ShardRequest | None:
        """The request, once there is something to do for it or the claim is to be renewed; None in the end."""
        with self._changed:
            seconds = self._pause_seconds if self.view.failure else self._seconds_between_calls
            self._changed.wait_for(self._is_over if self.view.failure else self._has_work, seconds)
            return None if self._is_over() else self._request or ShardRequest(self.view.first_sequence, 0)

    @property
    def _seconds_between_calls(self) -> float:
        return min(self.lease_seconds / _CALLS_PER_LEASE, POLL_SECONDS_MAX)

    def _is_over(self) -> bool:
        return self._is_released or self.view.lost is not None or self.view.fault is not None

    def _has_work(self) -> bool:
        # Before the first request, and where there are events already, the next call is only to keep the claim.
        is_idle = self._request is None or (
            self.view.answered == self._request and self.view.next_sequence > self._request.from_sequence
        )
        return self._is_over() or not is_idle

    def _work_on(self, request: ShardRequest) -> None:
        acknowledged = self.view.acknowledged
        if request.through_sequence > acknowledged:
            acknowledged = request.through_sequence
            self._claim.acknowledge(acknowledged)
        # A new request is answered at once, so that the stream knows; only then the server waits for events.
        is_waiting = self.view.answered == request and self.view.next_sequence <= request.from_sequence
        self._claim.renew(wait_seconds=self._seconds_between_calls if is_waiting else 0.0)
        self._rate.note(self._claim.next_sequence)
        self._pause_seconds = _PAUSE_SECONDS
        self._show(
            replace(
                self.view,
                first_sequence=self._claim.first_sequence,
                next_sequence=self._claim.next_sequence,
                rate=self._rate.rate,
                answered=request,
                acknowledged=acknowledged,
                failure=None,
            )
        )

    def _note(self, error: millrace.MillraceError) -> None:
        if ends_claim(error):
            self._show(replace(self.view, lost=error))
            return
        since = self.view.failing_since if self.view.failure else self._clock()
        self._pause_seconds = min(self._pause_seconds * 2, _PAUSE_SECONDS_MAX)
        self._show(replace(self.view, failure=error, failing_since=since))

    def _show(self, view: ShardView) -> None:
        with self._changed:
            self.view = view
            self._changed.notify_all()


def ends_claim(error: millrace.MillraceError) -> bool:
    """Whether an error of a call under a claim says that the claim has ended."""
    return error.advice is millrace.RetryAdvice.LOST or isinstance(error, millrace.ChannelNotFoundError)
