from typing import Any

import pytest
from structlog.testing import capture_logs

from millrace.dead_letters import DEAD_LETTER_PREFIX
from millrace_server.agent.components import Component
from millrace_server.agent.dead_letters import DeadLetterWriter, as_dead_letters
from millrace_server.agent.rate_limited_log import RateLimitedLog
from millrace_server.channels import stamps
from millrace_server.channels.registry import ChannelRegistry
from tests.channel_events import append
from tests.source_writers import (
    batch_stamp,
    component_of,
    held,
    memory,
    outcomes_of,
    ranges_of,
    registry_of,
    rows_in,
    table_of,
)

HAS_VIRTUAL_CLOCK = True

SAID = {"reason": "too large", "channel": "a"}


def box_on(registry: ChannelRegistry, component: Component, channel: str | None = "dead") -> DeadLetterWriter:
    return DeadLetterWriter(registry, channel, component, RateLimitedLog(component.log))


def letters(*places: int, bodies: Any = None) -> Any:
    """Returns events with these indexes in their batch."""
    table = table_of(*(bodies or [b"%d" % place for place in places]))
    table.batch_indexes = list(places)
    return table


def test_as_dead_letters_adds_reason_and_time_and_keeps_the_events() -> None:
    """The headers are added to the event's own; those of an earlier rejection are kept in one of them."""
    table = table_of(b"1", b"2", host=["h", None], **{DEAD_LETTER_PREFIX + "reason": ["older", None]})
    reported = as_dead_letters(table, SAID)
    assert reported.bodies == table.bodies
    assert table.headers == {"host": ["h", None], DEAD_LETTER_PREFIX + "reason": ["older", None]}
    assert reported.headers.pop(DEAD_LETTER_PREFIX + "time")
    assert reported.headers == {
        "host": ["h", None],
        DEAD_LETTER_PREFIX + "reason": ["too large"] * 2,
        DEAD_LETTER_PREFIX + "channel": ["a"] * 2,
        DEAD_LETTER_PREFIX + "headers": ['{"millrace.dead_letter.reason":"older"}', None],
    }


async def test_write_keeps_neighbours_together_and_others_apart() -> None:
    """Each contiguous range is one commit, in which each event has its own number."""
    registry, component = registry_of(dead=memory()), component_of()
    await box_on(registry, component).write_or_drop(letters(0, 1, 2, 5, 7, 8), batch_stamp(100, 199), SAID)
    assert [batch.count for batch in registry.get("dead")._contents.queue] == [3, 1, 2]
    [(producer_id, ranges)] = registry.get("dead")._contents.ledger.producers()
    assert producer_id.startswith("dead-letter/")
    assert ranges == [(100, 102), (105, 105), (107, 108)]
    assert outcomes_of(component) == {"dead_lettered": 6}


async def test_write_again_with_other_neighbours_stores_each_event_once() -> None:
    """Some of them may have been stored before a crash."""
    registry, component = registry_of(dead=memory()), component_of()
    box = box_on(registry, component)
    await box.write_or_drop(letters(1, 2), batch_stamp(100, 199), SAID)
    await box.write_or_drop(letters(1, 2, 3), batch_stamp(100, 199), SAID)
    assert held(registry, "dead") == {"dead": [b"1", b"2", b"3"]}


async def test_write_for_several_channels_stores_a_letter_for_each() -> None:
    """The same event may be too large for two channels; each gets a letter."""
    registry, component = registry_of(dead=memory()), component_of()
    box = box_on(registry, component)
    for channel in ("a", "b"):
        await box.write_or_drop(letters(1), batch_stamp(0, 9), {"reason": "too large", "channel": channel})
    reported = [headers[DEAD_LETTER_PREFIX + "channel"] for headers, _ in rows_in(registry, "dead")]
    assert reported == ["a", "b"]


async def test_write_without_indexes_or_numbers_stores_all() -> None:
    """Without a number per event, a second copy is better than a loss."""
    registry, component = registry_of(dead=memory()), component_of()
    box = box_on(registry, component)
    await box.write_or_drop(table_of(b"1", b"2"), batch_stamp(0, 9), SAID)
    await box.write_or_drop(letters(0, 3), batch_stamp(5, 6), SAID)
    await box.write_or_drop(letters(0, 3), batch_stamp(6, 7), SAID)
    assert held(registry, "dead") == {"dead": [b"1", b"2", b"0", b"3", b"0", b"3"]}


async def test_write_when_the_channel_has_too_many_ranges_continues_without_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A source with very many dead letters must not be blocked by them."""
    monkeypatch.setattr(stamps, "INTERVALS_MAX", 3)
    registry, component = registry_of(dead=memory()), component_of()
    box = box_on(registry, component)
    for number in range(5):
        await box.write_or_drop(letters(1), batch_stamp(10 * number, 10 * number + 9), SAID)
    assert held(registry, "dead") == {"dead": [b"1"] * 5}


async def test_write_of_more_than_the_channel_takes_at_once_stores_all() -> None:
    """They are cut into smaller commits, and keep their numbers."""
    registry, component = registry_of(dead=memory(transaction_capacity=2, capacity=100)), component_of()
    await box_on(registry, component).write_or_drop(letters(*range(9)), batch_stamp(0, 99), SAID)
    assert held(registry, "dead") == {"dead": [b"%d" % place for place in range(9)]}
    [(producer_id, ranges)] = registry.get("dead")._contents.ledger.producers()
    assert ranges_of(registry.get("dead"), producer_id) == ranges == [(0, 8)]


async def test_write_of_an_event_that_is_too_large_for_the_channel_drops_only_that_one() -> None:
    """It is counted and logged; its neighbours are stored."""
    registry, component = registry_of(dead=memory(body_bytes_max=10)), component_of()
    with capture_logs() as entries:
        await box_on(registry, component).write_or_drop(
            letters(0, 1, 2, bodies=[b"1", bytes(11), b"3"]), batch_stamp(0, 9), SAID
        )
    assert held(registry, "dead") == {"dead": [b"1", b"3"]}
    assert outcomes_of(component) == {"dead_lettered": 2, "dropped": 1}
    [dropped] = [entry for entry in entries if entry["event"] == "events were dropped"]
    assert dropped["reason"] == "too large"
    assert dropped["dead_letter_channel"].startswith("dead: events: a body has 11 bytes")


async def test_write_when_the_channel_holds_letters_of_others_appends() -> None:
    """Several sources may share a dead-letter channel."""
    registry = registry_of(dead=memory())
    await append(registry.get("dead"), b"x")
    for name in ("one", "other"):
        await box_on(registry, component_of(name)).write_or_drop(letters(1), batch_stamp(0, 9, name), SAID)
    assert held(registry, "dead") == {"dead": [b"x", b"1", b"1"]}
