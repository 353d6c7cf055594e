"""Scenarios of many servers: what they are given, what befalls them, and what is seen of them."""

import random
from dataclasses import dataclass
from functools import partial

from millrace_client.producer import ProducerConfig
from tests.simulation.cluster import Account, Producer, Server
from tests.simulation.costs import Costs
from tests.simulation.resources import Clock, Process, Resource

_SAMPLE_SECONDS = 0.5
_TROUBLE_SECOND = 5.0
_CLOSED_LOOP_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Servers on machines of their own, with one core and one disk each, and open-loop load."""

    servers: int
    producers: int = 10_000
    seconds: float
    batches_per_second: float
    """Created by all producers together."""
    hot_share: float = 0.0
    """The share of the producers that send to the first server beside its own, all with one hot key."""
    restart_every_seconds: float | None = None
    """The servers restart one after the other, from 5 seconds on."""
    lost_servers: int = 0
    """Machines that are lost after 5 seconds."""
    lost_seconds: float = 20.0
    """How long until they are back with their disks."""
    seed: int = 0


@dataclass(frozen=True)
class Sample:
    """What is seen at one time."""

    second: float
    acknowledged: int
    """Batches since the last sample."""
    unsettled: int
    """Batches that wait at producers."""
    queued: int
    """Batches in the channels."""


@dataclass(frozen=True)
class Outcome:
    account: Account
    samples: list[Sample]
    stored: int
    queued: int
    consumed: int
    unsettled: int


def simulate(scenario: Scenario, costs: Costs) -> Outcome:
    """Runs a scenario; the same seed has the same outcome."""
    clock, account, draw = Clock(), Account(), random.Random(scenario.seed)
    servers = [
        Server(clock, costs, account, cores=Resource(clock), disk=Resource(clock)) for _ in range(scenario.servers)
    ]
    producers = []
    interval = scenario.producers / scenario.batches_per_second
    for number in range(scenario.producers):
        is_hot = number < scenario.hot_share * scenario.producers
        producer = Producer(clock, costs, account, servers[0 if is_hot else number % len(servers)], draw)
        producer.create_every(interval, draw.uniform(0, interval))
        producers.append(producer)
    _trouble(scenario, costs, clock, servers)
    samples: list[Sample] = []
    seen = 0
    for tick in range(1, round(scenario.seconds / _SAMPLE_SECONDS) + 1):
        clock.run(tick * _SAMPLE_SECONDS)
        unsettled, queued = sum(one.unsettled for one in producers), sum(one.queued for one in servers)
        samples.append(Sample(clock.now, account.acknowledged - seen, unsettled, queued))
        seen = account.acknowledged
    return Outcome(
        account,
        samples,
        stored=len(account.copies),
        queued=sum(server.queued for server in servers),
        consumed=sum(server.consumed for server in servers),
        unsettled=sum(producer.unsettled for producer in producers),
    )


def _trouble(scenario: Scenario, costs: Costs, clock: Clock, servers: list[Server]) -> None:
    # Of a lost machine nothing comes back: neither an answer nor the end of a connection.
    notice_seconds = min(ProducerConfig().timeout_seconds, scenario.lost_seconds)
    for server in servers[: scenario.lost_servers]:
        clock.after(_TROUBLE_SECOND, partial(server.stop, scenario.lost_seconds, notice_seconds))
    if scenario.restart_every_seconds is not None:
        for number, server in enumerate(servers):
            begins = _TROUBLE_SECOND + number * scenario.restart_every_seconds
            clock.after(begins, partial(server.stop, costs.restart_seconds, costs.trip_seconds))


def closed_loop_rate(servers: int, in_flight: int, cores: int, costs: Costs) -> float:
    """Batches per second of servers and clients that all share one machine, each client with so many in flight."""
    clock, account = Clock(), Account()
    machine, disk = Resource(clock, cores), Resource(clock)
    for _ in range(servers):
        server = Server(clock, costs, account, cores=machine, disk=disk, deliveries_max=0)
        client = Client(Process(machine), costs, account, server)
        for _ in range(in_flight):
            client.send()
    clock.run(_CLOSED_LOOP_SECONDS)
    return account.acknowledged / _CLOSED_LOOP_SECONDS


class Client:
    """A process that sends the next batch for each one that is answered, as the load on real servers does."""

    def __init__(self, process: Process, costs: Costs, account: Account, server: Server) -> None:
        self._process, self._costs, self._account, self._server = process, costs, account, server

    def send(self) -> None:
        self._process.run(self._costs.client_seconds, self._call)

    def _call(self) -> None:
        self._account.created += 1
        number = self._account.created

        def answered(_is_stored: bool) -> None:  # noqa: FBT001 - the answer of a call
            self._account.acknowledge(number, 0.0)
            self.send()

        self._server.append(number, answered)
