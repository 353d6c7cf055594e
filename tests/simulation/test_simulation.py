"""The simulation of many servers: its account adds up, and it behaves as what it stands for."""

import random
from dataclasses import replace

import pytest

from tests.simulation.cluster import Account, Channel
from tests.simulation.costs import Costs
from tests.simulation.ownership import LEASE_SECONDS, Owners
from tests.simulation.resources import Clock, Process, Resource
from tests.simulation.scenario import Outcome, Scenario, simulate

COSTS = Costs(
    machine="round figures, not measured",
    batch_events=100,
    batch_bytes=50_000,
    disk_bytes=50_000,
    append_seconds=0.006,
    stall_seconds=0.0,
    client_seconds=0.003,
    consume_seconds=0.004,
    sync_seconds=0.002,
    byte_seconds=1e-9,
    trip_seconds=0.001,
    restart_seconds=2.0,
    replicated_seconds=0.007,
    engine_seconds=0.004,
    engine_byte_seconds=1e-8,
    handover_seconds=0.3,
    takeover_seconds=0.8,
    crowding=[1.0],
    overlap=[1.0],
)
CAPACITY = 1 / (COSTS.append_seconds + COSTS.consume_seconds)
"""Batches per second of one server, in and out."""
CALM = Scenario(servers=3, producers=100, seconds=20, batches_per_second=0.6 * 3 * CAPACITY)
SHARED = replace(CALM, replicated_each=4, seconds=40, batches_per_second=0.5 * 3 * CAPACITY)
"""Three servers that share twelve replicated channels."""


def assert_adds_up(outcome: Outcome) -> None:
    account = outcome.account
    assert account.lost == 0
    assert set(account.copies.values()) == {1}
    assert account.created == account.acknowledged + outcome.unsettled
    assert outcome.stored == outcome.consumed + outcome.queued
    assert account.acknowledged <= outcome.stored <= account.created


@pytest.mark.parametrize(
    "scenario",
    [
        CALM,
        replace(CALM, restart_every_seconds=3),
        replace(CALM, lost_servers=1, lost_seconds=6),
        replace(CALM, batches_per_second=3 * 3 * CAPACITY),
        replace(CALM, hot_share=0.5, restart_every_seconds=2, lost_servers=2, lost_seconds=3),
        replace(SHARED, restart_every_seconds=2, hot_share=0.5),
        replace(SHARED, lost_servers=2, lost_seconds=18),
        replace(SHARED, lost_servers=1, lost_seconds=1, restart_every_seconds=1),
    ],
    ids=["calm", "restarts", "loss", "overload", "all", "shared-restarts", "shared-loss", "shared-all"],
)
def test_no_event_is_lost_or_stored_twice(scenario: Scenario) -> None:
    """Whatever happens, each acknowledged batch is stored once, and each created one is acknowledged or waits."""
    assert_adds_up(simulate(scenario, COSTS))


def test_repeats_without_stamps_are_seen_in_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarts make clients repeat stored batches; a server that forgot their stamps would store them twice."""
    open_channel = Channel.open

    def open_without_stamps(channel: Channel, server: Process) -> None:
        channel._stamps.clear()
        open_channel(channel, server)

    scenario, costs = replace(CALM, restart_every_seconds=3), replace(COSTS, trip_seconds=0.02)
    assert simulate(scenario, costs).account.repeats > 0
    monkeypatch.setattr(Channel, "open", open_without_stamps)
    assert max(simulate(scenario, costs).account.copies.values()) > 1


def test_same_seed_has_the_same_outcome() -> None:
    """A seed decides everything, and another one something."""
    scenario = replace(CALM, restart_every_seconds=3)
    assert simulate(scenario, COSTS) == simulate(scenario, COSTS)
    assert simulate(scenario, COSTS).samples != simulate(replace(scenario, seed=1), COSTS).samples


def test_more_servers_carry_proportionally_more() -> None:
    """Under overload 3, 12 and 48 servers acknowledge the same number of batches each."""
    each = []
    for count in (3, 12, 48):
        load = Scenario(servers=count, producers=count * 10, seconds=3, batches_per_second=2 * count * CAPACITY)
        each.append(simulate(load, COSTS).account.acknowledged / count)
    assert each == pytest.approx([each[0]] * 3, rel=0.03)


def test_hot_key_saturates_its_server_alone() -> None:
    """A hot key carries what one server can, however many there are; the others carry their load in time."""
    load = Scenario(servers=10, producers=200, seconds=10, batches_per_second=5 * CAPACITY)
    even, hot = simulate(load, COSTS), simulate(replace(load, hot_share=0.5), COSTS)
    assert even.unsettled < 20
    alone = simulate(Scenario(servers=1, producers=100, seconds=10, batches_per_second=2.5 * CAPACITY), COSTS)
    others = 0.5 * load.batches_per_second * 0.9 * load.seconds
    assert hot.account.acknowledged == pytest.approx(alone.account.acknowledged + others, rel=0.05)
    assert hot.account.late > 0


def test_restarts_delay_events_by_little_more_than_one_restart() -> None:
    """Clients wait for a restart, and for the pause that had begun before it was over."""
    account = simulate(replace(CALM, restart_every_seconds=5), COSTS).account
    assert COSTS.restart_seconds < account.longest_seconds < 2 * COSTS.restart_seconds + 2


def test_restart_of_an_owner_delays_events_by_a_handover_and_not_by_the_restart() -> None:
    """Replicated channels of a server that stops are served by others before it is back."""
    shared = simulate(replace(SHARED, restart_every_seconds=5), COSTS)
    alone = simulate(replace(SHARED, replicated_each=0, restart_every_seconds=5), COSTS)
    assert COSTS.handover_seconds < shared.account.longest_seconds < COSTS.restart_seconds
    assert alone.account.longest_seconds > COSTS.restart_seconds


def test_loss_of_an_owner_delays_events_by_the_lease_and_not_until_it_is_back() -> None:
    """Others serve the channels of a lost machine when its lease has ended; one that is back earlier waits for it."""
    for lost_seconds in (5, 35):
        outcome = simulate(replace(SHARED, lost_servers=1, lost_seconds=lost_seconds), COSTS)
        unserved = [sample.second for sample in outcome.samples if sample.unserved]
        assert 5 + LEASE_SECONDS * 4 / 5 < max(unserved) <= 5.5 + LEASE_SECONDS + COSTS.takeover_seconds
        assert not outcome.samples[-1].unserved


def test_servers_that_come_back_get_their_share_of_the_channels() -> None:
    """Servers own the same number of channels after any trouble, and nothing moves any more."""
    clock, account = Clock(), Account()
    servers = [Process(Resource(clock)) for _ in range(5)]
    channels = [Channel(clock, COSTS, account, Resource(clock)) for _ in range(20)]
    owners = Owners(clock, COSTS, servers, channels, random.Random(0))
    owners.lose(0, 40)
    owners.lose(1, 3)
    clock.after(10, lambda: owners.restart(2))
    clock.run(35)
    assert sorted(owners.counts.values()) == [5, 5, 5, 5]
    clock.run(60)
    assert list(owners.counts.values()) == [4] * 5
    assert all(channel.server in servers for channel in channels)
    moves = owners.moves
    clock.run(120)
    assert owners.moves == moves > 0


def test_measured_costs_are_complete() -> None:
    """The committed calibration has every figure."""
    assert min(value for value in vars(Costs.measured()).values() if isinstance(value, int | float)) >= 0
