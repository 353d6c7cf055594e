import threading

import pytest

from millrace_client._settings import Numbering
from millrace_client.errors import BadArgumentError
from millrace_client.events import Stamp


def test_next_stamp_follows_the_one_before() -> None:
    """Each event has a number of its own, and none is left out."""
    numbering = Numbering()
    first, second = numbering.next_stamp("orders", 3), numbering.next_stamp("orders", 1)
    assert first == Stamp(first.producer_id, 1, 3)
    assert second == Stamp(first.producer_id, 4, 4)


def test_next_stamp_of_two_channels_leaves_no_gaps_in_either() -> None:
    """A channel remembers a limited number of gaps, so numbers for another channel must not leave any."""
    numbering = Numbering()
    stamps = [numbering.next_stamp(channel, 1) for channel in ("orders", "returns", "orders", "returns")]
    assert [stamp.first_sequence for stamp in stamps] == [1, 1, 2, 2]
    assert stamps[0].producer_id != stamps[1].producer_id


def test_next_stamp_of_two_clients_has_two_producers() -> None:
    """The numbers of two clients never conflict."""
    assert Numbering().next_stamp("orders", 1).producer_id != Numbering().next_stamp("orders", 1).producer_id


def test_next_stamp_after_many_gaps_begins_a_new_producer() -> None:
    """Before a channel has too many gaps of a producer, a new one begins there; other channels keep theirs."""
    numbering = Numbering()
    before, other = numbering.next_stamp("orders", 1), numbering.next_stamp("returns", 1)
    for _ in range(1_000):
        numbering.note_gap("orders")
    after = numbering.next_stamp("orders", 2)
    assert after.producer_id != before.producer_id
    assert (after.first_sequence, after.last_sequence) == (1, 2)
    assert numbering.next_stamp("returns", 1).producer_id == other.producer_id


def test_next_stamp_for_no_events_is_refused() -> None:
    """A stamp covers at least one event."""
    with pytest.raises(BadArgumentError, match="event_count: is 0"):
        Numbering().next_stamp("orders", 0)


def test_next_stamp_by_many_threads_gives_each_number_once() -> None:
    """Threads share a client, and so its numbering."""
    numbering = Numbering()
    stamps: list[Stamp] = []

    def take_numbers() -> None:
        stamps.extend([numbering.next_stamp("orders", 2) for _ in range(500)])

    threads = [threading.Thread(target=take_numbers) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = sorted(number for stamp in stamps for number in (stamp.first_sequence, stamp.last_sequence))
    assert numbers == list(range(1, 8_001))
