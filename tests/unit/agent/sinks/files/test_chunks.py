"""Conversion of events into the chunks of files."""

from collections.abc import Iterable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from millrace.columns import columns_from_events
from millrace_server.agent.sinks.files.chunks import EventChunk, chunks_of
from tests.files_sink import Row, raw_of

HEADERS = st.dictionaries(
    st.sampled_from(["a", "b", "ü"]), st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
)
ROWS = st.lists(st.tuples(HEADERS, st.binary(max_size=4)), min_size=1, max_size=8)


def _rows(chunks: Iterable[EventChunk]) -> Iterator[tuple[int, Row]]:
    for chunk in chunks:
        columns = {key: chunk.header_values(key) for key in chunk.headers}
        for row, body in enumerate(chunk.bodies):
            headers = {key: value for key, values in columns.items() if (value := values[row]) is not None}
            yield chunk.first_sequence + row, (headers, body)


@given(st.lists(ROWS, min_size=1, max_size=5), st.sets(st.integers(0, 4)))
def test_chunks_of_any_batches_hold_their_events_in_order(batches: list[list[Row]], gaps_before: set[int]) -> None:
    """Joined or not, each event keeps its sequence, its headers and its body."""
    numbered = []
    sequence = 1
    for index, batch in enumerate(batches):
        sequence += 5 * (index in gaps_before)
        numbered.append((sequence, batch))
        sequence += len(batch)
    expected = [
        (first + row, (dict(event[0]), event[1])) for first, batch in numbered for row, event in enumerate(batch)
    ]
    assert list(_rows(chunks_of((first, raw_of(batch)) for first, batch in numbered))) == expected


def test_chunks_of_small_neighbours_are_one() -> None:
    """A channel filled event by event costs no more than one filled in batches."""
    batches = [(sequence, raw_of([({"n": str(sequence)}, b"x")])) for sequence in range(1, 501)]
    assert [chunk.count for chunk in chunks_of(batches)] == [500]


def test_chunks_of_a_large_constant_header_are_cut() -> None:
    """A header that the wire stores once does not become gigabytes when each event repeats it."""
    [columns] = columns_from_events(({"big": "x" * (1 << 20)}, b"") for _ in range(100))
    chunks = list(chunks_of([(1, columns.SerializeToString())]))
    assert [chunk.count for chunk in chunks] == [16, 16, 16, 16, 16, 16, 4]
    assert [chunk.first_sequence for chunk in chunks] == list(range(1, 101, 16))


def test_parts_of_a_chunk_are_the_events_of_the_ranges() -> None:
    """Only the requested sequences are in the parts."""
    [chunk] = chunks_of([(11, raw_of(({}, bytes([n])) for n in range(10)))])
    assert [body for part in chunk.parts([(11, 12), (20, 20)]) for body in part.bodies] == [b"\0", b"\1", b"\t"]
