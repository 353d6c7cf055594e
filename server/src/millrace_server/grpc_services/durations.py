"""Durations: float seconds inside, google.protobuf.Duration on the wire."""

from google.protobuf.duration_pb2 import Duration

from millrace_server.channels.config import SECONDS_MAX
from millrace_server.errors import BadArgumentError

_NANOS = 1_000_000_000


def duration(value: float) -> Duration:
    """Seconds as the wire has them."""
    encoded = Duration()
    encoded.FromNanoseconds(round(value * _NANOS))
    return encoded


def seconds(field: str, encoded: Duration) -> float:
    """A duration from outside, capped at the longest that is granted.

    Raises:
        BadArgumentError: It is negative, or no duration at all.
    """
    if not -_NANOS < encoded.nanos < _NANOS or encoded.seconds * encoded.nanos < 0:
        raise BadArgumentError(
            f"{field}: has {encoded.seconds} seconds and {encoded.nanos} nanos; nanos must lie between "
            "-999,999,999 and 999,999,999 and have the sign of the seconds"
        )
    value = encoded.seconds + encoded.nanos / _NANOS
    if value < 0:
        raise BadArgumentError(f"{field}: is {value:g} s; it must not be negative")
    return min(value, SECONDS_MAX)
