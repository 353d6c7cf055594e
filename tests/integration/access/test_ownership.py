"""Transactions, claims and producers, which belong to identities."""

import pytest

import millrace_client as millrace
from millrace.v1 import admin_service_pb2 as admin_pb
from millrace.v1 import channel_service_pb2 as pb
from millrace.v1.event_pb2 import Event, ProducerStamp
from tests.access_site import OF_A_TXN, Site, bearer, call, request_of
from tests.conftest import StartMillraced
from tests.millraced import Millraced


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
    """Another's claim stands in the way, also with the same reader and after a restart; an operator takes it over.

    The audit log has the owner of what an operator takes over, releases or ends.
    """
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
    operator = bearer(site.tokens["boss"])
    assert call(server.grpc, "BeginTxn", pb.BeginTxnRequest(channel="orders", txn_id="theirs"), other)[0] == "OK"
    assert call(server.grpc, "EndTransaction", admin_pb.EndTransactionRequest(txn_id="theirs"), operator)[0] == "OK"
    assert call(server.grpc, "ReleaseClaim", admin_pb.ReleaseClaimRequest(channel="orders"), operator)[0] == "OK"
    server.wait_for("audit", count=4)
    audit = [entry for entry in server.log if entry["event"] == "audit"]
    assert [(entry["outcome"], entry["identity"], entry.get("owner")) for entry in audit] == [
        ("denied", "read", "boss"),
        ("done", "other", "boss"),
        ("done", "boss", "other"),
        ("done", "boss", "other"),
    ]


def test_producers_belong_to_who_used_them_first(
    server: Millraced, site: Site, start_millraced: StartMillraced
) -> None:
    """Nobody else can use up their numbers, neither in an append nor in a commit, nor after a restart."""
    append = pb.AppendRequest(
        channel="orders",
        events=[Event(body=b"one")],
        stamp=ProducerStamp(producer_id="p", first_sequence=1, last_sequence=1),
    )
    assert call(server.grpc, "Append", append, bearer(site.tokens["other"]))[0] == "OK"
    server.stop()
    server = start_millraced(site.toml(), server.data_dir)
    append.stamp.first_sequence = append.stamp.last_sequence = 2
    boss = bearer(site.tokens["boss"])
    _, _, listed = call(server.grpc, "ListProducers", admin_pb.ListProducersRequest(channel="orders"), boss)
    assert [(producer.producer_id, producer.identity) for producer in listed.producers] == [("p", "other")]
    assert call(server.grpc, "Append", append, boss)[1] == "FORBIDDEN"
    stream = pb.AppendStreamRequest(channel="orders", events=append.events, stamp=append.stamp)
    assert call(server.grpc, "AppendStream", stream, boss)[1] == "FORBIDDEN"
    call(server.grpc, "BeginTxn", pb.BeginTxnRequest(channel="orders", txn_id="t"), boss)
    call(server.grpc, "Put", pb.PutRequest(txn_id="t", events=append.events), boss)
    assert call(server.grpc, "Commit", pb.CommitRequest(txn_ids=["t"], stamp=append.stamp), boss)[1] == "FORBIDDEN"
    _, _, stored = call(server.grpc, "Append", append, bearer(site.tokens["other"]))
    assert (stored.last_sequence, stored.deduplicated) == (2, False)
