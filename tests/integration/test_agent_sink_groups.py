"""Groups of forwarding sinks between real servers."""

import itertools
from pathlib import Path

import millrace_client as millrace
from millrace_client import ChannelConfig, ChannelType, ComponentKind, ComponentState
from tests.millraced import Millraced
from tests.tiers import CHANNEL_TOML, Load, Tier, event_count, sink_toml, stored_bodies, tiers
from tests.waiting import wait_until

SINK, GROUP = ComponentKind.SINK, ComponentKind.SINK_GROUP

_numbers = itertools.count(1)


def make_target(server: Millraced) -> str:
    """Creates a file channel on a server that tests share; returns its name."""
    name = f"group-target-{next(_numbers)}"
    with millrace.connect(server.grpc) as client:
        client.admin.create_channel(name, ChannelConfig(type=ChannelType.FILE))
    return name


def group_toml(policy: str) -> str:
    return f'[sink_groups.all]\nsinks = ["best", "spare"]\npolicy = "{policy}"\nbackoff_seconds_max = 0.5\n'


def states(edge: Tier) -> dict[str, ComponentState]:
    found = {name: edge.component(kind, name) for kind, name in ((SINK, "best"), (SINK, "spare"), (GROUP, "all"))}
    return {name: component.state for name, component in found.items()}


def test_failover_group_uses_the_spare_server_while_the_best_is_gone(tmp_path: Path, shared_server: Millraced) -> None:
    """The group returns to the first server by itself; each server has its events once and in order."""
    target = make_target(shared_server)
    with tiers(tmp_path, "edge", "best") as (edge, best):
        best.start(CHANNEL_TOML)
        sinks = sink_toml("best", best.address) + sink_toml("spare", shared_server.grpc, target_channel=target)
        edge.start(CHANNEL_TOML + sinks + group_toml("failover"))
        load = Load(edge.address, count_max=100_000)
        load.start()
        wait_until(lambda: best.event_count() > 100)
        assert states(edge) == {
            "best": ComponentState.RUNNING,
            "spare": ComponentState.STANDING_BY,
            "all": ComponentState.RUNNING,
        }
        assert event_count(shared_server.grpc, target) == 0
        best.kill()
        wait_until(lambda: event_count(shared_server.grpc, target) > 100)
        assert states(edge) == {
            "best": ComponentState.BACKING_OFF,
            "spare": ComponentState.RUNNING,
            "all": ComponentState.RUNNING,
        }
        best.start()
        before = best.event_count()
        wait_until(lambda: best.event_count() > before)
        wait_until(lambda: states(edge)["spare"] is ComponentState.STANDING_BY)
        load.finish()
        wait_until(lambda: not edge.event_count())
        parts = [best.bodies(), stored_bodies(shared_server.grpc, target)]
        for part in parts:
            numbers = list(map(int, part))
            assert numbers == sorted(set(numbers))
        # Only events in progress when the first server was killed may be on both.
        assert set(parts[0]) | set(parts[1]) == set(load.sent)


def test_load_balancing_group_shares_the_events_out(tmp_path: Path, shared_server: Millraced) -> None:
    """All servers get events; without failures each event is on one of them."""
    targets = [make_target(shared_server) for _ in range(2)]
    with tiers(tmp_path, "edge") as [edge]:
        sinks = "".join(
            sink_toml(name, shared_server.grpc, target_channel=target, batch_events_max=20)
            for name, target in zip(("best", "spare"), targets, strict=True)
        )
        edge.start(CHANNEL_TOML + sinks + group_toml("load_balancing"))
        load = Load(edge.address, count_max=3_000)
        load.start()
        wait_until(lambda: load.count == 3_000)
        load.finish()
        wait_until(lambda: not edge.event_count())
        assert states(edge) == dict.fromkeys(("best", "spare", "all"), ComponentState.RUNNING)
        counters = edge.component(GROUP, "all").counters
        parts = [stored_bodies(shared_server.grpc, target) for target in targets]
        assert all(parts)
        assert sorted(parts[0] + parts[1]) == sorted(load.sent)
        assert counters.event_count == len(load.sent)
        for part in parts:
            numbers = list(map(int, part))
            assert numbers == sorted(numbers)
