"""Replicated channels of real servers, whose owners are killed, stand still, stop and start again."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

import millrace_client as millrace
from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import channel_service_pb2_grpc
from tests.conftest import StartMillraced
from tests.integration.replicated_servers import SHORT_LEASE_SECONDS, WAIT_SECONDS, ReplicatedServers
from tests.waiting import wait_until

_LONG_LEASE_SECONDS = 60.0
"""A test that ends before it has not waited for the end of a lease."""


class _Appender:
    """Appends numbers, one after the other, and notes what was acknowledged."""

    def __init__(self, client: millrace.Client, channel: str) -> None:
        self.acknowledged: dict[int, int] = {}
        self.longest_seconds = 0.0
        self._channel = client.channel(channel)
        self._is_ending = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        try:
            while not self._is_ending:
                began_at = time.monotonic()
                receipt = self._channel.append([b"%d" % number])
                self.longest_seconds = max(self.longest_seconds, time.monotonic() - began_at)
                self.acknowledged[number] = receipt.first_sequence
                number += 1
        except BaseException as error:  # noqa: BLE001 - told by `end`
            self._error = error

    def wait_for(self, more: int) -> None:
        """Waits until so many more were acknowledged."""
        enough = len(self.acknowledged) + more
        wait_until(lambda: len(self.acknowledged) >= enough or self._error is not None)

    def end(self) -> None:
        """Stops it; no call may have failed."""
        self._is_ending = True
        self._thread.join()
        assert self._error is None, self._error


@contextmanager
def _appending(client: millrace.Client, channel: str) -> Iterator[_Appender]:
    appender = _Appender(client, channel)
    try:
        yield appender
    finally:
        appender.end()


def _taken(client: millrace.Client, channel: str) -> list[int]:
    """Takes all events."""
    found: list[int] = []
    with client.channel(channel).transaction() as txn:
        while batches := txn.take(wait_seconds=0.0):
            found += [int(event.body) for batch in batches for event in batch]
    return found


def _check(appender: _Appender, found: list[int]) -> None:
    """All that was acknowledged is there, once and in order."""
    assert found == sorted(appender.acknowledged)
    assert found == list(range(len(found)))
    # One whose response was lost is a repeat for the next owner, which has no sequence.
    assert all(sequence in {number + 1, 0} for number, sequence in appender.acknowledged.items())


def test_kill_of_the_owner_loses_nothing_and_no_call(start_millraced: StartMillraced, nats_url: str) -> None:
    """The other server takes over when the lease has expired, with its sequences and stamps."""
    servers = ReplicatedServers(start_millraced, nats_url, 2, SHORT_LEASE_SECONDS)
    owner, [other] = servers.roles()
    with millrace.connect(other.grpc, timeout_seconds=WAIT_SECONDS) as client:
        with _appending(client, servers.channel) as appender:
            appender.wait_for(50)
            owner.kill()
            appender.wait_for(50)
        assert other.wait_for("channel taken over")["channel"] == servers.channel
        _check(appender, _taken(client, servers.channel))


def test_owner_that_stood_still_serves_nothing_afterwards(start_millraced: StartMillraced, nats_url: str) -> None:
    """A take that arrived meanwhile is refused, also by the first look after the standstill."""
    servers = ReplicatedServers(start_millraced, nats_url, 2, SHORT_LEASE_SECONDS)
    owner, [other] = servers.roles()
    with millrace.connect(other.grpc, timeout_seconds=WAIT_SECONDS) as client:
        client.channel(servers.channel).append([b"0", b"1"])
    with (
        millrace.connect(other.grpc, timeout_seconds=WAIT_SECONDS) as client,
        grpc.insecure_channel(owner.grpc) as connection,
    ):
        calls = channel_service_pb2_grpc.ChannelServiceStub(connection)
        calls.BeginTxn(pb.BeginTxnRequest(channel=servers.channel, txn_id="t"))
        owner.send(signal.SIGSTOP)
        try:
            taking = calls.Take.future(pb.TakeRequest(txn_id="t", channel=servers.channel), timeout=WAIT_SECONDS)
            servers.running = {other.grpc: other}
            servers.owner()
            assert _taken(client, servers.channel) == [0, 1]
        finally:
            owner.send(signal.SIGCONT)
        with pytest.raises(grpc.RpcError, match="owned by"):
            taking.result()
        with millrace.connect(owner.grpc, timeout_seconds=WAIT_SECONDS) as former:
            assert former.channel(servers.channel).append([b"2"]).first_sequence == 3
            wait_until(lambda: former.admin.list_channels()[0].owner == other.grpc)


def test_stop_of_the_owner_hands_over_at_once(start_millraced: StartMillraced, nats_url: str) -> None:
    """Callers notice nothing but a delay, which is no lease long."""
    servers = ReplicatedServers(start_millraced, nats_url, 2, _LONG_LEASE_SECONDS)
    owner, [other] = servers.roles()
    with millrace.connect(owner.grpc, timeout_seconds=WAIT_SECONDS) as client:
        with _appending(client, servers.channel) as appender:
            appender.wait_for(50)
            assert owner.stop() == 0
            appender.wait_for(50)
        assert appender.longest_seconds < _LONG_LEASE_SECONDS / 4
        taken_over = other.wait_for("channel taken over")
        # It replays hardly anything: a checkpoint was written.
        assert taken_over["replayed_records"] <= 2
        _check(appender, _taken(client, servers.channel))
    assert owner.faults == []


def test_rolling_restart_of_three_servers_fails_no_call(start_millraced: StartMillraced, nats_url: str) -> None:
    """Each is stopped and started again while clients of two of them append."""
    servers = ReplicatedServers(start_millraced, nats_url, 3, _LONG_LEASE_SECONDS)
    [first, second, _] = servers.running
    with (
        millrace.connect(first, timeout_seconds=WAIT_SECONDS) as one,
        millrace.connect(second, timeout_seconds=WAIT_SECONDS) as other,
    ):
        with _appending(one, servers.channel) as appender:
            for address in list(servers.running):
                appender.wait_for(20)
                assert servers.running[address].stop() == 0
                servers.start(address)
            appender.wait_for(20)
        assert appender.longest_seconds < _LONG_LEASE_SECONDS / 4
        _check(appender, _taken(other, servers.channel))
