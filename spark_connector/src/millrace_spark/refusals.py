"""What the client refuses, told to somebody who reads through Spark."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from millrace_client import MillraceError
from millrace_spark.errors import MillraceSparkError

_ADVICE = {
    "CHANNEL_CLAIMED": (
        "in Spark, by the option takeover, or where that reader is this program's own, by release() of what "
        "claim_ranges() returned, or stop() of the query"
    ),
    "NOT_CLAIMED": "the claim of this read has ended; load anew",
    "STALE_EPOCH": "the claim of this read has ended and a newer one has begun; load anew",
    "SEQUENCE_GONE": "what this read was planned for has been consumed; load anew",
}
"""What the client's own message leaves to say, by the error's reason."""


@contextmanager
def explained(
    endpoint: str,
    channel: str,
    but: tuple[type[MillraceError], ...] = (),
    advice_by_reason: Mapping[str, str] = _ADVICE,
) -> Iterator[None]:
    """Turns what the client raises into one sentence that names endpoint and channel and says what to do.

    Args:
        endpoint: Whose server was asked.
        channel: For what.
        but: Errors that are left as they are.
        advice_by_reason: What is added to the client's own message.
    """
    try:
        yield
    except but:
        raise
    except MillraceError as error:
        told = f"channel {channel} at {endpoint}: {str(error).rstrip('.')}"
        advice = advice_by_reason.get(error.reason)
        raise MillraceSparkError(f"{told}; {advice}" if advice else told) from None
