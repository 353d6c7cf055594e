"""Daemons that receive syslog messages."""

import logging
import logging.handlers
import socket
import time

import pytest

from millrace_client import Client, ComponentState, Event, connect
from tests.conftest import StartMillraced
from tests.millraced import Millraced
from tests.waiting import wait_until

WAIT_SECONDS_MAX = 60.0

CONFIG = """
[channels.logs]
type = "{type}"
capacity = {capacity}
keep_alive_seconds = 0.05

[sources.log]
type = "syslog"
listen = ["tcp://127.0.0.1:0", "udp://127.0.0.1:0"]
channels = ["logs"]
client_ip_header = "client"
linger_seconds = 0.02
"""


def _addresses(server: Millraced) -> dict[str, tuple[str, int]]:
    """The addresses of the source, by transport."""
    give_up = time.monotonic() + WAIT_SECONDS_MAX
    while len(reported := [entry["address"] for entry in server.log if entry["event"] == "listening"]) < 2:
        assert time.monotonic() < give_up
        time.sleep(0.01)
    return {address[:3]: ("127.0.0.1", int(address.rpartition(":")[2])) for address in reported}


def _wait_for_events(server: Millraced, count: int) -> list[Event]:
    give_up = time.monotonic() + WAIT_SECONDS_MAX
    with connect(server.grpc) as client:
        while (
            len(events := [event for batch in client.channel("logs").peek(max_events=count) for event in batch]) < count
        ):
            assert time.monotonic() < give_up, f"{len(events)} of {count}"
            time.sleep(0.02)
    return events


def _take(client: Client) -> list[bytes]:
    """Takes and commits events; returns their bodies."""
    with client.channel("logs").transaction() as txn:
        return [event.body for batch in txn.take(wait_seconds=1.0) for event in batch]


def _send_until_it_waits(sender: socket.socket, content: bytes) -> int:
    """Sends until nothing more is accepted for a while; returns the number of bytes sent."""
    sender.settimeout(1.0)
    sent = 0
    try:
        while sent < len(content):
            sent += sender.send(content[sent : sent + 65_536])
    except TimeoutError:
        return sent
    pytest.fail("all of it was taken")


def test_messages_of_pythons_own_handler_arrive_with_their_severity(start_millraced: StartMillraced) -> None:
    """The handler sends neither host nor time, so its messages are kept whole and marked."""
    server = start_millraced(CONFIG.format(type="memory", capacity=1_000))
    for transport, kind in (("tcp", socket.SOCK_STREAM), ("udp", socket.SOCK_DGRAM)):
        handler = logging.handlers.SysLogHandler(_addresses(server)[transport], socktype=kind)
        handler.append_nul = transport == "udp"
        handler.setFormatter(logging.Formatter("%(message)s" + ("\n" if transport == "tcp" else "")))
        handler.handle(logging.makeLogRecord({"msg": "it broke: \u00e4", "levelname": "ERROR"}))
        handler.close()
    for event in _wait_for_events(server, 2):
        assert event.body == "<11>it broke: \u00e4".encode()
        assert event.headers == {
            "facility": "1",
            "severity": "3",
            "client": "127.0.0.1",
            "syslog_malformed": "it has no time after its priority",
        }


def test_messages_sent_before_a_stop_are_there_after_the_next_start(start_millraced: StartMillraced) -> None:
    """What the daemon has read before it stops is stored, in order, from each connection."""
    server = start_millraced(CONFIG.format(type="file", capacity=100_000))
    count = 20_000
    with socket.create_connection(_addresses(server)["tcp"]) as sender:
        sender.sendall(b"".join(b"<13>1 2026-10-11T22:14:15Z h a - - - %d\n" % number for number in range(count)))
        sender.shutdown(socket.SHUT_WR)
        # The daemon closes the connection once it has read everything.
        assert sender.recv(1) == b""
    assert server.stop() == 0
    again = start_millraced(CONFIG.format(type="file", capacity=100_000), server.data_dir)
    with connect(again.grpc) as client:
        bodies: list[bytes] = []
        while taken := _take(client):
            bodies += taken
    assert bodies == [b"%d" % number for number in range(count)]
    assert [entry for entry in server.log if entry["level"] != "info"] == []


def test_senders_over_tcp_while_the_channel_is_full_wait_and_lose_nothing(start_millraced: StartMillraced) -> None:
    """The daemon buffers little; the senders wait until there is space."""
    server = start_millraced(CONFIG.format(type="memory", capacity=100))
    line = b"<13>1 2026-10-11T22:14:15Z h a - - - %06d " + b"x" * 1_000 + b"\n"
    count = 60_000
    with socket.create_connection(_addresses(server)["tcp"]) as sender:
        sender.settimeout(1.0)
        lines = b"".join(line % number for number in range(count))
        sent = _send_until_it_waits(sender, lines)
        assert sent < 50_000_000
        with connect(server.grpc) as client:
            wait_until(lambda: client.admin.list_components()[0].state is ComponentState.BACKING_OFF)
            received: list[int] = []
            while len(received) < sent // len(line % 0):
                received += [int(body[:6]) for body in _take(client)]
    assert received == list(range(len(received)))
