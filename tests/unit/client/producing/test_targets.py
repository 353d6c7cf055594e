import errno
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from millrace_client import Producer, ProducerConfig, Routing, SendFailedError
from millrace_client.producing.servers import Server
from millrace_client.producing.targets import ConnectionOptions, Target, targets_of
from millrace_client.security import Tls
from tests.certificates import Authority
from tests.unit.client.producing.conftest import FakeChannels


async def resolve(host: str, port: int) -> Sequence[str]:
    if host == "nowhere":
        raise OSError("not known")
    return [f"10.0.0.{index}:{port}" for index in (1, 2)]


def refuse(path: Path) -> bytes:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


async def test_targets_of_a_name_are_all_its_addresses() -> None:
    """Each address is a server of its own, with the name for its certificate."""
    assert await targets_of("servers:7070", resolve) == [
        Target(address="10.0.0.1:7070", authority="servers:7070"),
        Target(address="10.0.0.2:7070", authority="servers:7070"),
    ]


@pytest.mark.parametrize("endpoint", ["10.0.0.1:7070", "[::1]:7070", "unix:/run/millrace", "dns:///name:7070", "name"])
async def test_targets_of_what_is_no_name_stay_as_they_are(endpoint: str) -> None:
    """Addresses are not resolved, and gRPC's own schemes are left to gRPC."""
    assert await targets_of(endpoint, resolve) == [Target(address=endpoint, authority="")]


async def test_targets_of_what_cannot_be_a_name_raise() -> None:
    """Python refuses such names by an error of another kind, which would end the look-ups of a producer."""
    for host in ("no..host", "x" * 70):
        with pytest.raises(OSError, match=f"{host} is not the name of a host"):
            await targets_of(f"{host}:7070")


async def test_targets_of_an_unknown_name_raise() -> None:
    """The caller decides what a failed resolution means."""
    with pytest.raises(OSError, match="not known"):
        await targets_of("nowhere:7070", resolve)


def test_send_to_a_name_with_several_addresses_uses_the_one_that_responds(channels: FakeChannels) -> None:
    """A name may resolve to addresses at which no server listens, such as localhost's IPv6 address."""
    port = channels.address.rpartition(":")[2]
    config = ProducerConfig(linger_seconds=0.001, routing=Routing.FAILOVER)
    with Producer(f"localhost:{port}", "orders", config=config) as producer:
        assert producer.send(b"a").result(60).stored


def test_send_follows_a_name_that_moves(channels: FakeChannels, more_channels: Callable[[], FakeChannels]) -> None:
    """New addresses are used once they are known, and old ones are dropped; a failed resolution changes nothing."""
    other = more_channels()
    responses: list[Sequence[str] | OSError] = [[channels.address]]

    async def resolve_now(_host: str, _port: int) -> Sequence[str]:
        response = responses[0]
        if isinstance(response, OSError):
            raise response
        return response

    config = ProducerConfig(linger_seconds=0.001, resolve_seconds=0.02)
    with Producer("servers:7070", "orders", config=config) as producer:
        producer._threaded._settings = replace(producer._threaded._settings, resolve=resolve_now)
        assert producer.send(b"a").result(60).attempts[-1].server == channels.address
        responses[0] = OSError("not known")
        time.sleep(0.1)
        assert producer.send(b"b").result(60).attempts[-1].server == channels.address
        responses[0] = [other.address]
        give_up = time.monotonic() + 60
        while producer.send(b"c").result(60).attempts[-1].server != other.address:
            assert time.monotonic() < give_up
        while [server.server for server in producer.metrics().servers] != [other.address]:
            assert time.monotonic() < give_up
            time.sleep(0.01)


def test_send_to_an_unknown_name_says_so() -> None:
    """The error names what could not be resolved."""
    config = ProducerConfig(linger_seconds=0.001, delivery_timeout_seconds=0.1)
    with Producer("nowhere:7070", "orders", config=config) as producer:
        producer._threaded._settings = replace(producer._threaded._settings, resolve=resolve)
        future = producer.send(b"a")
        with pytest.raises(SendFailedError, match="cannot look up nowhere:7070: not known"):
            future.result(60)


async def test_renew_connection_with_files_that_cannot_be_used_keeps_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is watched further over the former connection, and the files are tried again each time."""
    monkeypatch.setattr("millrace_client.security._CHECK_SECONDS", 0.0)
    ca = tmp_path / "ca.pem"
    ca.write_bytes(Authority().certificate)
    server = Server(
        Target(address="127.0.0.1:1", authority=""),
        ConnectionOptions(tls=Tls(ca=ca), options=()),
        ProducerConfig(),
        lambda: None,
    )
    try:
        former, server.is_down = server.channel, True
        ca.write_bytes(Authority().certificate)
        with monkeypatch.context() as patches:
            patches.setattr(Path, "read_bytes", refuse)
            server.renew_connection()
        assert server.channel is former
        assert not server._health._is_ending
        # Readable again, as after a change of its mode: nothing else tells.
        server.renew_connection()
        assert server.channel is not former
    finally:
        former.close()
        server.close()
