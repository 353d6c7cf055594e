import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from millrace_client import ClaimStatus, ComponentKind, ComponentState, ConsumerInfo, OpenTransaction, ProducerInfo
from tests.unit.cli.conftest import RunMillrace
from tests.unit.cli.fake_channel import ACCESS, START_TIME
from tests.unit.cli.fake_client import FakeClient

SINK = replace(ACCESS, kind=ComponentKind.SINK, name="collector", state=ComponentState.BACKING_OFF, reason="no route")


def transaction(txn_id: str, channel: str, *, is_delivery: bool = False) -> OpenTransaction:
    return OpenTransaction(
        txn_id=txn_id,
        channel=channel,
        put_count=2,
        take_count=1_000,
        body_bytes=5,
        start_time=datetime.now(UTC) - timedelta(seconds=61),
        lease_remaining_seconds=None if is_delivery else 29.0,
        identity="" if is_delivery else "shipper",
        peer="sinks/collector" if is_delivery else "ipv6:%5B::1%5D:4711",
        is_delivery=is_delivery,
    )


def test_transactions_say_who_holds_what(client: FakeClient, millrace: RunMillrace) -> None:
    """Deliveries have no lease, and addresses are as people write them."""
    client.admin.transactions = [transaction("t1", "orders"), transaction("d1", "audit", is_delivery=True)]
    heading, first, second = (line.split() for line in millrace("transactions").stdout.splitlines())
    assert heading == ["TXN", "KIND", "CHANNEL", "AGE", "LEASE", "PUTS", "TAKES", "BYTES", "IDENTITY", "ADDRESS"]
    assert first[:3] == ["t1", "transaction", "orders"]
    assert first[-2:] == ["shipper", "[::1]:4711"]
    assert second[:3] == ["d1", "delivery", "audit"]
    assert second[-2:] == ["-", "sinks/collector"]
    [only] = json.loads(millrace("transactions", "orders", "--json").stdout)
    assert (only["txn_id"], only["take_count"], only["lease_remaining_seconds"]) == ("t1", 1_000, 29.0)


def test_end_of_a_transaction_says_so(client: FakeClient, millrace: RunMillrace) -> None:
    """An unknown one is refused, with the way to find the known ones."""
    client.admin.transactions = [transaction("t1", "orders")]
    assert millrace("transaction", "end", "t1").stdout == "t1: rolled back\n"
    assert client.admin.transactions == []
    unknown = millrace("transaction", "end", "t1")
    assert unknown.exit_code == 1
    assert "knows no transaction t1; see the open ones with `millrace transactions`" in unknown.stderr


def test_release_of_a_claim_names_its_reader(client: FakeClient, millrace: RunMillrace) -> None:
    """With an epoch only that claim is ended."""
    client.orders.claim = ClaimStatus(reader_id="dead-job", epoch=7, remaining_seconds=1.0)
    assert millrace("claim", "release", "orders", "--epoch", "6").exit_code == 1
    assert client.orders.claim is not None
    released = millrace("claim", "release", "orders", "--epoch", "7", "--json")
    assert json.loads(released.stdout) == {"channel": "orders", "reader_id": "dead-job", "epoch": 7}
    assert millrace("claim", "release", "orders").exit_code == 1


def test_consumers_and_producers_are_tables(client: FakeClient, millrace: RunMillrace) -> None:
    """A producer that an earlier release stored has no time."""
    client.admin.consumers = [
        ConsumerInfo(
            channel="orders",
            peer="ipv4:10.0.0.1:5",
            identity="",
            open_deliveries=2,
            open_events=9,
            start_time=START_TIME,
        )
    ]
    _, consumer = (line.split() for line in millrace("consumers").stdout.splitlines())
    assert consumer[:4] == ["10.0.0.1:5", "orders", "9", "2"]
    client.admin.producers = [ProducerInfo(producer_id="p", last_sequence=1_000, gap_count=1, last_seen=None)]
    _, producer = (line.split() for line in millrace("producers", "orders").stdout.splitlines())
    assert producer == ["p", "-", "1,000", "1", "-"]
    [document] = json.loads(millrace("producers", "orders", "--json").stdout)
    assert document == {
        "producer_id": "p",
        "last_sequence": 1_000,
        "gap_count": 1,
        "last_seen": None,
        "identity": "",
    }


def test_producers_that_are_not_listed_are_noted(client: FakeClient, millrace: RunMillrace) -> None:
    """Otherwise a script would take the part for the whole."""
    client.admin.producers = [ProducerInfo(producer_id="p", last_sequence=1, gap_count=0, last_seen=None)]
    client.orders.producer_count = 2_000
    listed = millrace("producers", "orders", "--json")
    assert len(json.loads(listed.stdout)) == 1
    assert "these are 1 of 2,000 producers, the least recently active ones" in listed.stderr


def test_forget_on_a_terminal_wants_a_yes(
    client: FakeClient, millrace: RunMillrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that is forgotten may store events twice."""
    client.admin.producers = [ProducerInfo(producer_id="p", last_sequence=1, gap_count=0, last_seen=START_TIME)]
    monkeypatch.setattr("millrace_client.cli.terminal.sys", _Terminal())
    refused = millrace("producer", "forget", "orders", "p", typed="n\n")
    assert (refused.exit_code, len(client.admin.producers)) == (2, 1)
    assert "nothing was forgotten" in refused.stderr
    assert millrace("producer", "forget", "orders", "p", "--yes").stdout == "orders: forgot p\n"
    assert client.admin.producers == []


class _Terminal:
    """Stands for `sys` with a terminal as its standard input."""

    stderr = sys.stderr

    class stdin:  # noqa: N801 - as in `sys`
        @staticmethod
        def isatty() -> bool:
            return True


@pytest.mark.parametrize(
    ("component", "sentence"),
    [
        (SINK, "sinks/collector: tries again now, after 0 failures, the last of them: no route\n"),
        (replace(SINK, state=ComponentState.RUNNING), "sinks/collector: running, so there is nothing to retry\n"),
    ],
)
def test_retry_of_a_component_says_what_it_was(
    client: FakeClient, millrace: RunMillrace, component: object, sentence: str
) -> None:
    """The response has the state before, since that after takes time."""
    client.admin.components = [component]  # type: ignore[list-item] # a component
    assert millrace("component", "retry", "collector").stdout == sentence
    assert millrace("component", "retry", "sinks/collector").stdout == sentence
    assert millrace("component", "retry", "sources/collector").exit_code == 1
    assert json.loads(millrace("component", "retry", "collector", "--json").stdout)["name"] == "collector"
    assert millrace("component", "retry", "collector", "--kind", "source").exit_code == 1


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("colector", "did you mean collector? If not, see the names with `millrace components`"),
        ("sources/collector", "did you mean sinks/collector? If not, see the names"),
        ("web", "; see the names with `millrace components`"),
    ],
)
def test_retry_of_an_unknown_component_asks_for_the_similar_one(
    client: FakeClient, millrace: RunMillrace, name: str, sentence: str
) -> None:
    """A mistyped name costs no second command."""
    client.admin.components = [SINK]
    result = millrace("component", "retry", name)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert sentence in result.stderr
