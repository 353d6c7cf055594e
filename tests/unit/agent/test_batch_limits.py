import pytest

from millrace_server.agent.batch_limits import BODY_BYTES_MAX, BatchLimits
from millrace_server.agent.events import EventTable
from tests.source_writers import batch_stamp, memory, registry_of, table_of


def limits_of(events_max: int = 3, body_bytes_max: int = 1 << 40) -> BatchLimits:
    return BatchLimits(registry_of(a=memory(body_bytes_max=2 * body_bytes_max)), ["a"], events_max)


def pieces_of(limits: BatchLimits, table: EventTable, first: int = 0) -> list[tuple[list[bytes], int, int]]:
    stamp = batch_stamp(first, first + table.count - 1)
    return [(list(piece.bodies), mine.first, mine.last) for piece, mine in limits.pieces(table, stamp)]


async def test_pieces_keep_the_number_of_events() -> None:
    """Each event keeps its number."""
    assert pieces_of(limits_of(3), table_of(b"0", b"1", b"2", b"3"), 10) == [
        ([b"0", b"1", b"2"], 10, 12),
        ([b"3"], 13, 13),
    ]


async def test_pieces_keep_the_bytes_of_bodies() -> None:
    """A larger event is a part of its own."""
    table = table_of(b"1234", b"5", b"67", b"890123", b"", b"4")
    assert [bodies for bodies, *_ in pieces_of(limits_of(100, 5), table)] == [
        [b"1234", b"5"],
        [b"67"],
        [b"890123"],
        [b"", b"4"],
    ]


async def test_pieces_of_a_batch_that_keeps_the_limits_is_that_batch() -> None:
    """Nothing is copied."""
    table = table_of(b"1", b"2")
    [(piece, stamp)] = limits_of().pieces(table, batch_stamp(5, 6))
    assert piece is table
    assert stamp == batch_stamp(5, 6)


@pytest.mark.parametrize("count", [0, 4])
async def test_pieces_of_a_batch_with_other_numbers_than_events_is_that_batch(count: int) -> None:
    """This holds whatever the size of the batch, also without events."""
    table = table_of(*[b"x"] * count)
    assert [piece for piece, _ in limits_of(3).pieces(table, batch_stamp(0, 99))] == [table]


async def test_pieces_follow_limits_that_change_on_the_way() -> None:
    """Each piece is cut after the one before is stored."""
    limits = limits_of(8)
    table = table_of(*[b"x"] * 15)
    pieces = limits.pieces(table, batch_stamp(0, 14))
    counts = [next(pieces)[0].count]
    limits.note_too_large()
    counts += [piece.count for piece, _ in pieces]
    assert counts == [8, 4, 3]


async def test_note_too_large_halves_down_to_one_and_stored_batches_double_again() -> None:
    """The limits return to the configured ones, and never exceed them."""
    limits = limits_of(100)
    for _ in range(50):
        limits.note_too_large()
    assert (limits.events_max, limits.body_bytes_max) == (1, 1)
    for _ in range(10_000):
        limits.note_stored()
    assert (limits.events_max, limits.body_bytes_max) == (100, BODY_BYTES_MAX)


async def test_limits_without_any_channel_are_the_source_s_own() -> None:
    """A deleted channel must not make reading the limits fail."""
    limits = BatchLimits(registry_of(), ["gone"], 7)
    assert (limits.events_max, limits.body_bytes_max) == (7, BODY_BYTES_MAX)
