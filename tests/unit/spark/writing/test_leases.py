import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import millrace_client as millrace
from millrace_spark.option_values import Security
from millrace_spark.shards import Shard
from millrace_spark.writing.leases import LeaseKeeper

SECURITY = Security(tls=millrace.Tls(ca="ca.pem"), token_file="token")  # noqa: S106 - a path

_WAIT_SECONDS_MAX = 60.0
HERE, AWAY = Shard("orders", "here:1"), Shard("orders", "away:1")


class Servers:
    """Servers that are asked to renew transactions.

    Attributes:
        renewals: How often each transaction was tried.
        respond: What a server does when it is asked.
        timeouts: The timeouts of all connections.
        open_count: Connections that were not closed.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.renewals: Counter[tuple[str, str]] = Counter()
        self.respond: Callable[[str], None] = lambda _endpoint: None
        self.timeouts: list[float] = []
        self.open_count = 0

    @contextmanager
    def connect(self, endpoint: str, *, timeout_seconds: float, **security: object) -> Iterator[Any]:
        """Replaces `millrace_client.connect`."""
        assert security == {"tls": SECURITY.tls, "token": None, "token_file": "token"}
        self.timeouts.append(timeout_seconds)
        self.open_count += 1
        yield FakeClient(self, endpoint)
        self.open_count -= 1

    def renew(self, endpoint: str, txn_id: str) -> None:
        """Counts the call, then acts like the server."""
        with self.changed:
            self.renewals[endpoint, txn_id] += 1
            self.changed.notify_all()
        self.respond(endpoint)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits for renewals."""
        with self.changed:
            assert self.changed.wait_for(condition, _WAIT_SECONDS_MAX), self.renewals


class FakeClient:
    """A connection, its channel and its transaction in one."""

    def __init__(self, servers: Servers, endpoint: str, txn_id: str = "") -> None:
        self._servers = servers
        self._endpoint = endpoint
        self._txn_id = txn_id

    def channel(self, _name: str) -> "FakeClient":
        return self

    def transaction(self, txn_id: str) -> "FakeClient":
        return FakeClient(self._servers, self._endpoint, txn_id)

    def renew(self) -> None:
        self._servers.renew(self._endpoint, self._txn_id)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    made = Servers()
    monkeypatch.setattr(millrace, "connect", made.connect)
    return made


def keeper_of(lease_seconds: float, *shards: Shard, txn_count: int = 1) -> LeaseKeeper:
    keeper = LeaseKeeper(lease_seconds, SECURITY)
    for number in range(txn_count):
        for shard in shards:
            keeper.add(shard, f"t{number}")
    return keeper


def test_keeper_with_a_server_away_renews_at_the_others(servers: Servers) -> None:
    """An unreachable server is called once per round, and the others renew all transactions."""

    def respond(endpoint: str) -> None:
        if endpoint == AWAY.endpoint:
            raise millrace.UnavailableError("cannot reach it")

    servers.respond = respond
    keeper = keeper_of(0.03, AWAY, HERE, txn_count=50)
    servers.wait_until(lambda: servers.renewals[HERE.endpoint, "t49"] >= 3)
    keeper.stop(is_for_commit=False)
    assert {txn_id for endpoint, txn_id in servers.renewals if endpoint == AWAY.endpoint} == {"t0"}


def test_keeper_with_ended_transactions_renews_the_others(servers: Servers) -> None:
    """An ended transaction does not prevent the renewal of others."""

    def respond(_endpoint: str) -> None:
        raise millrace.TxnNotFoundError("there is none")

    servers.respond = respond
    keeper = keeper_of(0.03, HERE, txn_count=3)
    servers.wait_until(lambda: servers.renewals[HERE.endpoint, "t2"] >= 2)
    keeper.stop(is_for_commit=False)


def test_stop_during_a_renewal_waits_for_that_one_alone(servers: Servers) -> None:
    """A stop waits for the current renewal only."""
    goes_on = threading.Event()
    servers.respond = lambda _endpoint: assert_set(goes_on)
    keeper = keeper_of(0.03, HERE, txn_count=50)
    servers.wait_until(lambda: servers.renewals.total() == 1)
    # Another renewal may begin meanwhile.
    keeper.add(HERE, "later")
    stopping = threading.Thread(target=keeper.stop, kwargs={"is_for_commit": False})
    stopping.start()
    assert keeper._is_stopped.wait(_WAIT_SECONDS_MAX)
    goes_on.set()
    stopping.join(_WAIT_SECONDS_MAX)
    assert not stopping.is_alive()
    assert servers.renewals.total() == 1
    assert servers.open_count == 0


def assert_set(event: threading.Event) -> None:
    assert event.wait(_WAIT_SECONDS_MAX)


@pytest.mark.parametrize(("lease_seconds", "count"), [(0.000_001, 3), (600.0, 0)])
def test_stop_for_a_commit_renews_what_has_waited(servers: Servers, lease_seconds: float, count: int) -> None:
    """Before a commit, transactions are renewed unless they were renewed recently, with short deadlines."""
    keeper = LeaseKeeper(lease_seconds, SECURITY)
    keeper._is_stopped.set()
    for number in range(3):
        keeper.add(HERE, f"t{number}")
    keeper.stop(is_for_commit=True)
    assert servers.renewals.total() == count
    assert 1.0 <= max(servers.timeouts) <= 5.0
    assert servers.open_count == 0
