"""Claims that a driver holds, on servers in memory."""

import threading
import time
from collections.abc import Callable

import pytest

import millrace_client as millrace
from millrace_spark import MillraceSparkError
from millrace_spark.reading.held_claim import HeldClaim
from millrace_spark.reading.options import ClaimOptions
from millrace_spark.shards import Shard
from tests.unit.spark.fake_mill import FakeMill

_WAIT_SECONDS_MAX = 20.0
_SHARD = Shard("orders", "a:1")
_OPTIONS = ClaimOptions(endpoints=("a:1",), channels=("orders",), reader_id="me", lease_seconds=0.05, takeover=False)


@pytest.fixture
def mill(monkeypatch: pytest.MonkeyPatch) -> FakeMill:
    fake = FakeMill()
    monkeypatch.setattr(millrace, "connect", fake.connect)
    return fake


def wait_until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + _WAIT_SECONDS_MAX
    while not is_so():
        assert time.monotonic() < give_up
        threading.Event().wait(0.005)


def is_kept() -> bool:
    return any(thread.name == f"millrace-claim-{_SHARD}" for thread in threading.enumerate())


def test_held_claim_renews_and_removes_only_what_it_is_told_to(mill: FakeMill) -> None:
    """While the job takes its time nothing is acknowledged; then exactly the range, and in the end it is free."""
    state = mill.make("a:1", event_count=5)
    claim = HeldClaim(_SHARD, _OPTIONS)
    wait_until(lambda: state.renewals > 3)
    assert state.acknowledged == []
    state.next = 9
    claim.acknowledge()
    claim.release()
    assert (state.acknowledged, state.first, state.reader_id) == ([5], 6, None)
    assert not is_kept()


def test_held_claim_that_has_ended_is_not_begun_anew(mill: FakeMill) -> None:
    """Others may have taken since; whoever acknowledges is told."""
    state = mill.make("a:1", event_count=5)
    claim = HeldClaim(_SHARD, _OPTIONS)
    state.reader_id = None
    wait_until(lambda: not is_kept())
    assert state.reader_id is None
    with pytest.raises(MillraceSparkError, match="the claim has ended"):
        claim.acknowledge()
    claim.release()
