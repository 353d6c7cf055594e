import asyncio
from pathlib import Path
from typing import Any

import pytest

from millrace_server.agent.components import ComponentState
from millrace_server.agent.sources.sequence import SequenceSource, SequenceSourceConfig
from millrace_server.channels.stamps import Stamp
from tests.source_writers import memory, registry_of, table_of, writer_of
from tests.unit.agent.sources.running_sources import bodies_in, rows_in, running_source, take
from tests.waiting import until


def config_of(**settings: Any) -> SequenceSourceConfig:
    table = {"type": "sequence", "channels": ["lines"], **settings}
    return SequenceSourceConfig.model_validate(table, strict=True)


async def test_run_counts_up_to_the_limit_and_stops(tmp_path: Path) -> None:
    """The number stands in the body and in headers, wherever the templates have it."""
    registry = registry_of(lines=memory())
    config = config_of(count=3, body="event {number} of {number}", headers={"id": "n{number}", "kind": "try"})
    async with running_source(config, registry, tmp_path) as component:
        await until(lambda: component.state is ComponentState.STOPPED)
        assert component.reason == "all 3 events are stored"
    assert rows_in(registry) == [
        ({"id": f"n{number}", "kind": "try"}, b"event %d of %d" % (number, number)) for number in range(3)
    ]


async def test_run_again_goes_on_after_what_is_stored() -> None:
    """Neither a number twice nor a gap, also if one channel has stored more than the other."""
    registry = registry_of(lines=memory(), more=memory())
    source = SequenceSource("in", config_of(channels=["lines", "more"], count=10))
    only_one = writer_of(registry, ["more"])
    for first, last in ((0, 3), (6, 7)):
        bodies = [b"%d" % number for number in range(first, last + 1)]
        await only_one.deliver(table_of(*bodies), Stamp("sequence/in", first, last))
    await writer_of(registry, ["lines"]).deliver(table_of(b"0", b"1"), Stamp("sequence/in", 0, 1))
    for _ in range(2):
        await source.run(writer_of(registry, ["lines", "more"]))
    expected = [b"%d" % number for number in range(10)]
    assert bodies_in(registry, "lines") == expected
    assert sorted(bodies_in(registry, "more")) == expected


@pytest.mark.parametrize("batch_count", [1, 4])
async def test_run_with_a_rate_does_not_exceed_it(batch_count: int) -> None:
    """The last batch ends after the time that the rate gives all of them."""
    registry = registry_of(lines=memory(capacity=1_000))
    clock = asyncio.get_running_loop().time
    began = clock()
    config = config_of(count=10 * batch_count, events_per_second=100 * batch_count)
    await SequenceSource("in", config).run(writer_of(registry, ["lines"]))
    # The loop rounds its clock to milliseconds.
    assert clock() - began >= 0.098


async def test_run_into_a_full_channel_waits(tmp_path: Path) -> None:
    """Nothing is left out."""
    registry = registry_of(lines=memory(capacity=10, transaction_capacity=10))
    taken: list[bytes] = []
    async with running_source(config_of(count=25), registry, tmp_path) as component:
        while len(taken) < 25:
            taken += await take(registry, 10)
        await until(lambda: component.state is ComponentState.STOPPED)
    assert taken == [b"%d" % number for number in range(25)]
