"""Which events go to which directory."""

from collections.abc import Iterable
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from millrace_server.agent.sinks.files.chunks import EventChunk, chunks_of
from millrace_server.agent.sinks.files.event_times import TimeRule
from millrace_server.agent.sinks.files.partitions import Partitioner, PathRules, chosen
from millrace_server.agent.sinks.files.path_template import PathTemplate
from tests.files_sink import Row, raw_of

NOON = 1_767_268_800


def _chunk(rows: Iterable[Row]) -> EventChunk:
    [chunk] = chunks_of([(1, raw_of(rows))])
    return chunk


def _partitioner(path: str, *, is_clock_used: bool = True) -> Partitioner:
    rules = PathRules(PathTemplate.parse(path), TimeRule(ZoneInfo("UTC"), 1), "timestamp", "unknown", is_clock_used)
    return Partitioner(rules, clock=lambda: float(NOON))


def test_split_by_what_all_events_share_keeps_them_together() -> None:
    """Where nothing in the path differs, no event is looked at."""
    chunk = _chunk(({"host": "a", "n": str(n)}, b"") for n in range(3))
    assert _partitioner("/data/{header:host}").split(chunk) == {"/data/a": range(3)}
    assert _partitioner("/data").split(chunk) == {"/data": range(3)}


def test_split_by_a_header_sorts_events_and_keeps_their_order() -> None:
    """Each event goes to its header's directory; one without goes to the word for that."""
    hosts: list[dict[str, str]] = [{"host": "b"}, {"host": "a"}, {}, {"host": "b"}]
    chunk = _chunk((headers, b"") for headers in hosts)
    assert _partitioner("/data/{header:host}").split(chunk) == {
        "/data/b": [0, 3],
        "/data/a": [1],
        "/data/unknown": [2],
    }


def test_split_by_time_takes_the_header_before_the_clock() -> None:
    """An event's own time counts; where it has none that can be read, it is the clock's."""
    times: list[dict[str, str]] = [{"timestamp": "1000"}, {}, {"timestamp": "soon"}, {"timestamp": "9" * 16}]
    chunk = _chunk((headers, b"") for headers in times)
    assert _partitioner("/data/{time:%Y}").split(chunk) == {"/data/1970": [0], "/data/2026": [1, 2, 3]}


def test_split_by_time_without_the_clock_has_the_word_for_no_time() -> None:
    """Whoever wants no guess gets none."""
    chunk = _chunk([({}, b""), ({}, b"")])
    assert _partitioner("/data/{time:%Y}", is_clock_used=False).split(chunk) == {"/data/unknown": range(2)}


def test_split_of_values_that_become_the_same_name_shares_a_directory() -> None:
    """Two headers that are made safe to the same name are one directory, so one file is open for it."""
    chunk = _chunk(({"host": host}, b"") for host in ("a/b", "x", "a_b", "a/b"))
    assert _partitioner("/data/{header:host}").split(chunk) == {"/data/a_b": [0, 2, 3], "/data/x": [1]}
    chunk = _chunk(({"host": host}, b"") for host in ("a/b", "a_b"))
    assert _partitioner("/data/{header:host}").split(chunk) == {"/data/a_b": range(2)}


@given(
    st.lists(
        st.fixed_dictionaries({}, optional={"host": st.text(max_size=3), "timestamp": st.text(max_size=3)}), min_size=1
    )
)
def test_split_of_any_headers_gives_each_event_to_one_directory_below_the_root(headers: list[dict[str, str]]) -> None:
    """No event is lost or doubled, and none leaves the root."""
    split = _partitioner("/data/{header:host}/{time:%H}").split(_chunk((each, b"") for each in headers))
    assert sorted(row for rows in split.values() for row in rows) == list(range(len(headers)))
    assert all(path.startswith("/data/") and path.count("/") == 3 for path in split)


def test_chosen_of_some_rows_takes_just_these() -> None:
    """Rows are a range or a list; all of them is the sequence itself."""
    assert chosen("abcd", range(1, 3)) == "bc"
    assert chosen("abcd", [0, 3]) == ["a", "d"]
    assert chosen("abcd", range(4)) == "abcd"
