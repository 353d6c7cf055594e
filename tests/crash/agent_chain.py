"""Chains of real daemons under random kills, stops and network cuts, reproducible by seed.

    edge a: taildir -> file channel -> millrace sink ----.
                                                          relay b: file channel -> millrace sink -- collector c
    edge d: taildir -> file channel -> millrace sink ----'

Edge d may send to the collector as well. Between the daemons there are unreliable networks.
"""

import json
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import millrace_client as millrace
from tests.crash.line_account import LineAccount
from tests.crash.log_writer import LogWriter
from tests.tiers import Tier, sink_toml, tiers
from tests.unreliable_network import FaultRates, UnreliableNetwork, unreliable_network
from tests.waiting import wait_until

EDGES = ("a", "d")
RELAY = "b"
COLLECTOR = "c"

_CHANNEL_TOML = """
[server]
shutdown_grace_seconds = 5.0
[channels.orders]
type = "file"
capacity = {capacity}
segment_bytes_max = 262144
checkpoint_interval_seconds = 0.2
min_free_bytes = 0
"""
_SOURCE_TOML = """
[sources.tail]
type = "taildir"
paths = ["{folder}/*.log"]
channels = ["orders"]
batch_events_max = 200
"""
_CAPACITY = 3_000
"""Small, so that backpressure of a blocked flow reaches the files."""

_COLLECTED_MAX = 20_000_000
_CUTS_OFTEN = FaultRates(cut_upwards=0.05, cut_downwards=0.1)
_DOWN_SECONDS_MAX = 0.7
_START_SECONDS_MAX = 0.5
_PAUSE_SECONDS_MAX = 0.8
_SETTLE_SECONDS_MAX = 120.0
_DELETE_PROBABILITY = 0.5
_KEPT_FILES = 2


class Fault(NamedTuple):
    """A fault of one daemon or one network.

    A daemon is killed; killed, and again while it starts; or paused for a while. All connections of a network are cut;
    or it cuts and delays at random for a while.
    """

    kind: str
    victim: str
    seconds: float


Faults = Sequence[Fault]
"""Faults that happen at the same time."""


def random_faults(chance: random.Random, count: int, stop_seconds_max: float) -> list[Faults]:
    """The planned faults of a chain."""
    return [_random_faults_at_once(chance, stop_seconds_max) for _ in range(count)]


def _random_faults_at_once(chance: random.Random, stop_seconds_max: float) -> Faults:
    daemons = [*EDGES, RELAY, COLLECTOR]
    networks = [f"behind {name}" for name in (*EDGES, RELAY)]
    victims = chance.sample([*daemons, *daemons, *networks], chance.choice([1, 1, 2, 3]))
    faults = []
    for victim in dict.fromkeys(victims):
        kinds = ["kill", "kill", "kill twice", "stop", "stop"] if victim in daemons else ["cut", "tear"]
        kind = chance.choice(kinds)
        seconds_max = {"kill twice": _START_SECONDS_MAX, "stop": stop_seconds_max}.get(kind, _DOWN_SECONDS_MAX)
        faults.append(Fault(kind, victim, chance.uniform(0, seconds_max)))
    return faults


