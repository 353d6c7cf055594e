"""Transactions, claims and producers, which belong to identities."""

from pathlib import Path

import pytest

import millrace_client as millrace
from millrace.v1 import channel_service_pb2 as pb
from tests.access_site import OF_A_TXN, Site, bearer, call, request_of
from tests.conftest import StartMillraced
from tests.millraced import Millraced


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site.of_permissions(tmp_path)


@pytest.fixture
def server(site: Site, start_millraced: StartMillraced) -> Millraced:
    return start_millraced(site.toml())


def test_transactions_belong_to_who_began_them(server: Millraced, site: Site) -> None:
    """Another identity with all rights cannot commit or end them, and the audit log has its attempts."""
    with (
        millrace.connect(server.grpc, token=site.tokens["boss"]) as boss,
        millrace.connect(server.grpc, token=site.tokens["append"]) as appender,
    ):
        other = bearer(site.tokens["other"])
        with boss.channel("orders").transaction(txn_id="mine") as txn:
            txn.put([b"one"])
            for method in OF_A_TXN:
                found = call(server.grpc, method, request_of(method, "orders", "mine"), other)
                assert found[1] == "TXN_NOT_FOUND", method
            begun = call(server.grpc, "BeginTxn", pb.BeginTxnRequest(channel="orders", txn_id="mine"), other)
            assert begun[1] == "TXN_STATE"
        repeated = call(server.grpc, "Commit", pb.CommitRequest(txn_ids=["mine"]), other)
        assert repeated[1] == "TXN_NOT_FOUND"
        with pytest.raises(millrace.ForbiddenError, match="take"), appender.channel("orders").transaction() as own:
            own.take()
        assert boss.admin.get_channel("orders").gauges.queued_events == 1
    attempt = server.wait_for("audit")
    assert [attempt[key] for key in ("outcome", "identity", "owner", "reason")] == [
        "denied",
        "other",
        "boss",
        "TXN_NOT_FOUND",
    ]


def test_claims_belong_to_who_holds_them(server: Millraced, site: Site, start_millraced: StartMillraced) -> None:
    """Another's claim stands in the way, also with the same reader and after a restart; an operator takes it over."""
    with millrace.connect(server.grpc, token=site.tokens["boss"]) as boss:
        boss.channel("orders").append([b"one"])
        boss.channel("orders").claim("reader", lease_seconds=3_000)
    reader, other = bearer(site.tokens["read"]), bearer(site.tokens["other"])
    calls = ("Claim", "Read", "Acknowledge", "Release")
    requests = {name: request_of(name, "orders", "") for name in calls}
    for request in requests.values():
        request.reader_id = "reader"  # type: ignore[attr-defined] # all four have it
    for name, request in requests.items():
        assert call(server.grpc, name, request, other)[1] == "CHANNEL_CLAIMED", name
    server.stop()
    server = start_millraced(site.toml(), server.data_dir)
    for name, request in requests.items():
        assert call(server.grpc, name, request, reader)[1] == "CHANNEL_CLAIMED", name
    takeover = pb.ClaimRequest(channel="orders", reader_id="reader", takeover=True)
    assert call(server.grpc, "Claim", takeover, reader)[1] == "FORBIDDEN"
    assert call(server.grpc, "Claim", takeover, other)[0] == "OK"
    server.wait_for("audit", count=2)
    audit = [entry for entry in server.log if entry["event"] == "audit"]
    assert [(entry["outcome"], entry["identity"], entry["owner"]) for entry in audit] == [
        ("denied", "read", "boss"),
        ("done", "other", "boss"),
    ]
