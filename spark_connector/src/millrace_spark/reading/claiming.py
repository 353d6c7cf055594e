"""How a channel is claimed where somebody else may hold it."""

import logging
import time
from collections.abc import Callable

import millrace_client as millrace
from millrace_spark.reading.options import ClaimOptions

_LOOK_SECONDS = 0.5
_SLACK_SECONDS = 0.1
"""How far two looks at one claim's end may differ by the way of the answers alone."""

_log = logging.getLogger("millrace_spark")


def claim_anew(
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
        _claim_politely(channel, options, wait_seconds_max, pause)
    return channel.claim(options.reader_id, options.lease_seconds, takeover=True)


def _claim_politely(
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
                if remaining_seconds > _LOOK_SECONDS:
                    _log.warning(
                        "channel %s: another reader's claim lives for %.1f s more; waiting, unless it is renewed",
                        channel.name,
                        remaining_seconds,
                    )
            elif now + remaining_seconds > ends_at + _SLACK_SECONDS:
                raise
            pause(min(remaining_seconds, _LOOK_SECONDS))
        else:
            return
