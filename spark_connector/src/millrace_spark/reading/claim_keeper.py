"""Claims that a driver holds while a job runs."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

import millrace_client as millrace
from millrace_spark.errors import MillraceSparkError
from millrace_spark.reading.options import BATCH_LEASE_SECONDS, ClaimOptions
from millrace_spark.reading.ranges import ClaimedRange
from millrace_spark.reading.shard_claim import ends_claim
from millrace_spark.reading.tasks import claimed_range
from millrace_spark.servers import translated_errors
from millrace_spark.shards import Shard

_POLL_SECONDS = 0.5
_TOLERANCE_SECONDS = 0.1
"""How much two readings of the end of a claim may differ through network delay alone."""
_ENDING_SECONDS_MAX = 2.0
"""How long the process of a query that has ended may still renew its claim, since Spark does not wait for its end."""

_log = logging.getLogger("millrace_spark")


def reclaim(
    channel: millrace.Channel,
    options: ClaimOptions,
    wait_seconds_max: float,
    pause: Callable[[float], object] = time.sleep,
) -> millrace.Claim:
    """Claims a channel under a new epoch, so that a former process of this reader can neither read nor acknowledge.

    If another reader holds a claim, and `takeover` is not set, this waits for the end of its lease, unless it is still
    renewed after a moment: such a claim belongs to a reader that is gone, or to a query or batch read that is over.

    Raises:
        ChannelClaimedError: Another reader keeps renewing its claim, or its lease is longer than that.
    """
    if not options.takeover:
        _await_other_claim(channel, options, wait_seconds_max, pause)
    return channel.claim(options.reader_id, options.lease_seconds, takeover=True)


def _await_other_claim(
    channel: millrace.Channel, options: ClaimOptions, wait_seconds_max: float, pause: Callable[[float], object]
) -> None:
    ends_at = None
    began_at = time.monotonic()
    while True:
        try:
            channel.claim(options.reader_id, options.lease_seconds)
        except millrace.ChannelClaimedError as error:
            remaining_seconds = error.retry_delay_seconds
            if remaining_seconds is None or remaining_seconds > wait_seconds_max:
                raise
            now = time.monotonic()
            is_renewed = ends_at is not None and now + remaining_seconds > ends_at + _TOLERANCE_SECONDS
            if is_renewed and now - began_at > _ENDING_SECONDS_MAX:
                raise
            if ends_at is None and remaining_seconds > _POLL_SECONDS:
                _log.warning(
                    "channel %s: another reader's claim ends in %.1f s, unless it is renewed; waiting",
                    channel.name,
                    remaining_seconds,
                )
            if ends_at is None or is_renewed:
                ends_at = now + remaining_seconds
            pause(min(remaining_seconds, _POLL_SECONDS))
        else:
            return


_CALLS_PER_LEASE = 3
_PAUSE_SECONDS_MAX = 1.0

_held: set["ClaimKeeper"] = set()
"""The claims of this process."""


class ClaimKeeper:
    """Claims a shard, then renews the claim in a background thread until it is released or lost.

    It renews under the same epoch and never claims again: after the lease, other readers may have taken events.
    """

    def __init__(self, shard: Shard, options: ClaimOptions) -> None:
        self._client = options.security.connect(shard.endpoint)
        channel = self._client.channel(shard.channel)
        try:
            with translated_errors(shard.endpoint, shard.channel), self._explain_own_claim(shard):
                # Waits for another claim that is about to end, most likely that of a batch read.
                self._claim = reclaim(channel, options, BATCH_LEASE_SECONDS)
        except BaseException:
            self._client.close()
            raise
        self.range: ClaimedRange = claimed_range(shard.endpoint, self._claim, is_held=True)
        self._is_released = threading.Event()
        self._thread = threading.Thread(target=self._keep_alive, name=f"millrace-claim-{shard}", daemon=True)
        _held.add(self)
        self._thread.start()

    def acknowledge(self) -> None:
        """Removes the events of the range from the channel."""
        with translated_errors(self.range.endpoint, self.range.channel):
            self._claim.acknowledge(self.range.next_sequence - 1)

    def release(self) -> None:
        """Ends the claim. If the server is unreachable, the claim ends with its lease."""
        _held.discard(self)
        self._is_released.set()
        self._thread.join()
        with contextlib.suppress(millrace.MillraceError):
            self._claim.release()
        self._client.close()

    def _keep_alive(self) -> None:
        # A batch read of the same reader shortens the lease to its own; this is often enough for that, too.
        pause_seconds = min(self.range.lease_seconds / _CALLS_PER_LEASE, _PAUSE_SECONDS_MAX)
        while not self._is_released.wait(pause_seconds):
            try:
                self._claim.renew()
            except millrace.MillraceError as error:
                # Reads and acknowledgements fail with this error. Other errors may clear before the lease expires.
                if ends_claim(error):
                    _held.discard(self)
                    return

    @contextlib.contextmanager
    def _explain_own_claim(self, shard: Shard) -> Iterator[None]:
        """Raises an error that says so if this program itself holds the claim."""
        try:
            yield
        except millrace.ChannelClaimedError:
            holder = self._client.admin.get_channel(shard.channel).claim
            own = [(held.range.channel, held.range.reader_id, held.range.epoch) for held in tuple(_held)]
            if holder is not None and (shard.channel, holder.reader_id, holder.epoch) in own:
                raise MillraceSparkError(
                    f"channel {shard.channel} at {shard.endpoint}: this program holds the claim itself, as reader "
                    f"{holder.reader_id!r}; call release() on the result of claim_ranges(), leave its with block, or "
                    "claim with the same reader_id, which ends it"
                ) from None
            raise
