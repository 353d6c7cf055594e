"""The simulation of many servers: its account adds up, and it behaves as what it stands for."""

from dataclasses import replace

import pytest

from tests.simulation.cluster import Server
from tests.simulation.costs import Costs
from tests.simulation.scenario import Outcome, Scenario, simulate

COSTS = Costs(
    machine="round figures, not measured",
    batch_events=100,
    batch_bytes=50_000,
    disk_bytes=50_000,
    append_seconds=0.006,
    client_seconds=0.003,
    consume_seconds=0.004,
    sync_seconds=0.002,
    byte_seconds=1e-9,
    trip_seconds=0.001,
    restart_seconds=2.0,
)
CAPACITY = 1 / (COSTS.append_seconds + COSTS.consume_seconds)
"""Batches per second of one server, in and out."""
CALM = Scenario(servers=3, producers=100, seconds=20, batches_per_second=0.6 * 3 * CAPACITY)


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
    ],
    ids=["calm", "restarts", "loss", "overload", "all"],
)
def test_no_event_is_lost_or_stored_twice(scenario: Scenario) -> None:
    """Whatever happens, each acknowledged batch is stored once, and each created one is acknowledged or waits."""
    assert_adds_up(simulate(scenario, COSTS))


def test_repeats_without_stamps_are_seen_in_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarts make clients repeat stored batches; a server that forgot their stamps would store them twice."""
    start = Server._start

    def start_without_stamps(server: Server) -> None:
        server._stamps.clear()
        start(server)

    scenario, costs = replace(CALM, restart_every_seconds=3), replace(COSTS, trip_seconds=0.02)
    assert simulate(scenario, costs).account.repeats > 0
    monkeypatch.setattr(Server, "_start", start_without_stamps)
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


def test_measured_costs_are_complete() -> None:
    """The committed calibration has every figure."""
    assert min(value for value in vars(Costs.measured()).values() if not isinstance(value, str)) >= 0
