from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import TypeAdapter

from millrace_server.agent.events import EventTable
from millrace_server.agent.selectors import (
    AnySelectorConfig,
    EventMask,
    LeastFull,
    LoadBalancer,
    RandomPick,
    RoundRobin,
    SelectorConfig,
)
from tests.channel_events import append, open_channel
from tests.source_writers import table_of

NAMES = ("a", "b", "c")
MULTIPLEXING = {
    "type": "multiplexing",
    "header": "kind",
    "mapping": {"x": ["a"], "y": ["b", "c"], "": ["c"]},
    "default": ["b"],
}


def config_of(**table: Any) -> SelectorConfig:
    config: SelectorConfig = TypeAdapter(AnySelectorConfig).validate_python(table)
    return config


def chosen(table: EventTable, **config: Any) -> dict[str, list[bytes]]:
    """Returns the bodies that a selector sends to each channel."""
    selector = config_of(**config).make(NAMES)
    assert not isinstance(selector, LoadBalancer)
    return bodies_by_channel(table, selector.select(table))


def bodies_by_channel(table: EventTable, masks: Mapping[str, EventMask]) -> dict[str, list[bytes]]:
    bodies = {}
    for name, mask in masks.items():
        selected = [mask] * table.count if isinstance(mask, bool) else mask
        assert len(selected) == table.count
        if any(selected):
            bodies[name] = [body for body, is_mine in zip(table.bodies, selected, strict=True) if is_mine]
    return bodies


def test_replicating_sends_every_event_to_every_channel() -> None:
    """This includes optional channels."""
    everywhere = {name: [b"1", b"2"] for name in NAMES}
    assert chosen(table_of(b"1", b"2"), type="replicating") == everywhere
    assert chosen(table_of(b"1", b"2"), type="replicating", optional=["c"]) == everywhere
    assert config_of(type="replicating", optional=["c"]).optional_channels == {"c"}


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["x", "y", "z", None, ""], {"a": [b"0"], "b": [b"1", b"2", b"3"], "c": [b"1", b"4"]}),
        (["X", " x", "x ", "xx", "x"], {"a": [b"4"], "b": [b"0", b"1", b"2", b"3"]}),
        (["y"] * 5, {name: [b"0", b"1", b"2", b"3", b"4"] for name in "bc"}),
        ([None] * 5, {"b": [b"0", b"1", b"2", b"3", b"4"]}),
        ("y", {name: [b"0", b"1", b"2", b"3", b"4"] for name in "bc"}),
        ("z", {"b": [b"0", b"1", b"2", b"3", b"4"]}),
    ],
)
def test_multiplexing_sends_events_where_their_value_says(kinds: Any, expected: dict[str, list[bytes]]) -> None:
    """Values are compared exactly; events without the header, or with another value, go to the default."""
    assert chosen(table_of(b"0", b"1", b"2", b"3", b"4", kind=kinds), **MULTIPLEXING) == expected


def test_multiplexing_of_events_without_the_header_sends_them_to_the_default() -> None:
    """This holds even if no event of the batch has the header."""
    assert chosen(table_of(b"1"), **MULTIPLEXING) == {"b": [b"1"]}


@pytest.mark.parametrize("kinds", ["z", ["z", "z"], [None, "x"]])
def test_multiplexing_without_default_sends_the_others_nowhere(kinds: Any) -> None:
    """The writer counts them."""
    sent = chosen(table_of(b"1", b"2", kind=kinds), **{**MULTIPLEXING, "default": []})
    assert sent == ({"a": [b"2"]} if "x" in kinds else {})


def test_multiplexing_sends_optional_copies_besides() -> None:
    """A value may have only optional channels; its events go to the default as well."""
    config = {**MULTIPLEXING, "mapping": {"x": ["a"]}, "optional": {"x": ["c"], "z": ["c"]}}
    sent = chosen(table_of(b"1", b"2", b"3", kind=["x", "y", "z"]), **config)
    assert sent == {"a": [b"1"], "b": [b"2", b"3"], "c": [b"1", b"3"]}
    made = config_of(**config)
    assert made.optional_channels == {"c"}
    assert made.required_channels == {"a", "b"}


