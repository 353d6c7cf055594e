"""Daemons that receive events by POST."""

import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from millrace_client import ComponentState, connect
from tests.conftest import StartMillraced
from tests.free_ports import free_port
from tests.millraced import Millraced
from tests.process_figures import cpu_seconds, resident_bytes

WAIT_SECONDS_MAX = 60.0
MIB = 1 << 20

SOURCE = """
[sources.web]
type = "http"
listen = "127.0.0.1:{port}"
channels = {channels}
{settings}
"""
CHANNEL = """
[channels.{name}]
type = "{type}"
capacity = {capacity}
transaction_capacity = 10
keep_alive_seconds = 0.05
"""


def _channel(name: str = "orders", *, kind: str = "file", capacity: int = 10_000) -> str:
    return CHANNEL.format(name=name, type=kind, capacity=capacity)


def _source(*channels: str, port: int = 0, settings: str = "") -> str:
    return SOURCE.format(port=port, channels=json.dumps(channels or ("orders",)), settings=settings)


def _port_of(server: Millraced) -> int:
    address: str = server.wait_for("listening")["address"]
    return int(address.rstrip("/").rpartition(":")[2])


def _post(port: int, body: bytes, headers: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any], str | None]:
    """The status, body and Retry-After of a response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS_MAX)
    try:
        connection.request("POST", "/", body, dict(headers or {}))
        response = connection.getresponse()
        return response.status, json.loads(response.read()), response.getheader("Retry-After")
    finally:
        connection.close()


def _bodies(server: Millraced, channel: str = "orders") -> list[bytes]:
    with connect(server.grpc) as client:
        return [event.body for batch in client.channel(channel).peek(max_events=10_000) for event in batch]


def _numbered(count: int) -> bytes:
    return b"".join(b'{"headers":{"n":"%d"},"body":"%d"}\n' % (number, number) for number in range(count))


def test_post_acknowledged_before_a_kill_is_stored_and_its_repeat_is_not(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """Acknowledged events survive SIGKILL; a request without a response is sent again and stores nothing twice."""
    config, data_dir = _channel() + _source(port=free_port()), tmp_path / "data"
    server = start_millraced(config, data_dir)
    headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": "order 17"}
    status, response, _ = _post(_port_of(server), _numbered(25), headers)
    assert (status, response) == (200, {"events": 25})
    server.kill()
    server = start_millraced(config, data_dir)
    assert _post(_port_of(server), _numbered(25), headers)[0] == 200
    assert _post(_port_of(server), b"raw", {"Idempotency-Key": "order 18"})[0] == 200
    assert _bodies(server) == [*(b"%d" % number for number in range(25)), b"raw"]


def test_post_while_a_channel_is_full_is_refused_with_a_retry_and_then_stored_once(
    start_millraced: StartMillraced,
) -> None:
    """The channel with space already has the events, so the repeat stores them only in the other one."""
    server = start_millraced(
        _channel("wide") + _channel("narrow", kind="memory", capacity=10) + _source("wide", "narrow")
    )
    port = _port_of(server)
    headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": "all 15"}
    status, response, retry_after = _post(port, _numbered(15), headers)
    assert (status, response["reason"], retry_after) == (503, "CHANNEL_FULL", "1")
    with connect(server.grpc) as client:
        # Once there is space it may run again before the next request.
        assert [one.state for one in client.admin.list_components()] == [ComponentState.BACKING_OFF]
        with client.channel("narrow").transaction() as txn:
            assert sum(batch.count for batch in txn.take(max_events=10)) == 10
    assert _post(port, _numbered(15), headers)[0] == 200
    assert _bodies(server, "wide") == [b"%d" % number for number in range(15)]
    assert _bodies(server, "narrow") == [b"%d" % number for number in range(10, 15)]


def test_stop_with_requests_in_progress_responds_to_them(start_millraced: StartMillraced) -> None:
    """The events of each request that got 200 are there after the next start; no request is left without a response."""
    server = start_millraced(_channel() + _source())
    port = _port_of(server)
    responses: list[int] = []
    broken = threading.Event()

    def send(thread: int) -> None:
        for number in range(1_000):
            try:
                responses.append(_post(port, b"%d-%d" % (thread, number))[0])
            except ConnectionError:
                # The server does not listen any more, or the connection was not accepted.
                broken.set()
                return

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while len(responses) < 20:
        time.sleep(0.001)
    server.send(signal.SIGTERM)
    for thread in threads:
        thread.join(WAIT_SECONDS_MAX)
    assert server.wait() == 0
    assert broken.is_set()
    assert set(responses) <= {200, 503}
    assert server.faults == []
    assert server.other_output == []
    again = start_millraced(_channel(), server.data_dir)
    assert len(_bodies(again)) >= responses.count(200)


def test_hostile_senders_beside_good_ones_cost_neither_memory_nor_responses(start_millraced: StartMillraced) -> None:
    """Huge and unfinished bodies, broken headers and many connections do not affect well-behaved clients."""
    server = start_millraced(_channel() + _source(settings="body_bytes_max = 1048576\nconnections_max = 300\n"))
    port = _port_of(server)
    assert _post(port, b"first")[0] == 200
    before = resident_bytes(server.process.pid)
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
    for index, connection in enumerate(held):
        if index % 3 == 0:
            connection.sendall(b"POST / HTTP/1.1\r\nHost: mill\r\nContent-Length: 1000000\r\n\r\n" + bytes(50_000))
        elif index % 3 == 1:
            connection.sendall(b"POST / HTT")
        else:
            connection.sendall(b"\x00\xff nonsense\r\n\r\n")
    for _ in range(20):
        assert _post(port, b"good")[0] == 200
        assert _post(port, bytes(2 * MIB))[0] == 413
    grown = resident_bytes(server.process.pid) - before
    for connection in held:
        connection.close()
    assert grown < 64 * MIB
    assert _bodies(server) == [b"first", *[b"good"] * 20]
    assert server.stop() == 0
    assert [entry for entry in server.log if entry["level"] != "info"] == []


@pytest.mark.torture
def test_source_without_requests_needs_no_processor(start_millraced: StartMillraced) -> None:
    """A server that waits for requests wakes up about once per second."""
    server = start_millraced(_channel(kind="memory", capacity=10) + _source())
    assert _post(_port_of(server), b"first")[0] == 200
    before = cpu_seconds(server.process.pid)
    time.sleep(2.0)
    assert cpu_seconds(server.process.pid) - before < 0.1
