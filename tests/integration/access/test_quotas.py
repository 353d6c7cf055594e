"""Quotas of identities, the maximum of channels, and the file of audit entries."""

import json
import time
from pathlib import Path

import grpc
import pytest

import millrace_client as millrace
from millrace.v1 import channel_service_pb2 as pb
from millrace_server.access.permissions import ANYTHING
from tests.access_site import WAIT_SECONDS_MAX, Site, bearer, reason_of
from tests.millraced import Millraced

RATE = 1_000_000
QUOTAS = {
    "sender": f"bytes_per_second = {RATE}",
    "slow": "bytes_per_second = 1, read_bytes_per_second = 1",
    "reader": f"read_bytes_per_second = {RATE}",
    "taker": "read_bytes_per_second = 1_000",
    "beginner": "open_transactions = 2",
}
BODY = bytes(RATE // 4)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path, {name: [f"{ANYTHING}:{ANYTHING}"] for name in ("boss", *QUOTAS)})
    site.quotas = dict(QUOTAS)
    site.further_toml = f'server.channels_max = 3\nauth.audit_file = "{tmp_path / "audit"}"\n'
    return site


def test_requests_over_the_quota_are_refused(server: Millraced, site: Site) -> None:
    """What is larger passes a full bucket; then all is refused but what ends something, and others go on."""
    with (
        millrace.connect(server.grpc, token=site.tokens["slow"]) as slow,
        millrace.connect(server.grpc, token=site.tokens["boss"]) as boss,
    ):
        orders = slow.channel("orders")
        txn = orders.transaction().begin()
        with pytest.raises(millrace.QuotaExceededError, match="quota of 1 bytes_per_second is used up") as refused:
            txn.put([b"one"])
        assert (refused.value.retry_delay_seconds or 0) > 1
        with pytest.raises(millrace.QuotaExceededError):
            orders.append([b"two"])
        assert txn.commit().last_sequence == 0
        assert boss.channel("orders").append([b"three"]).last_sequence == 1


def test_producer_over_the_quota_loses_nothing(server: Millraced, site: Site) -> None:
    """Its appends wait for their turn."""
    config = millrace.ProducerConfig(batch_bytes_max=len(BODY) + 1_000)
    with millrace.Producer(server.grpc, channel="orders", token=site.tokens["sender"], config=config) as producer:
        sent = [producer.send(BODY) for _ in range(6)]
    assert [one.result(WAIT_SECONDS_MAX).sequence for one in sent] == [1, 2, 3, 4, 5, 6]


def test_reads_over_the_quota_wait_or_are_refused(server: Millraced, site: Site) -> None:
    """A stream delivers in its turn; a take is refused once too much was taken, and its events stay."""
    with (
        millrace.connect(server.grpc, token=site.tokens["boss"]) as boss,
        millrace.connect(server.grpc, token=site.tokens["reader"]) as reader,
        millrace.connect(server.grpc, token=site.tokens["taker"]) as taker,
    ):
        for _ in range(8):
            boss.channel("orders").append([BODY])
        with reader.channel("orders").consume(max_events=1) as deliveries:
            for number, delivery in zip(range(1, 6), deliveries, strict=False):
                assert delivery.batches[0].first_sequence == number
                delivery.ack()
        with taker.channel("orders").transaction() as txn:
            batches = txn.take(2)
            with pytest.raises(millrace.QuotaExceededError, match="read_bytes_per_second") as refused:
                txn.take()
        assert refused.value.retry_delay_seconds
        assert [batch.first_sequence for batch in batches] == [6, 7]
        assert boss.admin.get_channel("orders").gauges.queued_events == 1


def test_transactions_over_the_quota_are_refused(server: Millraced, site: Site) -> None:
    """A repeat of a BeginTxn is none more, and one that ends makes space, in whichever channel."""
    with millrace.connect(server.grpc, token=site.tokens["beginner"]) as client:
        orders, other = client.channel("orders"), client.channel("other")
        first, second = orders.transaction(txn_id="first").begin(), other.transaction().begin()
        orders.transaction(txn_id="first").begin()
        with pytest.raises(millrace.QuotaExceededError, match="quota of 2 open_transactions"):
            orders.transaction().begin()
        second.rollback()
        other.transaction().begin()
        with pytest.raises(millrace.QuotaExceededError):
            orders.transaction().begin()
        first.commit()
        orders.transaction().begin()


def test_appends_of_a_stream_far_over_the_quota_are_refused(server: Millraced, site: Site) -> None:
    """The refusal of one that would wait for minutes says for how long; the stream goes on."""
    with grpc.insecure_channel(server.grpc) as connection:
        append = connection.stream_stream(
            "/millrace.v1.ChannelService/AppendStream",
            pb.AppendStreamRequest.SerializeToString,
            pb.AppendStreamResponse.FromString,
        )
        request = pb.AppendStreamRequest(channel="other")
        request.events.add(body=bytes(200))
        stored, *others = append(iter([request] * 3), WAIT_SECONDS_MAX, bearer(site.tokens["slow"]))
    assert stored.last_sequence == 1
    assert [reason_of(refused.error) for refused in others] == ["QUOTA_EXCEEDED"] * 2


def test_changed_quotas_act_on_waiting_streams(server: Millraced, site: Site) -> None:
    """A stream that would wait for minutes goes on once its identity has no quota any more."""
    with (
        millrace.connect(server.grpc, token=site.tokens["boss"]) as boss,
        millrace.connect(server.grpc, token=site.tokens["taker"]) as taker,
    ):
        for _ in range(2):
            boss.channel("orders").append([BODY])
        with taker.channel("orders").consume(max_events=1) as deliveries:
            next(deliveries).ack()
            del site.quotas["taker"]
            site.reload(server)
            next(deliveries).ack()


def test_create_channel_above_the_maximum_is_refused(server: Millraced, site: Site) -> None:
    """Configured channels count; one that is deleted makes space."""
    with millrace.connect(server.grpc, token=site.tokens["boss"]) as boss:
        boss.admin.create_channel("third")
        with pytest.raises(millrace.TooManyChannelsError, match="there are 3 channels, and server"):
            boss.admin.create_channel("fourth")
        with pytest.raises(millrace.ChannelExistsError):
            boss.admin.create_channel("third")
        boss.admin.delete_channel("third")
        boss.admin.create_channel("fourth")


def test_audit_file_has_the_entries_and_may_be_renamed(server: Millraced, site: Site, tmp_path: Path) -> None:
    """One JSON object per line, whatever names hold; after logrotate's rename there is a new file.

    The log says that an entry could not be written, and later ones are written.
    """
    file = tmp_path / "audit"
    forged = 'x\n{"event": "audit", "outcome": "done"}\r\x1b[2J\u2028'
    with millrace.connect(server.grpc, token=site.tokens["boss"]) as boss:
        with pytest.raises(millrace.BadNameError):
            boss.admin.create_channel(forged)
        [first] = eventually(file)
        file.rename(tmp_path / "audit.1")
        file.mkdir()
        boss.admin.purge_channel("other")
        assert server.wait_for("an entry is missing in its file")["why"] == "Is a directory"
        file.rmdir()
        boss.admin.create_channel("third")
        [second] = eventually(file)
    assert (first["outcome"], first["call"], first["identity"], first["proof"]) == (
        "failed",
        "CreateChannel",
        "boss",
        "token",
    )
    assert first["name"].startswith("x\\n{")
    assert first["name"].isprintable()
    assert (second["outcome"], second["name"]) == ("done", "third")
    assert file.stat().st_mode & 0o777 == 0o600
    server.stop()
    assert server.other_output == []
    assert [entry["name"] for entry in server.log if entry["event"] == "audit"] == [first["name"], "other", "third"]


def eventually(file: Path) -> list[dict[str, str]]:
    """Returns the entries of a file once there are any."""
    give_up = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < give_up:
        if file.exists() and (lines := file.read_text().splitlines()):
            return [json.loads(line) for line in lines]
        time.sleep(0.01)
    raise TimeoutError
