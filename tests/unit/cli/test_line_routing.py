from zlib import crc32

from millrace_client import Event
from millrace_client.cli.line_routing import LineRouting
from millrace_client.producing.channel_buffer import BUCKETS
from millrace_client.producing.routing import ranked

ENDPOINTS = ["a:1", "b:1", "c:1"]


def test_places_of_one_server_are_all() -> None:
    """Nothing is looked at."""
    assert LineRouting(["a:1"], None).places([b"a", b"b"], 7) == [range(2)]


def test_places_without_a_key_go_in_turn_through_the_whole_input() -> None:
    """Wherever the input is cut, a line has the same server."""
    routing = LineRouting(ENDPOINTS, None)
    assert routing.places([b""] * 4, 0) == [[0, 3], [1], [2]]
    assert routing.places([b""] * 4, 4) == [[2], [0, 3], [1]]


def test_places_of_keys_are_the_homes_that_producers_give_them() -> None:
    """Also where a program sends to the same servers, a key has one server."""
    keys = [f"customer-{number}" for number in range(50)]
    events = [Event(b"", {"customer": key}) for key in keys]
    places = LineRouting(ENDPOINTS, "customer").places(events, 0)
    for endpoint, its_places in zip(ENDPOINTS, places, strict=True):
        assert its_places
        for place in its_places:
            assert ranked(crc32(keys[place].encode()) % BUCKETS, ENDPOINTS)[0] == endpoint
