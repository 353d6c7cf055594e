"""RabbitMQ with pika."""

import asyncio
import importlib
import shutil
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

SHARE = 0.1
"""The share of the operations: it is slower."""

_UNCONFIRMED_MAX = 4_000
_PERSISTENT = 2


def rabbitmq_contender(world: World, events: Sequence[Event]) -> tuple[Contender, str]:
    """Publishes persistent messages to a durable queue, without waiting for each confirm.

    Returns:
        The contender, and a note on its durability.

    Raises:
        MissingPeerError: It is not installed.
    """
    program = check_installed("rabbitmq-server", "pika", "pika")
    directory = Path(tempfile.mkdtemp(dir=world.scratch))
    port, epmd_port = free_port(), free_port()
    environment = {
        "HOME": str(directory),
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(directory / "none"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_RELAXED_COMMAND_CHECK": "1",
    }
    if (epmd := shutil.which("epmd")) is not None:
        # Erlang's port mapper, which the server starts, outlives it.
        stop = [epmd, "-port", str(epmd_port), "-kill"]
        world.running.callback(subprocess.run, stop, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    # Not Debian's wrapper, which changes the user.
    script = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    start_peer(world.running, [script if script.exists() else program], port, directory / "output", environment)
    queue = _Queue(port, events)
    contender = Contender(
        name="pika, confirms",
        server_pid=int((directory / "pid").read_text()),
        share=SHARE,
        prepare=queue.prepare,
        run=queue.run,
        tidy=queue.tidy,
    )
    return contender, f"RabbitMQ: durable queue, persistent messages, {_UNCONFIRMED_MAX:,} not confirmed yet at most"


class _Queue:
    def __init__(self, port: int, events: Sequence[Event]) -> None:
        self._port = port
        self._events = events
        self._pika: Any = importlib.import_module("pika")
        self._channel: Any = None
        self._published = 0
        self._confirmed = 0
        self._progress = asyncio.Event()

    async def prepare(self, _operations: int) -> None:
        if self._channel is not None:
            return
        asynchronous = importlib.import_module("pika.adapters.asyncio_connection")
        parameters = self._pika.ConnectionParameters("127.0.0.1", self._port)
        connection = await _called(lambda on_open: asynchronous.AsyncioConnection(parameters, on_open_callback=on_open))
        self._channel = await _called(lambda on_open: connection.channel(on_open_callback=on_open))
        await _called(lambda done: self._channel.confirm_delivery(self._confirm, callback=done))
        await _called(lambda done: self._channel.queue_declare("bench", durable=True, callback=done))

    def _confirm(self, frame: Any) -> None:
        assert isinstance(frame.method, self._pika.spec.Basic.Ack), "a message was refused"
        # Tags count from 1, and one response may confirm all up to its own.
        self._confirmed = frame.method.delivery_tag if frame.method.multiple else self._confirmed + 1
        self._progress.set()

    async def run(self, operations: int) -> None:
        properties = [
            self._pika.BasicProperties(headers=dict(event.headers), delivery_mode=_PERSISTENT) for event in self._events
        ]
        publish = self._channel.basic_publish
        for _ in range(operations):
            for event, its_properties in zip(self._events, properties, strict=True):
                publish("", "bench", event.body, its_properties)
                self._published += 1
                if self._published - self._confirmed >= _UNCONFIRMED_MAX:
                    await self._wait_until_below(_UNCONFIRMED_MAX // 2)
        await self._wait_until_below(1)

    async def _wait_until_below(self, unconfirmed: int) -> None:
        while self._published - self._confirmed >= unconfirmed:
            self._progress.clear()
            await self._progress.wait()

    async def tidy(self, operations: int) -> None:
        response = await _called(lambda done: self._channel.queue_purge("bench", callback=done))
        count = response.method.message_count
        assert count == operations * len(self._events), f"{count} messages are stored"


async def _called(call: Any) -> Any:
    """The argument that a call of pika's passes to its callback."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    call(done.set_result)
    return await done