def test_key_hash_sends_events_of_one_key_to_one_channel() -> None:
    """The channel of a key does not depend on the batch; the keys are spread over all channels."""
    config = {"type": "load_balancing", "policy": "key_hash", "header": "user"}
    seen: dict[str, set[str]] = {}
    for batch in range(20):
        users = [f"user-{(batch * 7 + index) % 30}" for index in range(1 + batch % 5)]
        table = EventTable([user.encode() for user in users], {"user": users})
        for name, bodies in chosen(table, **config).items():
            for body in bodies:
                seen.setdefault(body.decode(), set()).add(name)
    assert {len(names) for names in seen.values()} == {1}
    spread = Counter(name for names in seen.values() for name in names)
    assert set(spread) == set(NAMES)


def test_key_hash_of_one_value_for_all_is_that_of_each() -> None:
    """The representation of a header does not matter."""
    config = {"type": "load_balancing", "policy": "key_hash", "header": "user"}
    for user in ("alice", "bob", "größe", "\udc80"):
        constant = chosen(EventTable([b"1", b"2"], {"user": user}), **config)
        assert constant == chosen(EventTable([b"1", b"2"], {"user": [user, user]}), **config)


def test_key_hash_without_the_header_takes_the_body() -> None:
    """An event without a key goes to the same channel each time."""
    by_body = {"type": "load_balancing", "policy": "key_hash"}
    bodies = [b"%d" % number for number in range(50)]
    expected = chosen(EventTable(bodies), **by_body)
    assert chosen(EventTable(bodies), **by_body, header="user") == expected
    assert chosen(EventTable(bodies, {"user": [None] * 50}), **by_body, header="user") == expected
    assert set(expected) == set(NAMES)
    assert sorted(body for mine in expected.values() for body in mine) == sorted(bodies)


async def test_round_robin_goes_to_the_least_recently_picked() -> None:
    """A channel that was no candidate for a while is next when it is one again."""
    a, b, c = (open_channel(name) for name in NAMES)
    balancer = RoundRobin()
    picks = [balancer.pick(candidates).name for candidates in ([a, b, c], [a, c], [a, b, c], [a, b, c], [a, b, c])]
    assert picks == ["a", "c", "b", "a", "c"]


async def test_random_pick_takes_each_now_and_then() -> None:
    """No channel is left out."""
    channels = [open_channel(name) for name in NAMES]
    balancer = RandomPick()
    spread = Counter(balancer.pick(channels).name for _ in range(600))
    assert min(spread[name] for name in NAMES) > 100


async def test_least_full_compares_shares_of_the_capacity() -> None:
    """The share of events or of bytes counts, whichever is nearer to its limit."""
    small, large = open_channel("a", capacity=4), open_channel("b", capacity=100)
    tight = open_channel("c", capacity=100, body_bytes_max=10)
    balancer = LeastFull()
    assert balancer.pick([small, large, tight]) is small
    await append(small, b"1")
    assert balancer.pick([small, large, tight]) is large
    await append(large, *[b"x"] * 24)
    assert balancer.pick([small, large]) is large
    await append(tight, bytes(5))
    await append(large, *[b"x"] * 3)
    assert balancer.pick([small, large, tight]) is small


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (None, "must return a mapping, not NoneType"),
        ({"z": True}, "named \\['z'\\], which are not channels"),
        ({"a": [True]}, "returned 1 choices for channel 'a', not 2"),
    ],
)
def test_own_selector_with_an_invalid_result_raises(response: object, said: str) -> None:
    """An invalid result is an error, never a loss."""
    selector = config_of(
        type="custom", factory="tests.custom_interceptors:FixedSelection", options={"response": response}
    ).make(NAMES)
    assert not isinstance(selector, LoadBalancer)
    with pytest.raises((TypeError, ValueError), match=said):
        selector.select(table_of(b"1", b"2"))


def test_own_selector_gets_the_channels_and_its_options() -> None:
    """The factory gets both; its selector is called for each batch."""
    table = table_of(b"a1", b"", b"b1")
    sent = chosen(table, type="custom", factory="tests.custom_interceptors:FirstLetter", options={"lost": "c"})
    assert sent == {"a": [b"a1"], "b": [b"b1"], "c": [b""]}
