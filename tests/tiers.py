"""Servers that forward to each other, each at a fixed address, so that it can be killed and restarted there."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import millrace_client as millrace
from millrace_client import ComponentInfo, ComponentKind, Producer, ProducerConfig
from tests.fork_server import ForkedProgram
from tests.free_ports import free_port
from tests.millraced import Millraced

CHANNEL_TOML = """
[server]
shutdown_grace_seconds = 5.0
[channels.orders]
type = "file"
"""
"""A server with the file channel `orders`."""


def sink_toml(name: str, *endpoints: str, **settings: object) -> str:
    """A sink that forwards the channel `orders` to the channel of that name on other servers."""
    named = {
        "type": "millrace",
        "channel": "orders",
        "endpoints": list(endpoints),
        "target_channel": "orders",
        "timeout_seconds": 5.0,
        **settings,
    }
    lines = (f"{key} = {json.dumps(value)}" for key, value in named.items())
    return "\n".join((f"[sinks.{name}]", *lines, ""))


def stored_bodies(address: str, channel: str) -> list[bytes]:
    """The bodies of all events in a server's channel, in their order."""
    with millrace.connect(address, timeout_seconds=60) as client:
        held = client.channel(channel)
        with held.claim("checker") as claim:
            batches = list(held.read("checker", epoch=claim.epoch))
    return [body for batch in batches for body in batch.bodies()]


def event_count(address: str, channel: str) -> int:
    """The number of events in a server's channel, including those that a sink has taken."""
    with millrace.connect(address, timeout_seconds=60) as client:
        gauges = client.admin.get_channel(channel).gauges
    return gauges.queued_events + gauges.taken_events


class Tier:
    """One server.

    Attributes:
        address: The address of gRPC, which stays the same.
        data_dir: Its data directory.
        start_count: The number of its starts.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._config = folder / f"{name}.toml"
        self.data_dir = folder / name
        self.address = f"127.0.0.1:{free_port()}"
        self._server: Millraced | None = None
        self.start_count = 0

    @property
    def server(self) -> Millraced:
        """The running process."""
        assert self._server is not None, "it was started"
        return self._server

    def start(self, config_toml: str | None = None) -> None:
        """Starts the server, optionally with another configuration."""
        if config_toml is not None:
            self._config.write_text(config_toml)
        self._server = Millraced(self._arguments(), self.data_dir)
        self.start_count += 1

    def start_in_vain(self, seconds: float) -> None:
        """Starts the server, and ends it with SIGKILL after a while, perhaps before it serves."""
        process = ForkedProgram("millraced", ("serve", *self._arguments()))
        time.sleep(seconds)
        process.kill()
        process.wait()

    def _arguments(self) -> Sequence[str]:
        listen = ("--listen", self.address, "--http-listen", "127.0.0.1:0")
        return ("--config", str(self._config), "--data-dir", str(self.data_dir), *listen)

    def kill(self) -> None:
        """Ends the server with SIGKILL if it runs."""
        if self._server is not None:
            self._server.kill()

    def restart(self) -> None:
        """Ends the server with SIGKILL, and starts it again."""
        self.kill()
        self.start()

    def bodies(self) -> list[bytes]:
        """The bodies of all events in its channel, in their order."""
        return stored_bodies(self.address, "orders")

    def event_count(self) -> int:
        """The number of events in its channel, including those that a sink has taken."""
        return event_count(self.address, "orders")

    def component(self, kind: ComponentKind, name: str) -> ComponentInfo:
        """The state of a component."""
        with millrace.connect(self.address, timeout_seconds=60) as client:
            [found] = [one for one in client.admin.list_components() if (one.kind, one.name) == (kind, name)]
        return found


@contextmanager
def tiers(folder: Path, *names: str) -> Iterator[list[Tier]]:
    """Servers that are not started yet; all are killed at the end."""
    with ExitStack() as running:
        made = [Tier(folder, name) for name in names]
        for tier in made:
            running.callback(tier.kill)
        yield made


class Load:
    """Sends numbered events to a server from a thread, in order and each once, across restarts of the server.

    Args:
        address: The server's address.
        prefix: The beginning of each body.
        count_max: The number of events after which it ends.
    """

    def __init__(self, address: str, prefix: str = "", count_max: int = 10_000) -> None:
        config = ProducerConfig(
            batch_events_max=50,
            linger_seconds=0.005,
            backoff_seconds=0.02,
            backoff_seconds_max=0.2,
            delivery_timeout_seconds=600.0,
        )
        self._producer = Producer(address, "orders", config=config)
        self._prefix = prefix
        self._count_max = count_max
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self.count = 0

    @property
    def sent(self) -> list[bytes]:
        """The bodies of all events so far."""
        return [self._body(number) for number in range(self.count)]

    def _body(self, number: int) -> bytes:
        return f"{self._prefix}{number}".encode()

    def start(self) -> None:
        """Starts to send."""
        self._thread.start()

    def _send(self) -> None:
        # At 2,000 a second, on an otherwise idle machine.
        while self.count < self._count_max and not self._is_ending.wait(0.005):
            for _ in range(10):
                self._producer.send(self._body(self.count), key="all in one order")
                self.count += 1

    def finish(self) -> None:
        """Stops sending, and waits until everything is stored."""
        self._is_ending.set()
        self._thread.join()
        assert self._producer.close(60.0).is_complete
