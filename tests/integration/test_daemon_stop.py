import queue
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from millrace.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    channel_service_pb2,
    channel_service_pb2_grpc,
    event_pb2,
)
from tests.conftest import StartMillraced
from tests.millraced import STOP_SECONDS_MAX, Millraced

ORDERS_TOML = """
[channels.orders]
type = "memory"
"""
LONG_GRACE_TOML = f"server.shutdown_grace_seconds = 600.0\n{ORDERS_TOML}"
"""A server that used its grace time would outlast each wait for its end, so that no test measures a stop."""


@contextmanager
def service_of(server: Millraced) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc) as channel:
        yield channel_service_pb2_grpc.ChannelServiceStub(channel)


def begin_and_put(service: Any) -> str:
    begun = service.BeginTxn(channel_service_pb2.BeginTxnRequest(channel="orders"), timeout=20.0)
    service.Put(
        channel_service_pb2.PutRequest(txn_id=begun.txn_id, events=[event_pb2.Event(body=b"water")]), timeout=20.0
    )
    return str(begun.txn_id)


def stop(server: Millraced, *numbers: signal.Signals) -> None:
    """Sends signals, each after the effect of the one before, and waits for exit code 0."""
    for number in numbers:
        server.send(number)
        server.wait_for("stopping")
    assert server.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_when_idle_stops_at_once(start_millraced: StartMillraced, number: signal.Signals) -> None:
    """A server without open transactions does not use its grace time, and exits with 0."""
    server = start_millraced(LONG_GRACE_TOML)
    stop(server, number)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{server.http}/healthz", timeout=20.0)


def test_signal_with_a_transaction_open_lets_it_commit(start_millraced: StartMillraced) -> None:
    """While a transaction is open the server waits, accepts no new work, and reports that it is stopping."""
    server = start_millraced(LONG_GRACE_TOML)
    with service_of(server) as service:
        txn_id = begin_and_put(service)
        server.send(signal.SIGTERM)
        assert server.wait_for("stopping")["open_transactions"] == 1
        with pytest.raises(grpc.RpcError) as refused:
            service.BeginTxn(channel_service_pb2.BeginTxnRequest(channel="orders"), timeout=20.0)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"http://{server.http}/healthz", timeout=20.0)
        committed = service.Commit(channel_service_pb2.CommitRequest(txn_ids=[txn_id]), timeout=20.0)
        assert (committed.first_sequence, committed.last_sequence) == (1, 1)
    assert server.wait() == 0
    assert [entry["event"] for entry in server.log] == ["serving", "stopping", "events in memory are lost", "stopped"]


def test_signal_with_a_transaction_left_open_stops_after_the_grace_time(start_millraced: StartMillraced) -> None:
    """An abandoned transaction delays the stop by the grace time at most; the log says that it was lost."""
    server = start_millraced(f"server.shutdown_grace_seconds = 0.5\n{ORDERS_TOML}")
    with service_of(server) as service:
        begin_and_put(service)
        started = time.monotonic()
        stop(server, signal.SIGTERM)
        assert time.monotonic() - started >= 0.5
    assert server.wait_for("open transactions are rolled back")["open_transactions"] == 1


def test_signal_without_grace_time_stops_at_once(start_millraced: StartMillraced) -> None:
    """With a grace time of 0 the server does not wait for transactions."""
    server = start_millraced(f"server.shutdown_grace_seconds = 0.0\n{ORDERS_TOML}")
    with service_of(server) as service:
        begin_and_put(service)
        stop(server, signal.SIGTERM)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_stops_at_once(start_millraced: StartMillraced, second: signal.Signals) -> None:
    """A second signal stops the server at once, with exit code 0."""
    server = start_millraced(LONG_GRACE_TOML)
    with service_of(server) as service:
        begin_and_put(service)
        stop(server, signal.SIGTERM, second)


def test_signal_with_streams_open_does_not_wait_for_them(start_millraced: StartMillraced) -> None:
    """Endless streams and waiting takes do not delay a stop."""
    server = start_millraced(LONG_GRACE_TOML)
    with grpc.insecure_channel(server.grpc) as channel:
        service = channel_service_pb2_grpc.ChannelServiceStub(channel)
        watched = admin_service_pb2_grpc.AdminServiceStub(channel).WatchChannels(
            admin_service_pb2.WatchChannelsRequest(), timeout=600.0
        )
        assert [found.name for found in next(watched).channels] == ["orders"]
        start = channel_service_pb2.ConsumeRequest(start=channel_service_pb2.ConsumeRequest.Start(channel="orders"))
        messages = queue.SimpleQueue[channel_service_pb2.ConsumeRequest | None]()
        messages.put(start)
        consumed = service.Consume(iter(messages.get, None), timeout=600.0)
        begun = service.BeginTxn(channel_service_pb2.BeginTxnRequest(channel="orders"), timeout=20.0)
        take = channel_service_pb2.TakeRequest(txn_id=begun.txn_id, wait=Duration(seconds=600))
        taken = service.Take.future(take, timeout=600.0)
        server.send(signal.SIGTERM)
        with pytest.raises(grpc.RpcError, match="the server is stopping"):
            taken.result(timeout=20.0)
        service.Rollback(channel_service_pb2.RollbackRequest(txn_id=begun.txn_id), timeout=20.0)
        assert server.wait() == 0
        for stream in (watched, consumed):
            with pytest.raises(grpc.RpcError) as ended:
                list(stream)
            assert ended.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
        messages.put(None)


def test_serve_continues_when_the_reader_of_its_log_has_ended(tmp_path: Path) -> None:
    """A log without a reader neither stops the server nor changes its exit code."""
    arguments = ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--data-dir", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-m", "millrace_server", "serve", *arguments], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert "serving" in process.stderr.readline()
        process.stderr.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_SECONDS_MAX) == 0
