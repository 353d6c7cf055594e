"""Redis streams with redis-py."""

import asyncio
import importlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millrace_client import Event
from tests.bench.measuring import Contender
from tests.bench.peers.peer_server import check_installed, start_peer
from tests.bench.world import World
from tests.free_ports import free_port

SHARE = 0.2
"""The share of the operations: it is slower."""


def redis_contender(world: World, events: Sequence[Event]) -> tuple[Contender, str]:
    """Adds events to a stream in pipelines of 1,000; the server syncs its log before it responds.

    Returns:
        The contender, and a note on its durability.

    Raises:
        MissingPeerError: It is not installed.
    """
    program = check_installed("redis-server", "redis", "redis")
    directory = Path(tempfile.mkdtemp(dir=world.scratch))
    port = free_port()
    options = ("--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", "always", "--save", "")
    command: list[str | Path] = [program, "--port", str(port), "--dir", directory, *options]
    pid = start_peer(world.running, command, port, directory / "log")
    client: Any = importlib.import_module("redis").Redis(port=port)
    # The entries are built before the measurement, so that only redis-py is measured.
    entries = [{"body": event.body, **event.headers} for event in events]

    def add(operations: int) -> None:
        for _ in range(operations):
            pipeline = client.pipeline(transaction=False)
            for entry in entries:
                pipeline.xadd("bench", entry)
            pipeline.execute()

    async def run(operations: int) -> None:
        await asyncio.to_thread(add, operations)

    async def tidy(operations: int) -> None:
        count = client.xlen("bench")
        assert count == operations * len(events), f"{count} entries are stored"
        client.delete("bench")

    contender = Contender(name="redis-py, XADD pipelined", server_pid=pid, share=SHARE, run=run, tidy=tidy)
    return contender, "Redis: appendfsync always, in pipelines of 1,000"
