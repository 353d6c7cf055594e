"""The deliveries of a sink of type `files` whose files are not finished."""

from pathlib import Path

import pytest

from millrace_server.agent.channel_reader import Delivery, UnsettledLimits
from millrace_server.agent.sinks.files.sink import UnsettledDeliveries
from tests.files_sink import SinkBench, config_of, rows_of


@pytest.fixture
async def bench(tmp_path: Path) -> SinkBench:
    """A channel whose deliveries have at most two events."""
    return SinkBench(config_of(tmp_path, batch_events_max=2), tmp_path / "state")


async def _taken(bench: SinkBench, *counts: int) -> list[Delivery]:
    deliveries = []
    for count in counts:
        await bench.put(rows_of([b"x"] * count))
        delivery = await bench.reader.take()
        assert delivery is not None
        deliveries.append(delivery)
    return deliveries


async def test_add_of_small_deliveries_joins_them_up_to_a_limit(bench: SinkBench) -> None:
    """Neighbours are joined while they are small together; then a new one begins."""
    held = UnsettledDeliveries(join_events_max=3)
    assert [held.add(delivery) for delivery in await _taken(bench, 1, 2, 1, 1)] == [1, 1, 2, 2]
    assert len(held) == 2
    assert bench.channel.open_transactions == 2
    [first, second] = held.remove([1, 2])
    assert (first.count, second.count) == (3, 2)
    await first.settle()
    await second.settle()
    assert bench.unsettled == 0


@pytest.mark.parametrize(
    "limits",
    [UnsettledLimits(3, 1_000, 1_000), UnsettledLimits(1_000, 3, 1_000), UnsettledLimits(1_000, 1_000, 1)],
    ids=["events", "bytes", "deliveries"],
)
async def test_exceeds_at_any_of_the_limits(limits: UnsettledLimits, bench: SinkBench) -> None:
    """Events, bytes and deliveries each have a maximum."""
    held = UnsettledDeliveries(join_events_max=1)
    first, second = await _taken(bench, 2, 2)
    number = held.add(first)
    assert not held.exceeds(limits)
    held.add(second)
    assert held.exceeds(limits)
    held.remove([number])
    assert not held.exceeds(limits)


async def test_low_sequence_is_below_all_unsettled_events(bench: SinkBench) -> None:
    """All events below it are settled; if none are unsettled, it is past the last one."""
    held = UnsettledDeliveries(join_events_max=1)
    numbers = [held.add(delivery) for delivery in await _taken(bench, 2, 2, 1)]
    assert held.low_sequence == 1
    held.remove(numbers[1:2])
    assert held.low_sequence == 1
    held.remove(numbers[:1])
    assert held.low_sequence == 5
    held.remove(numbers[2:])
    assert held.low_sequence == 6
