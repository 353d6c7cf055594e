"""Buckets, and whose they are."""

import pytest

from millrace_server.access.permissions import Grant, Policy
from millrace_server.access.quotas import UNBOUNDED, Bucket, Quota
from millrace_server.errors import QuotaExceededError
from tests.fake_clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def bucket(clock: FakeClock) -> Bucket:
    return Bucket("bytes_per_second", 100, clock)


def test_admit_within_a_second_s_worth_passes(bucket: Bucket, clock: FakeClock) -> None:
    """A full bucket holds one second; it fills evenly, and never above that."""
    bucket.admit(60)
    bucket.admit(40)
    clock.now += 0.25
    bucket.admit(25)
    with pytest.raises(QuotaExceededError, match="the quota of 100 bytes_per_second is used up") as refused:
        bucket.admit(50)
    assert refused.value.retry_delay_seconds == pytest.approx(0.5, abs=0.01)
    clock.now += 60
    bucket.admit(100)
    with pytest.raises(QuotaExceededError):
        bucket.admit(1)


def test_admit_what_is_larger_than_the_bucket_passes_when_it_is_full(bucket: Bucket, clock: FakeClock) -> None:
    """It is paid afterwards, so that large messages get no more than small ones."""
    bucket.admit(350)
    with pytest.raises(QuotaExceededError) as refused:
        bucket.admit(350)
    assert refused.value.retry_delay_seconds == pytest.approx(3.5, abs=0.01)
    clock.now += 3.5
    bucket.admit(350)


def test_admit_after_the_told_delay_passes(bucket: Bucket, clock: FakeClock) -> None:
    """Whoever waits as long as the error says is not refused again."""
    bucket.admit(100)
    for byte_count in range(1, 150):
        with pytest.raises(QuotaExceededError) as refused:
            bucket.admit(byte_count)
        clock.now += refused.value.retry_delay_seconds or 0.0
        bucket.admit(byte_count)


def test_count_gives_each_its_turn(bucket: Bucket) -> None:
    """Those that wait pass one after the other; what one gives back comes to those that ask later."""
    assert [bucket.count(byte_count) for byte_count in (100, 50, 50)] == pytest.approx([0.0, 0.5, 1.0])
    bucket.give_back(50)
    assert bucket.count(50) == pytest.approx(1.0)


def test_standing_of_identities_of_one_pattern_has_a_quota_for_each() -> None:
    """The same identity keeps its own; who matches no pattern has no rights, and nothing to bound."""
    policy = Policy({"all": [Grant.parse("*:*")]}, {"edge-*": ["all"]}, lambda _: Quota(open_transactions=1))
    first, again, other = (policy.entitlements_of(name).quota for name in ("edge-1", "edge-1", "edge-2"))
    assert first is again
    assert first is not other
    assert policy.entitlements_of("nobody").quota is UNBOUNDED
