"""Streaming queries whose driver and servers are killed repeatedly, and the account of their events."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import millrace_client as millrace
from tests.free_ports import free_port
from tests.millraced import Millraced
from tests.spark_cluster import spark_environment
from tests.spark_driver import Flow, Plan
from tests.spark_output import committed_rows, done_batches
from tests.unreliable_network import FaultRates, UnreliableNetwork, unreliable_network

_LOOK_SECONDS = 0.05
_PROGRESS_SECONDS_MAX = 240.0
_NOTICE_SECONDS_MAX = 30.0
_FAILURES_MAX = 3
_EVENTS_MAX = 10_000_000
_FEED_BATCH = 20
_FEED_EVENTS_MAX = 2_000
_FEED_PAUSE_SECONDS = 0.1
_CALM = FaultRates(cut_upwards=0.0, cut_downwards=0.0, delay=0.0)

LINES, ORDERS, COPIES, NOTES = "lines", "orders", "copies", "notes"
"""Channels: one query lands the first in Parquet, another copies the second to the third, a third fills the last."""

_CONFIG_TOML = "[server]\nshutdown_grace_seconds = 0.0\n" + "".join(
    f'[channels.{name}]\ntype = "file"\ncheckpoint_interval_seconds = 0.5\nmin_free_bytes = 0\n'
    for name in (LINES, ORDERS, COPIES, NOTES)
)


class RestartedServer:
    """A server that keeps its address and its data when it is killed and restarted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config = folder / "millrace.toml"
        self._config.write_text(_CONFIG_TOML)
        self.grpc = f"127.0.0.1:{free_port()}"
        self._running = self._start()

    def kill_and_start(self) -> None:
        """Ends the server with SIGKILL, and starts it again."""
        self.kill()
        self._running = self._start()

    def kill(self) -> None:
        """Ends the server with SIGKILL."""
        self._running.kill()

    def _start(self) -> Millraced:
        data_dir = self._folder / "data"
        places = ("--data-dir", str(data_dir), "--listen", self.grpc, "--http-listen", "127.0.0.1:0")
        return Millraced(("--config", str(self._config), *places), data_dir)


@dataclass(frozen=True)
class Account:
    """Compares the events that arrived at one place with those sent."""

    sent_count: int
    missing: Sequence[bytes]
    twice: Sequence[bytes]
    strange: Sequence[bytes]

    @classmethod
    def of(cls, sent: Iterable[bytes], arrived: Iterable[bytes]) -> "Account":
        """The account of these bodies."""
        wanted, counts = set(sent), Counter(arrived)
        return cls(
            len(wanted),
            missing=sorted(wanted - counts.keys()),
            twice=sorted(body for body, count in counts.items() if count > 1),
            strange=sorted(counts.keys() - wanted),
        )


