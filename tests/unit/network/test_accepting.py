import asyncio
import resource
import socket
import ssl
from pathlib import Path

import pytest

from millrace_server.network import accepting
from millrace_server.network.accepting import Acceptor, ConnectionLimits, ConnectionSlot, ConnectionSlots
from tests.certificates import Authority

WAIT_SECONDS_MAX = 60.0


def take(slots: ConnectionSlots, address: str, ended: list[ConnectionSlot]) -> ConnectionSlot:
    slot = slots.acquire(address)
    assert slot is not None
    slot.abort = lambda: ended.append(slot)
    return slot


def test_take_above_the_limit_of_an_address_ends_its_own_longest_wait() -> None:
    """Connections of other addresses keep their slots."""
    slots, ended = ConnectionSlots(10, 2), list[ConnectionSlot]()
    stranger = take(slots, "elsewhere", ended)
    first, second, _third = (take(slots, "here", ended) for _ in range(3))
    assert ended == [first]
    second.mark_busy()
    take(slots, "here", ended).mark_busy()
    assert len(ended) == 2
    assert slots.acquire("here") is None
    second.release()
    second.release()
    assert slots.acquire("here") is not None
    assert stranger not in ended


def test_take_above_the_limit_of_all_ends_the_longest_wait() -> None:
    """If no connection waits, only the spare slots are left."""
    slots, ended = ConnectionSlots(2, spare_count=1), list[ConnectionSlot]()
    first, second, third = (take(slots, str(number), ended) for number in range(3))
    assert ended == [first]
    second.mark_busy()
    third.mark_busy()
    fourth = take(slots, "4", ended)
    fourth.mark_busy()
    assert slots.acquire("5") is None
    fourth.mark_idle()
    take(slots, "5", ended)
    assert ended == [first, fourth]


@pytest.mark.parametrize(
    ("files", "address_max", "grpc", "http"),
    [
        (100_000, None, (10_000, 5_000), (10_000, 5_000)),
        (100_000, 7, (10_000, 7), (10_000, 7)),
        (1_024, None, (720, 360), (240, 120)),
        (1_024, 10_000, (720, 720), (240, 240)),
        (resource.RLIM_INFINITY, None, (10_000, 5_000), (10_000, 5_000)),
    ],
)
def test_limits_leave_files_for_others(
    monkeypatch: pytest.MonkeyPatch,
    files: int,
    address_max: int | None,
    grpc: tuple[int, int],
    http: tuple[int, int],
) -> None:
    """However many connections gRPC has, there are files for probes over HTTP."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert ConnectionLimits.of_grpc(10_000, address_max) == grpc
    assert ConnectionLimits.of_http(10_000, address_max) == http


class Serving(asyncio.Protocol):
    """Reads, and says when its connection begins and ends."""

    def __init__(self, slot: ConnectionSlot) -> None:
        self._slot = slot
        self.data = asyncio.Event()
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # TCP's is bidirectional
        self._slot.abort = transport.abort

    def data_received(self, data: bytes) -> None:
        self.data.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._slot.release()
        self.ended.set()


async def test_connections_in_their_handshake_have_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handshake that does not go on gives way to a new connection, ends after a time, and gives its slot back."""
    monkeypatch.setattr(accepting, "HANDSHAKE_SECONDS", WAIT_SECONDS_MAX)
    authority = Authority()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue(tmp_path, "server"))
    trusting = ssl.create_default_context(cadata=authority.certificate.decode())
    made: list[Serving] = []

    def make(slot: ConnectionSlot) -> Serving:
        made.append(Serving(slot))
        return made[-1]

    bound = socket.create_server(("127.0.0.1", 0))
    slots = ConnectionSlots(2)
    acceptor = Acceptor(bound, slots, make, context)
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        silent = [await asyncio.open_connection(*bound.getsockname()) for _ in range(3)]
        assert await silent[0][0].read() == b""
        _, writer = await asyncio.open_connection(*bound.getsockname(), ssl=trusting, server_hostname="localhost")
        writer.write(b"x")
        serving = made[-1]
        await serving.data.wait()
        assert await silent[1][0].read() == b""
        monkeypatch.setattr(accepting, "HANDSHAKE_SECONDS", 0.05)
        silent.append(await asyncio.open_connection(*bound.getsockname()))
        for reader, _ in silent[2:]:
            assert await reader.read() == b""
        writer.close()
        await serving.ended.wait()
        assert all(slots.acquire("anybody") for _ in range(2))
        acceptor.close()
        await acceptor.wait_closed()
    for _, each in silent:
        each.close()
