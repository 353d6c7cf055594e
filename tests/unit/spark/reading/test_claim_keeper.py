"""Claims that a driver holds, on in-memory servers."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

import millrace_client as millrace
from millrace_spark import MillraceSparkError
from millrace_spark.reading import claim_keeper
from millrace_spark.reading.claim_keeper import ClaimKeeper, reclaim
from millrace_spark.reading.options import ClaimOptions
from millrace_spark.shards import Shard
from tests.unit.spark.fake_servers import FakeServers
from tests.waiting import wait_until


class OtherReader:
    """A channel that another reader has claimed, with a clock that advances only in pauses."""

    def __init__(self, lease_seconds: float, renews_every_seconds: float | None, releases_at: float = math.inf) -> None:
        self.name = "orders"
        self.now = 50.0
        self._lease_seconds = lease_seconds
        self._renews_every_seconds = renews_every_seconds
        self._releases_at = releases_at
        self.calls: list[bool] = []

    @property
    def remaining_seconds(self) -> float:
        if self.now >= self._releases_at:
            return 0.0
        since = self.now - 50.0
        if self._renews_every_seconds is not None:
            since %= self._renews_every_seconds
        return self._lease_seconds - since

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def claim(self, reader_id: str, lease_seconds: float | None, *, takeover: bool = False) -> Any:
        assert (reader_id, lease_seconds) == ("me", 30.0)
        self.calls.append(takeover)
        if self.remaining_seconds > 0 and not takeover:
            raise millrace.ChannelClaimedError("another reader's", retry_delay_seconds=self.remaining_seconds)
        return "claim"


def claimed(other: OtherReader, monkeypatch: pytest.MonkeyPatch, *, takeover: bool = False) -> Any:
    options = ClaimOptions(
        endpoints=("a:1",), channels=("orders",), reader_id="me", lease_seconds=30.0, takeover=takeover
    )
    monkeypatch.setattr(claim_keeper, "time", SimpleNamespace(monotonic=lambda: other.now))
    return reclaim(other, options, wait_seconds_max=60.0, pause=other.pause)  # type: ignore[arg-type] # a fake


def test_reclaim_waits_for_a_claim_that_is_not_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim of a killed process expires, then the channel is claimed under a new epoch."""
    other = OtherReader(30.0, renews_every_seconds=None)
    assert claimed(other, monkeypatch) == "claim"
    assert other.now == pytest.approx(80.0)
    assert other.calls[-2:] == [False, True]


def test_reclaim_waits_for_a_claim_that_is_renewed_shortly_before_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of a query that has ended renews its claim until Spark ends it."""
    other = OtherReader(30.0, renews_every_seconds=1.0, releases_at=52.0)
    assert claimed(other, monkeypatch) == "claim"
    assert other.now == pytest.approx(52.0)


def test_reclaim_is_refused_if_the_other_claim_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call fails when the other reader keeps renewing its claim."""
    other = OtherReader(30.0, renews_every_seconds=1.0)
    with pytest.raises(millrace.ChannelClaimedError):
        claimed(other, monkeypatch)
    assert other.now <= 54.0
    assert True not in other.calls


def test_reclaim_does_not_wait_for_a_long_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease longer than the limit fails at once."""
    other = OtherReader(61.0, renews_every_seconds=None)
    with pytest.raises(millrace.ChannelClaimedError):
        claimed(other, monkeypatch)
    assert other.now == 50.0


def test_reclaim_with_takeover_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other claim is ended at once."""
    other = OtherReader(30.0, renews_every_seconds=1.0)
    assert claimed(other, monkeypatch, takeover=True) == "claim"
    assert (other.calls, other.now) == ([True], 50.0)


_SHARD = Shard("orders", "a:1")
_OPTIONS = ClaimOptions(endpoints=("a:1",), channels=("orders",), reader_id="me", lease_seconds=0.05, takeover=False)


def test_held_claim_renews_and_removes_only_on_acknowledge(fakes: FakeServers) -> None:
    """Only `acknowledge` removes events, exactly those of the range, and `release` ends the claim."""
    state = fakes.make("a:1", event_count=5)
    claim = ClaimKeeper(_SHARD, _OPTIONS)
    wait_until(lambda: state.renewals > 3)
    assert state.acknowledged == []
    state.next = 9
    claim.acknowledge()
    claim.release()
    assert (state.acknowledged, state.first, state.reader_id) == ([5], 6, None)
    assert not claim._thread.is_alive()


def test_held_claim_that_has_ended_is_not_claimed_again(fakes: FakeServers) -> None:
    """A lost claim is not renewed, and acknowledging fails."""
    state = fakes.make("a:1", event_count=5)
    claim = ClaimKeeper(_SHARD, _OPTIONS)
    state.reader_id = None
    wait_until(lambda: not claim._thread.is_alive())
    assert state.reader_id is None
    with pytest.raises(MillraceSparkError, match="the claim has ended"):
        claim.acknowledge()
    claim.release()
