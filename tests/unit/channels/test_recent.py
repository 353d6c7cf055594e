from concurrent.futures import ThreadPoolExecutor

from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.recent import READ_BYTES_MAX, RecentColumns, RecentMemory
from millrace_server.wal.writer import Location
from tests.channel_events import stored


class Source:
    """A log."""

    def read(self, _stored: StoredColumns) -> bytes:
        return b""


def columns(length: int) -> StoredColumns:
    one = stored(b"x" * length)
    one.found_at(Location(1, 0, one.raw_bytes), Source())
    return one


def test_add_beyond_the_room_forgets_the_oldest() -> None:
    """As many as the newest takes room; never more than that is kept."""
    small = [columns(10) for _ in range(4)]
    recent = RecentColumns(sum(one.raw_bytes for one in small))
    for one in small:
        recent.add(one)
    assert all(one.is_in_memory for one in small)
    recent.add(columns(1))
    assert [one.is_in_memory for one in small] == [False, True, True, True]
    recent.add(columns(12))
    assert [one.is_in_memory for one in small] == [False, False, True, True]


def test_add_of_more_than_there_is_room_for_keeps_nothing() -> None:
    """It lies in its log, as everything does that is forgotten."""
    recent = RecentColumns(50)
    small, large = columns(1), columns(100)
    recent.add(small)
    recent.add(large)
    assert (small.is_in_memory, large.is_in_memory) == (False, False)
    recent.add(again := columns(1))
    assert again.is_in_memory


def test_add_from_several_threads_keeps_the_account() -> None:
    """Channels are read back on threads of their own."""
    recent = RecentColumns(1000)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(recent.add, (columns(number % 50) for number in range(2000))))
    kept = list(recent._columns)
    assert recent._bytes == sum(one.raw_bytes for one in kept) <= 1000
    assert all(one.is_in_memory for one in kept)


def test_what_was_read_back_outlasts_what_is_written_meanwhile() -> None:
    """A writer at full speed does not take from readers what was read ahead for them."""
    memory = RecentMemory()
    ahead = columns(READ_BYTES_MAX // 2)
    memory.read.add(ahead)
    for _ in range(3):
        memory.written.add(columns(READ_BYTES_MAX // 2))
    assert ahead.is_in_memory