class AgentChain:
    """The daemons, the networks between them, and the writers at the edges; created by `agent_chain`.

    Attributes:
        daemons: The daemons, by name.
        networks: The networks, by name.
        writers: The writers, by the name of the edge that reads them.
        counts: The number of faults of each kind, and of files that were deleted.
    """

    def __init__(
        self, daemons: Mapping[str, Tier], networks: Mapping[str, UnreliableNetwork], writers: Mapping[str, LogWriter]
    ) -> None:
        self.daemons = daemons
        self.networks = networks
        self.writers = writers
        self.counts: dict[str, int] = {}
        self._kinds: dict[str, Callable[[str, float], None]] = {
            "kill": self._kill,
            "kill twice": self._kill_twice,
            "stop": self._stop,
            "cut": self._cut,
            "tear": self._tear,
        }

    @property
    def line_counts(self) -> dict[str, int]:
        """The number of lines written, by log."""
        return {name: log.line_count for writer in self.writers.values() for name, log in writer.logs.items()}

    def begin(self) -> None:
        """Starts the writers once the edges watch for files.

        In files that exist before its first run, a source cannot recognize copies of others.
        """
        for edge, writer in self.writers.items():
            wait_until(self._positions_of(edge).exists)
            writer.start()

    def cause(self, plan: Sequence[Faults], chance: random.Random) -> None:
        """Causes the planned faults, with short pauses; the daemons run when this returns."""
        with ThreadPoolExecutor() as pool:
            for faults in plan:
                time.sleep(chance.uniform(0, _PAUSE_SECONDS_MAX))
                if chance.random() < _DELETE_PROBABILITY:
                    self._delete_old_files()
                for fault in faults:
                    self.counts[fault.kind] = self.counts.get(fault.kind, 0) + 1
                for _ in pool.map(lambda fault: self._kinds[fault.kind](*fault[1:]), faults):
                    pass

    def settle(self) -> None:
        """Stops writing, and waits until all lines have arrived at the end of the chain."""
        for writer in self.writers.values():
            writer.finish()
        give_up = time.monotonic() + _SETTLE_SECONDS_MAX
        while left := self._left():
            assert time.monotonic() < give_up, f"there is still {left}"
            time.sleep(0.1)

    def _left(self) -> Sequence[str]:
        """The lines that have not arrived at the end of the chain."""
        for edge, writer in self.writers.items():
            if unread := self._unread(edge, writer.folder):
                return unread
        return [name for name in (*EDGES, RELAY) if self.daemons[name].event_count()]

    def _unread(self, edge: str, folder: Path) -> Sequence[str]:
        """The files that an edge has not read to their end. A copy counts as its original.

        Positions of empty files are not saved; one with such an inode belongs to a deleted file.
        """
        positions = {each["inode"]: each["position"] for each in self._positions(edge)}
        statuses = {str(path): path.stat() for path in sorted(folder.iterdir())}
        return [
            path
            for path, status in statuses.items()
            if status.st_size and positions.get(status.st_ino, 0) != status.st_size
        ]

    def _delete_old_files(self) -> None:
        """Deletes completely stored rotated files except each log's newest; new files reuse their inodes."""
        for edge, writer in self.writers.items():
            stored = {(each["place"], each["inode"], each["position"]) for each in self._positions(edge)}
            with writer.lock:
                for path in [path for log in writer.logs.values() for path in log.old_files()[_KEPT_FILES:]]:
                    status = path.stat()
                    if (str(path), status.st_ino, status.st_size) in stored:
                        path.unlink()
                        self.counts["delete"] = self.counts.get("delete", 0) + 1

    def _positions(self, edge: str) -> list[dict[str, Any]]:
        """The file positions that an edge has saved."""
        saved: list[dict[str, Any]] = json.loads(self._positions_of(edge).read_bytes())["files"]
        return saved

    def _positions_of(self, edge: str) -> Path:
        return self.daemons[edge].data_dir / "sources" / "tail" / "positions.json"

    def account(self) -> LineAccount:
        """The events in the collector's channel, without taking them."""
        with millrace.connect(self.daemons[COLLECTOR].address, timeout_seconds=120) as client:
            channel = client.channel("orders")
            with channel.claim("checker", 600.0) as claim:
                batches = channel.read("checker", epoch=claim.epoch)
                return LineAccount.of((body for batch in batches for body in batch.bodies()), self.line_counts)

    def stop(self) -> None:
        """Stops all daemons gracefully, in the direction of the data."""
        for name in (*EDGES, RELAY, COLLECTOR):
            assert self.daemons[name].server.stop() == 0
            self._check_log(name)

    def _check_log(self, name: str) -> None:
        server = self.daemons[name].server
        troubles = [*server.other_output, *server.faults]
        assert not troubles, f"{name} says {troubles}"

    def _kill(self, name: str, down_seconds: float) -> None:
        self.daemons[name].kill()
        self._check_log(name)
        time.sleep(down_seconds)
        self.daemons[name].start()

    def _kill_twice(self, name: str, running_seconds: float) -> None:
        self._kill(name, 0.0)
        self.daemons[name].kill()
        self.daemons[name].start_in_vain(running_seconds)
        self.daemons[name].start()

    def _stop(self, name: str, seconds: float) -> None:
        self.daemons[name].server.send(signal.SIGSTOP)
        time.sleep(seconds)
        self.daemons[name].server.send(signal.SIGCONT)

    def _cut(self, name: str, _seconds: float) -> None:
        self.networks[name].cut_all()

    def _tear(self, name: str, seconds: float) -> None:
        self.networks[name].is_calm = False
        time.sleep(seconds)
        self.networks[name].is_calm = True


@contextmanager
def agent_chain(folder: Path, seed: int, fan_in: str) -> Iterator[AgentChain]:
    """Runs a chain for the duration of the block; nothing is written until its writers are started.

    Args:
        folder: The directory of all its files.
        seed: Determines how the logs are written and the networks are disturbed.
        fan_in: The daemon to which edge d sends: RELAY or COLLECTOR.
    """
    chance = random.Random(seed)
    names = (*EDGES, RELAY, COLLECTOR)
    targets = {"a": RELAY, "d": fan_in, RELAY: COLLECTOR}
    with ExitStack() as stack:
        daemons = dict(zip(names, stack.enter_context(tiers(folder, *names)), strict=True))
        networks = {}
        for name, target in targets.items():
            network = unreliable_network(daemons[target].address, chance.getrandbits(32), _CUTS_OFTEN)
            networks[name] = stack.enter_context(network)
            networks[name].is_calm = True
        writers = {}
        for edge in EDGES:
            logs = [f"{edge}-server-{letter}" for letter in "xyz"]
            writer = LogWriter(folder / f"logs of {edge}", logs, chance.getrandbits(32))
            writers[edge] = stack.enter_context(writer)
        with ThreadPoolExecutor() as pool:
            for _ in pool.map(lambda name: daemons[name].start(_toml_of(name, writers, networks)), names):
                pass
        yield AgentChain(daemons, {f"behind {name}": network for name, network in networks.items()}, writers)


def _toml_of(name: str, writers: Mapping[str, LogWriter], networks: Mapping[str, UnreliableNetwork]) -> str:
    toml = _CHANNEL_TOML.format(capacity=_COLLECTED_MAX if name == COLLECTOR else _CAPACITY)
    if name in writers:
        toml += _SOURCE_TOML.format(folder=writers[name].folder)
    if name in networks:
        toml += sink_toml("forward", networks[name].address, batch_events_max=100)
    return toml
