"""Which events of a channel were sent, and how Kafka stores that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_server.agent.sinks.kafka.position import ChannelPosition, UnknownPositionError
from millrace_server.channels.batches import StoredBatch
from tests.channel_events import window


def batch(first: int, last: int) -> StoredBatch:
    return StoredBatch(first, window(*[b"x"] * (last - first + 1)), 0)


def spans(batches: list[StoredBatch]) -> list[tuple[int, int]]:
    return [(each.first_sequence, each.end_sequence - 1) for each in batches]


def test_unsent_of_events_in_part_sent_yields_the_others() -> None:
    """After a crash, the events behind the position are sent, and those that others returned below it."""
    position = ChannelPosition(11).after([batch(15, 20)], oldest_sequence=1)
    assert spans(list(position.unsent([batch(8, 16), batch(19, 24)]))) == [(11, 14), (21, 24)]
    assert list(position.unsent([batch(15, 20)])) == []


def test_after_of_older_events_that_have_gone_forgets_the_gaps() -> None:
    """Events that have left the channel cannot come back; so the metadata names those that are there at most."""
    position = ChannelPosition().after([batch(5, 6)], oldest_sequence=1)
    assert (position.metadata(), position.has_gaps) == ("millrace:1-4", True)
    assert position.after([batch(9, 9)], oldest_sequence=3).metadata() == "millrace:3-4,7-8"
    whole = position.after([batch(9, 9)], oldest_sequence=9)
    assert (whole.metadata(), whole.has_gaps) == ("millrace:", False)


@pytest.mark.parametrize("metadata", ["other", "millrace:1", "millrace:a-b", "millrace:1-2-3,"])
def test_parse_metadata_of_others_is_refused(metadata: str) -> None:
    """A group that something else uses is not taken for the sink's position."""
    with pytest.raises(UnknownPositionError, match="offset 7"):
        ChannelPosition.parse(7, metadata)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 4)), max_size=12), st.integers(1, 40))
def test_parse_of_offset_and_metadata_is_the_same_place(sent: list[tuple[int, int]], oldest: int) -> None:
    """What Kafka has stored says of each event what the position said that was written."""
    position, expected = ChannelPosition(), set(range(1, oldest)) if sent else set()
    for first, more in sent:
        position = position.after([batch(first, first + more)], oldest)
        expected |= set(range(first, first + more + 1))
    read = ChannelPosition.parse(position.next_sequence, position.metadata())
    for each in (position, read):
        assert {at for at in range(1, 70) if not list(each.unsent([batch(at, at)]))} == expected
