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
from millrace_spark.refusals import explained
from millrace_spark.shards import Shard

_POLL_SECONDS = 0.5
_TOLERANCE_SECONDS = 0.1
"""How far two looks at one claim's end may differ by the way of the answers alone."""

_log = logging.getLogger("millrace_spark")


def reclaim(
    channel: millrace.Channel,
    options: ClaimOptions,
    wait_seconds_max: float,
    pause: Callable[[float], object] = time.sleep,
) -> millrace.Claim:
    """Claims a channel under a new epoch, so that an earlier self of this reader can neither read nor acknowledge.

    Where another reader's claim lives and is not to be taken over, its end is waited for, as long as nobody renews it:
    then it belongs to somebody who has gone, or to a look that is over.

    Args:
        channel: Which.
        options: Who claims, and how.
        wait_seconds_max: A claim that lives longer than this is not waited for.
        pause: Waits so many seconds.

    Raises:
        ChannelClaimedError: The other reader lives.
    """
    if not options.takeover:
        _await_other_claim(channel, options, wait_seconds_max, pause)
    return channel.claim(options.reader_id, options.lease_seconds, takeover=True)


def _await_other_claim(
    channel: millrace.Channel, options: ClaimOptions, wait_seconds_max: float, pause: Callable[[float], object]
) -> None:
    ends_at = None
    while True:
        try:
            channel.claim(options.reader_id, options.lease_seconds)
        except millrace.ChannelClaimedError as error:
            remaining_seconds = error.retry_delay_seconds
            if remaining_seconds is None or remaining_seconds > wait_seconds_max:
                raise
            now = time.monotonic()
            if ends_at is None:
                ends_at = now + remaining_seconds
                if remaining_seconds > _POLL_SECONDS:
                    _log.warning(
                        "channel %s: another reader's claim lives for %.1f s more; waiting, unless it is renewed",
                        channel.name,
                        remaining_seconds,
                    )
            elif now + remaining_seconds > ends_at + _TOLERANCE_SECONDS:
                raise
            pause(min(remaining_seconds, _POLL_SECONDS))
        else:
            return


_CALLS_PER_LEASE = 3
_PAUSE_SECONDS_MAX = 1.0

_held: set["ClaimKeeper"] = set()
"""What this process holds."""


class ClaimKeeper:
    """Claims at once, then renews from a thread of its own until it is released or the claim is lost.

    It renews under its epoch and never begins a new claim: where the lease has run out, others may have taken since.
    """

    def __init__(self, shard: Shard, options: ClaimOptions) -> None:
        self._client = millrace.connect(shard.endpoint)
        channel = self._client.channel(shard.channel)
        try:
            with explained(shard.endpoint, shard.channel), self._explain_own_claim(shard):
                # Another's claim is waited for where it is about to end: most likely a look's.
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
        """Removes the range's events from the channel."""
        with explained(self.range.endpoint, self.range.channel):
            self._claim.acknowledge(self.range.next_sequence - 1)

    def release(self) -> None:
        """Ends the claim where it still lives; where the server cannot be reached, its lease ends it."""
        _held.discard(self)
        self._is_released.set()
        self._thread.join()
        with contextlib.suppress(millrace.MillraceError):
            self._claim.release()
        self._client.close()

    def _keep_alive(self) -> None:
        # Often enough also for a look of the same reader, which shortens the claim's lease to its own.
        pause_seconds = min(self.range.lease_seconds / _CALLS_PER_LEASE, _PAUSE_SECONDS_MAX)
        while not self._is_released.wait(pause_seconds):
            try:
                self._claim.renew()
            except millrace.MillraceError as error:
                # Whoever reads or acknowledges is told. Any other refusal may pass before the lease has run out.
                if ends_claim(error):
                    _held.discard(self)
                    return

    @contextlib.contextmanager
    def _explain_own_claim(self, shard: Shard) -> Iterator[None]:
        """Where this program itself is in the way, says so: there is nobody else to wait for, and nobody to ask."""
        try:
            yield
        except millrace.ChannelClaimedError:
            holder = self._client.admin.get_channel(shard.channel).claim
            own = [(held.range.channel, held.range.reader_id, held.range.epoch) for held in tuple(_held)]
            if holder is not None and (shard.channel, holder.reader_id, holder.epoch) in own:
                raise MillraceSparkError(
                    f"channel {shard.channel} at {shard.endpoint}: this program itself has claimed it, as reader "
                    f"{holder.reader_id!r}; call release() on what that claim_ranges() returned, or leave its with "
                    "block; claiming with the same reader_id ends it, too"
                ) from None
            raise
