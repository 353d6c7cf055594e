import time
from typing import Any

import pytest

import millrace_client as millrace
from millrace_spark.reading.claiming import claim_anew
from millrace_spark.reading.options import ClaimOptions


class OtherReader:
    """A channel that another reader has claimed, on a clock that goes on only while somebody pauses."""

    def __init__(self, lease_seconds: float, renews_every_seconds: float | None) -> None:
        self.name = "orders"
        self.now = 50.0
        self._lease_seconds = lease_seconds
        self._renews_every_seconds = renews_every_seconds
        self.calls: list[bool] = []

    @property
    def remaining_seconds(self) -> float:
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
    monkeypatch.setattr(time, "monotonic", lambda: other.now)
    return claim_anew(other, options, wait_seconds_max=60.0, pause=other.pause)  # type: ignore[arg-type] # a fake


def test_claim_anew_waits_for_a_claim_that_nobody_renews(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of a process that was killed; in the end the channel is claimed under a new epoch."""
    other = OtherReader(30.0, renews_every_seconds=None)
    assert claimed(other, monkeypatch) == "claim"
    assert other.now == pytest.approx(80.0)
    assert other.calls[-2:] == [False, True]


def test_claim_anew_is_refused_where_the_other_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as it is seen to renew."""
    other = OtherReader(30.0, renews_every_seconds=1.0)
    with pytest.raises(millrace.ChannelClaimedError):
        claimed(other, monkeypatch)
    assert other.now <= 52.0
    assert True not in other.calls


def test_claim_anew_does_not_wait_for_a_long_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts a query is to be told within the time that was asked for."""
    other = OtherReader(61.0, renews_every_seconds=None)
    with pytest.raises(millrace.ChannelClaimedError):
        claimed(other, monkeypatch)
    assert other.now == 50.0


def test_claim_anew_with_takeover_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is ended at once."""
    other = OtherReader(30.0, renews_every_seconds=1.0)
    assert claimed(other, monkeypatch, takeover=True) == "claim"
    assert (other.calls, other.now) == ([True], 50.0)
