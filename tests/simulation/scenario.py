"""Scenarios of many servers: what they are given, what befalls them, and what is seen of them."""

import os
import random
from dataclasses import dataclass
from functools import partial

from tests.simulation.cluster import Account, Channel, Producer
from tests.simulation.costs import Costs
from tests.simulation.ownership import Homes, Owners
from tests.simulation.resources import Clock, Process, Resource

_SAMPLE_SECONDS = 0.5
_TROUBLE_SECOND = 5.0
_CLOSED_LOOP_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Servers on machines of their own, with one core each, and open-loop load."""

    servers: int
    producers: int = 10_000
    seconds: float
    batches_per_second: float
    """Created by all producers together."""
    replicated_each: int = 0
    """Replicated channels for each server, which share them; 0: each has one file channel on a disk of its own."""
    hot_share: float = 0.0
    """The share of the producers that send to the first channel beside its own, all with one hot key."""
    restart_every_seconds: float | None = None
    """The servers that are not lost restart one after the other, from 5 seconds on."""
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
    unserved: int
    """Channels that no server has."""


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
    if scenario.replicated_each:
        costs = costs.replicated()
    servers = [Process(Resource(clock)) for _ in range(scenario.servers)]
    # The engine is as large as need be: each channel's log is limited by its own commits alone.
    channels = [
        Channel(clock, costs, account, Resource(clock))
        for _ in range(scenario.servers * (scenario.replicated_each or 1))
    ]
    producers = []
    interval = scenario.producers / scenario.batches_per_second
    for number in range(scenario.producers):
        is_hot = number < scenario.hot_share * scenario.producers
        producer = Producer(clock, costs, account, channels[0 if is_hot else number % len(channels)], draw)
        producer.create_every(interval, draw.uniform(0, interval))
        producers.append(producer)
    has_owners = bool(scenario.replicated_each)
    site = Owners(clock, costs, servers, channels, draw) if has_owners else Homes(clock, costs, servers, channels)
    _trouble(scenario, clock, site)
    samples: list[Sample] = []
    seen = 0
    for tick in range(1, round(scenario.seconds / _SAMPLE_SECONDS) + 1):
        clock.run(tick * _SAMPLE_SECONDS)
        unsettled, queued = sum(one.unsettled for one in producers), sum(one.queued for one in channels)
        unserved = sum(one.server is None for one in channels)
        samples.append(Sample(clock.now, account.acknowledged - seen, unsettled, queued, unserved))
        seen = account.acknowledged
    return Outcome(
        account,
        samples,
        stored=len(account.copies),
        queued=sum(channel.queued for channel in channels),
        consumed=sum(channel.consumed for channel in channels),
        unsettled=sum(producer.unsettled for producer in producers),
    )


def _trouble(scenario: Scenario, clock: Clock, site: Homes | Owners) -> None:
    for number in range(scenario.lost_servers):
        clock.after(_TROUBLE_SECOND, partial(site.lose, number, scenario.lost_seconds))
    if scenario.restart_every_seconds is not None:
        for number in range(scenario.lost_servers, scenario.servers):
            clock.after(_TROUBLE_SECOND + number * scenario.restart_every_seconds, partial(site.restart, number))


def closed_loop_rate(servers: int, in_flight: int, cores: float, costs: Costs) -> float:
    """Batches per second of servers and clients that all share this machine, each client with so many in flight.

    Args:
        servers: How many there are, each with a client.
        in_flight: Batches of each client.
        cores: What other programs leave of the machine's cores.
        costs: Those of a server that is alone on the machine.
    """
    clock, account = Clock(), Account()
    core_count = os.cpu_count() or 1
    costs = costs.among(servers).slowed(core_count / cores)
    machine, disk = Resource(clock, core_count), Resource(clock)
    for _ in range(servers):
        channel = Channel(clock, costs, account, disk, deliveries_max=0)
        channel.open(Process(machine))
        client = Client(machine, costs, account, channel)
        for _ in range(in_flight):
            client.send()
    clock.run(_CLOSED_LOOP_SECONDS)
    return account.acknowledged / _CLOSED_LOOP_SECONDS


class Client:
    """A process that sends the next batch for each one that gets a response, as the load on real servers does."""

    def __init__(self, cores: Resource, costs: Costs, account: Account, channel: Channel) -> None:
        self._costs, self._account, self._channel = costs, account, channel
        self._process = Process(cores)

    def send(self) -> None:
        """Sends one."""
        self._process.run(self._costs.client_seconds, self._call)

    def _call(self) -> None:
        self._account.created += 1
        number = self._account.created

        def responded(_is_stored: bool) -> None:  # noqa: FBT001 - the response of a call
            self._account.acknowledge(number, 0.0)
            self.send()

        self._channel.append(number, responded)
