import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from millrace_server.channels.config import SECONDS_MAX
from millrace_server.errors import BadArgumentError
from millrace_server.grpc_services.messages import duration_of, seconds_of

SECONDS = st.integers(-(1 << 63), (1 << 63) - 1)
NANOS = st.integers(-(1 << 31), (1 << 31) - 1)


@given(st.integers(0, 3_600_000_000))
def test_seconds_of_a_duration_are_what_it_was_made_of(microseconds: int) -> None:
    """What goes out comes in again."""
    assert seconds_of("wait", duration_of(microseconds / 1e6)) == pytest.approx(microseconds / 1e6, abs=1e-9)


@given(SECONDS, NANOS)
def test_seconds_of_anything_are_within_the_limit_or_refused(whole: int, nanos: int) -> None:
    """Whatever the wire holds: a number from 0 to the cap, or BAD_ARGUMENT that names the field."""
    encoded = Duration(seconds=whole, nanos=nanos)
    is_good = whole >= 0 and 0 <= nanos < 1_000_000_000
    if is_good:
        assert 0 <= seconds_of("lease", encoded) <= SECONDS_MAX
        return
    with pytest.raises(BadArgumentError, match=r"^lease: "):
        seconds_of("lease", encoded)


@pytest.mark.parametrize("encoded", [Duration(seconds=3600), Duration(seconds=3601), Duration(seconds=(1 << 63) - 1)])
def test_seconds_beyond_the_longest_are_capped(encoded: Duration) -> None:
    """An hour is the most that is granted."""
    assert seconds_of("lease", encoded) == SECONDS_MAX


@pytest.mark.parametrize(
    ("encoded", "sentence"),
    [
        (Duration(seconds=-1), "lease: is -1 s; it must not be negative"),
        (Duration(nanos=-1), "lease: is -1e-09 s; it must not be negative"),
        (Duration(seconds=1, nanos=-1), "lease: has 1 seconds and -1 nanos; .* have the sign of the seconds"),
        (Duration(nanos=1_000_000_000), "lease: has 0 seconds and 1000000000 nanos; nanos must lie between"),
    ],
)
def test_seconds_of_a_bad_duration_are_refused(encoded: Duration, sentence: str) -> None:
    """The sentence says what it was and what is allowed."""
    with pytest.raises(BadArgumentError, match=sentence):
        seconds_of("lease", encoded)