@dataclass
class Scene:
    """Servers behind networks, a feed of events, and a driver that is killed and restarted.

    Attributes:
        sent: The bodies that the feed has sent, by channel.
        kill_counts: The number of kills of each kind.
    """

    folder: Path
    servers: Sequence[RestartedServer]
    networks: Sequence[UnreliableNetwork]
    chance: random.Random
    sent: list[bytes] = field(default_factory=list)
    kill_counts: Counter[str] = field(default_factory=Counter)
    _driver: subprocess.Popen[bytes] | None = None
    _is_fed: threading.Event = field(default_factory=threading.Event)

    # The feed.

    def feed(self) -> None:
        """Sends events to the channels that are read, until `end_feed`."""
        endpoints = [server.grpc for server in self.servers]
        with ExitStack() as open_producers:
            producers = [
                open_producers.enter_context(millrace.Producer(endpoints, channel=name)) for name in (LINES, ORDERS)
            ]
            while not self._is_fed.wait(_FEED_PAUSE_SECONDS):
                start = len(self.sent)
                # The amount that is left in the end must not depend on the speed of the machine.
                if start >= _FEED_EVENTS_MAX * (1 + self.kill_counts.total()):
                    continue
                bodies = [b"event %08d" % number for number in range(start, start + _FEED_BATCH)]
                for producer in producers:
                    producer.send_many(bodies)
                self.sent += bodies

    def end_feed(self) -> None:
        """Ends the feed when everything that it has sent is stored."""
        self._is_fed.set()

    def write_note(self, number: int) -> list[bytes]:
        """Adds a text file of lines to the input of the query that only writes; returns the lines."""
        lines = [b"note %04d %04d" % (number, line) for line in range(_FEED_BATCH)]
        made = self.folder / f"{number}.made"
        made.write_bytes(b"".join(line + b"\n" for line in lines))
        (self.folder / "notes").mkdir(exist_ok=True)
        made.rename(self.folder / "notes" / f"{number}.txt")
        return lines

    # The driver.

    def start_driver(self) -> None:
        """Starts the queries, or continues them."""
        self._forget_driver()
        plan = self.folder / "plan.json"
        Plan(master="local[2,4]", flows=self._flows()).save(plan)
        with (self.folder / "driver.log").open("ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "tests.spark_driver", plan],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=spark_environment(),
                start_new_session=True,
            )

    def kill_driver(self, how: str) -> None:
        """Ends the driver with SIGKILL: `all` of its process group, or only its `jvm`, which the rest then notices."""
        assert self._driver is not None
        self.kill_counts[how] += 1
        # Again where the driver does not end: what was killed first may have been the launcher of the JVM.
        while how == "jvm" and self._driver.poll() is None and (jvms := children_of(self._driver.pid)):
            for pid in jvms:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._driver.wait(_NOTICE_SECONDS_MAX)
        if self._driver.poll() is None:
            os.killpg(self._driver.pid, signal.SIGKILL)
        self._forget_driver()

    def stop_driver(self) -> None:
        """Stops the queries gracefully."""
        assert self._driver is not None
        self._driver.communicate(timeout=_PROGRESS_SECONDS_MAX)
        assert self._driver.returncode == 0, self.driver_log()

    def close(self) -> None:
        """Ends the remaining processes of the driver."""
        if self._driver is not None and self._driver.poll() is None:
            self.kill_driver("all")
        self._forget_driver()

    def _forget_driver(self) -> None:
        """Cleans up after a driver that has ended, or is about to."""
        if self._driver is not None:
            self._driver.wait()
            assert self._driver.stdin is not None
            self._driver.stdin.close()
            self._driver = None

    def done_batches(self) -> int:
        """The number of micro-batches that all queries together have completed."""
        return sum(done_batches(Path(flow.checkpoint or "")) for flow in self._flows())

    def wait_for_batches(self, count: int) -> None:
        """Waits until this many more micro-batches are completed."""
        wanted = self.done_batches() + count
        self.wait_until(lambda: self.done_batches() >= wanted)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Waits for an effect of the driver; restarts it if it has failed, a limited number of times.

        A query fails if a server is killed between its tasks' puts and their commit, and if Spark gives up on its own
        processes because the machine is overloaded.
        """
        give_up = time.monotonic() + _PROGRESS_SECONDS_MAX
        failures_left = _FAILURES_MAX
        while not is_so():
            if self._driver is not None and self._driver.poll() is not None:
                assert failures_left, self.driver_log()
                failures_left -= 1
                self.kill_counts["failed"] += 1
                self.start_driver()
            assert time.monotonic() < give_up, self.driver_log()
            time.sleep(_LOOK_SECONDS)

    def driver_log(self) -> str:
        """The end of the drivers' output."""
        return (self.folder / "driver.log").read_text(errors="replace")[-5_000:]

    # Results.

    def is_drained(self) -> bool:
        """Whether the channels that are read are empty: all of their events are processed and acknowledged."""
        return all(self._queued(server, name) == 0 for server in self.servers for name in (LINES, ORDERS))

    def landed(self) -> list[bytes]:
        """The bodies in Parquet."""
        return list(committed_rows(self.folder / "landed", "body"))

    def stored(self, name: str) -> list[bytes]:
        """The bodies in a channel, on all servers."""
        bodies: list[bytes] = []
        for server in self.servers:
            with millrace.connect(server.grpc) as client:
                for batch in client.channel(name).peek(max_events=_EVENTS_MAX):
                    bodies += batch.bodies()
        return bodies

    def _queued(self, server: RestartedServer, name: str) -> int:
        with millrace.connect(server.grpc) as client:
            return client.admin.get_channel(name).gauges.queued_events

    def _flows(self) -> list[Flow]:
        endpoints = ",".join(network.address for network in self.networks)
        limits = {"maxEventsPerTrigger": "1000", "minPartitions": "2"}
        landing = Flow(
            source="millrace",
            source_options={"endpoints": endpoints, "channels": LINES, "readerId": "landing"} | limits,
            target="parquet",
            target_options={"path": str(self.folder / "landed")},
            checkpoint=str(self.folder / "checkpoint-landing"),
            is_continuous=True,
        )
        copying = replace(
            landing,
            source_options={"endpoints": endpoints, "channels": ORDERS, "readerId": "copying"} | limits,
            columns=("headers", "body"),
            target="millrace",
            target_options={"endpoints": endpoints, "channel": COPIES},
            checkpoint=str(self.folder / "checkpoint-copying"),
        )
        writing = replace(
            copying,
            source="text",
            source_options={"path": str(self.folder / "notes"), "maxFilesPerTrigger": "1"},
            source_schema="value string",
            columns=("cast(value as binary) as body",),
            target_options={"endpoints": endpoints, "channel": NOTES},
            checkpoint=str(self.folder / "checkpoint-writing"),
        )
        return [landing, copying, writing]


@contextmanager
def spark_scene(folder: Path, chance: random.Random, *, server_count: int, is_unreliable: bool) -> Iterator[Scene]:
    """A scene without a driver, whose feed starts at once.

    Args:
        folder: The directory of all files.
        chance: Determines what happens.
        server_count: The number of servers with each channel.
        is_unreliable: Whether Spark's connections are cut and responses lost.
    """
    with ExitStack() as ending:
        servers = []
        for number in range(server_count):
            place = folder / f"server-{number}"
            place.mkdir()
            servers.append(RestartedServer(place))
            ending.callback(servers[-1].kill)
        faults = FaultRates() if is_unreliable else _CALM
        networks = [
            ending.enter_context(unreliable_network(server.grpc, chance.getrandbits(32), faults)) for server in servers
        ]
        scene = Scene(folder, servers, networks, chance)
        feeding = threading.Thread(target=scene.feed, name="feed")
        feeding.start()
        ending.callback(feeding.join)
        ending.callback(scene.end_feed)
        ending.callback(scene.close)
        yield scene


def children_of(pid: int) -> list[int]:
    """The running child processes of a process."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            children.append(int(stat.parent.name))
    return children
