"""Certificates, authorities and tokens that are replaced while calls are made."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import millrace_client as millrace
import millrace_client.aio
from millrace_client import Tls, security
from millrace_server.access.tokens import make_token
from millrace_server.files import write_atomically
from tests.certificates import Authority, RotatingSite
from tests.conftest import StartMillraced
from tests.millraced import Millraced

WAIT_SECONDS_MAX = 60.0
TLS_REREAD = "TLS files reloaded"
TOKENS_REREAD = "tokens reloaded"


def rotate_once(site: RotatingSite, number: int, server: Millraced) -> None:
    """Replaces everything: first both are trusted, then the new ones are used, then they alone are trusted."""
    authority, former_tokens = Authority(f"Authority {number}"), site.tokens_file.read_bytes()
    with read_again(server, TLS_REREAD, TOKENS_REREAD):
        site.trust(site.authority, authority)
        token = make_token(site.tokens_file, "caller")
    site.authority = authority
    with read_again(server, TLS_REREAD):
        write_atomically(site.token_file, token.encode())
        site.issue()
    with read_again(server, TLS_REREAD, TOKENS_REREAD):
        site.trust(authority)
        write_atomically(site.tokens_file, site.tokens_file.read_bytes().removeprefix(former_tokens))


@contextmanager
def read_again(server: Millraced, *events: str) -> Iterator[None]:
    """Waits after the block until the server has read changed files."""
    before = {event: sum(entry["event"] == event for entry in server.log) for event in events}
    yield
    for event, count in before.items():
        server.wait_for(event, count=count + 1)


class Load(NamedTuple):
    """Calls at a steady rate, whatever the responses do, through rotations that are spread evenly over them."""

    rate: int
    calls: int
    rotations: int


class Caller:
    """Appends events; remembers what is stored at which sequence."""

    def __init__(self, client: millrace_client.aio.Client, producer: millrace.Producer) -> None:
        self._channel = client.channel("orders")
        self._producer = producer
        self.sent: dict[bytes, millrace.SendFuture] = {}
        self.stored: dict[int, bytes] = {}

    async def run(self, load: Load, site: RotatingSite, server: Millraced) -> None:
        turns = asyncio.Semaphore(0)
        clock = asyncio.get_running_loop().time
        start, number = clock(), 0
        async with asyncio.TaskGroup() as tasks:
            rotating = tasks.create_task(rotate(site, server, turns, load.rotations))
            while number < load.calls or not rotating.done():
                if number % (load.calls // load.rotations) == 0:
                    turns.release()
                    self.sent[b"sent %d" % number] = self._producer.send(b"sent %d" % number)
                tasks.create_task(self._append(b"%d" % number))
                number += 1
                await asyncio.sleep(start + number / load.rate - clock())
        for pending in self.sent.values():
            pending.result(WAIT_SECONDS_MAX)

    async def _append(self, body: bytes) -> None:
        sequence = (await self._channel.append([body])).last_sequence
        assert sequence not in self.stored
        self.stored[sequence] = body


async def rotate(site: RotatingSite, server: Millraced, turns: asyncio.Semaphore, rotations: int) -> None:
    for number in range(rotations):
        await turns.acquire()
        await asyncio.to_thread(rotate_once, site, number + 1, server)


@pytest.mark.parametrize(
    "load",
    [Load(200, 600, 2), pytest.param(Load(1_000, 60_000, 10), marks=[pytest.mark.torture, pytest.mark.timeout(900)])],
)
async def test_rotation_of_everything_fails_no_call(
    start_millraced: StartMillraced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Load
) -> None:
    """Calls and a producer go on; each event is stored once; what was replaced opens nothing any more."""
    # The clients use what is there, at each moment of a rotation.
    monkeypatch.setattr(security, "_CHECK_SECONDS", 0.0)
    site = RotatingSite(tmp_path / "site")
    server = start_millraced(site.toml())
    async with millrace_client.aio.connect(server.grpc, tls=site.client, token_file=site.token_file) as client:
        with millrace.Producer(server.grpc, channel="orders", tls=site.client, token_file=site.token_file) as producer:
            caller = Caller(client, producer)
            await caller.run(load, site, server)
        peek = client.channel("orders").peek(max_events=len(caller.stored) + len(caller.sent) + 1)
        events = {event.sequence or 0: event.body async for batch in peek for event in batch}
    # The producer repeats what it had no response to; then the server says only that the event is there.
    sent = [sequence for sequence, body in events.items() if caller.stored.get(sequence) != body]
    assert sorted(events[sequence] for sequence in sent) == sorted(caller.sent)
    assert len(events) == len(caller.stored) + len(sent)
    former = Tls(ca=site.ca, certificate=site.first / "client.pem", private_key=site.first / "client.key")
    with millrace.connect(server.grpc, tls=former) as gone, pytest.raises(millrace.UnavailableError):
        gone.admin.list_channels()
    with (
        millrace.connect(server.grpc, tls=site.client, token_file=site.first / "token") as gone,
        pytest.raises(millrace.UnauthenticatedError),
    ):
        gone.admin.list_channels()
