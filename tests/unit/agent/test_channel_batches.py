from hypothesis import given
from hypothesis import strategies as st

from millrace_server.agent.channel_batches import ChannelBatch, channel_batches_of, unrouted_count
from millrace_server.agent.events import EventTable
from millrace_server.agent.selectors.selector import Choice
from tests.channel_events import open_channel
from tests.source_writers import table_of

HAS_VIRTUAL_CLOCK = True

COUNT = 4
CHOICES: st.SearchStrategy[dict[str, Choice]] = st.dictionaries(
    st.sampled_from("abc"), st.booleans() | st.lists(st.booleans(), min_size=COUNT, max_size=COUNT)
)


@given(choices=CHOICES)
def test_parcels_hold_what_was_chosen(choices: dict[str, Choice]) -> None:
    """Channels that get nothing have none; what is in none of them is counted."""
    table = EventTable([b"%d" % index for index in range(COUNT)])
    expected = {}
    lost = set(table.bodies)
    for name, choice in choices.items():
        goes = [choice] * COUNT if isinstance(choice, bool) else choice
        if mine := [body for body, is_mine in zip(table.bodies, goes, strict=True) if is_mine]:
            expected[name] = mine
            lost -= set(mine)
    assert {name: batch.table.bodies for name, batch in channel_batches_of(table, choices).items()} == expected
    assert unrouted_count(table, choices) == len(lost)


def test_parcels_of_all_events_are_one_parcel() -> None:
    """They are encoded once, however many channels get them."""
    table = table_of(b"1", b"2")
    batches = channel_batches_of(table, {"a": True, "b": [True, True], "c": [True, False]})
    assert batches["a"] is batches["b"]
    assert batches["a"].batches()[0].raw is batches["b"].batches()[0].raw


def test_unencodable_finds_events_that_are_none() -> None:
    """Too many headers, or a header's name that is no text; the others are not to suffer."""
    many = {f"h{index}": [None, "x", None, None] for index in range(300)}
    table = EventTable([b"0", b"1", b"2", b"3"], {**many, "\udc80": [None, None, "x", None]})
    assert set(ChannelBatch(table).unencodable()) == {1, 2}
    rest = ChannelBatch(table).without({1, 2})
    assert (rest.table.bodies, rest.unencodable()) == ([b"0", b"3"], {})


def test_batches_of_values_that_are_no_text_are_mended() -> None:
    """An event is worth more than a character, also where there are many headers."""
    for more in ({}, {f"h{index}": [None, None, "x"] for index in range(256)}):
        table = EventTable([b"0", b"1", b"2"], {"a": ["\udc80", "b", None], **more})
        [headers, *_] = [
            headers for stored in ChannelBatch(table).batches() for headers, _ in stored.cutter().rows(0, 1)
        ]
        assert headers["a"] == "?"


async def test_unstorable_finds_events_that_a_channel_never_takes() -> None:
    """Each with its reason; those that are too large together only are none of them."""
    channel = open_channel(body_bytes_max=10, answer_bytes_max=20_000)
    table = EventTable([bytes(9), bytes(11), bytes(9), b"", b"1"], {"h": [None, None, None, "x" * 20_000, None]})
    refused = ChannelBatch(table).unstorable(channel)
    assert set(refused) == {1, 3}
    assert "a body has 11 bytes" in refused[1]
    assert "would not fit an answer" in refused[3]
