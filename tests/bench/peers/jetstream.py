"""NATS JetStream with nats-py."""

import importlib
import re
import subprocess
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

_SYNCS_EACH_MESSAGE_SINCE = (2, 10)


def jetstream_contender(world: World, events: Sequence[Event]) -> tuple[Contender, str]:
    """Publishes each event to a stream on the disk, without waiting for each response.

    Returns:
        The contender, and a note on its durability.

    Raises:
        MissingPeerError: It is not installed.
    """
    program = check_installed("nats-server", "nats", "nats-py")
    directory = Path(tempfile.mkdtemp(dir=world.scratch))
    shown = subprocess.run([program, "--version"], capture_output=True, check=True, encoding="utf-8").stdout
    version = re.search(r"v?(\d+)\.(\d+)", shown)
    syncs = version is not None and (int(version[1]), int(version[2])) >= _SYNCS_EACH_MESSAGE_SINCE
    port = free_port()
    config = directory / "nats.conf"
    sync_line = "sync_interval: always" if syncs else ""
    config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{directory}/data"\n{sync_line} }}\n')
    pid = start_peer(world.running, [program, "-c", config], port, directory / "log")
    remark = f"JetStream: {shown.strip()}, " + (
        "which syncs each message" if syncs else "which cannot sync each message: it responds before anything is synced"
    )
    stream = _Stream(port, events)
    contender = Contender(
        name="nats-py, JetStream publish",
        server_pid=pid,
        share=SHARE,
        prepare=stream.prepare,
        run=stream.run,
        tidy=stream.tidy,
    )
    return contender, remark


class _Stream:
    def __init__(self, port: int, events: Sequence[Event]) -> None:
        self._port = port
        self._events = events
        self._jetstream: Any = None

    async def prepare(self, _operations: int) -> None:
        if self._jetstream is not None:
            return
        nats = importlib.import_module("nats")
        self._jetstream = (await nats.connect(f"nats://127.0.0.1:{self._port}")).jetstream()
        await self._jetstream.add_stream(name="bench", subjects=["bench"], storage="file")

    async def run(self, operations: int) -> None:
        publish = self._jetstream.publish_async
        for _ in range(operations):
            for event in self._events:
                # The library modifies the headers passed to it.
                await publish("bench", event.body, wait_stall=60.0, headers=dict(event.headers))
        await self._jetstream.publish_async_completed()

    async def tidy(self, operations: int) -> None:
        count = (await self._jetstream.stream_info("bench")).state.messages
        assert count == operations * len(self._events), f"{count} messages are stored"
        await self._jetstream.purge_stream("bench")
