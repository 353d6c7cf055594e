import time
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.log_columns import READ_BYTES_MAX, WRITTEN_BYTES_MAX, RecentColumns, RecentMemory
from millrace_server.wal.records import Location
from tests.channel_events import stored


class Source:
    """A log from which columns are read."""

    def read(self, _stored: StoredColumns) -> bytes:
        return b""


def columns(length: int) -> StoredColumns:
    one = stored(b"x" * length)
    one.locate(Location(1, 0, one.raw_bytes), Source())
    return one


def test_add_beyond_the_space_forgets_the_oldest() -> None:
    """The oldest columns are dropped until the newest fit; the limit is never exceeded."""
    small = [columns(10) for _ in range(4)]
    recent = RecentColumns(sum(one.raw_bytes for one in small))
    for one in small:
        recent.add(one)
    assert all(one.is_in_memory for one in small)
    recent.add(columns(1))
    assert [one.is_in_memory for one in small] == [False, True, True, True]
    recent.add(columns(12))
    assert [one.is_in_memory for one in small] == [False, False, True, True]


def test_add_of_more_than_there_is_space_for_keeps_nothing() -> None:
    """The log still has the columns, as it has all that are dropped."""
    recent = RecentColumns(50)
    small, large = columns(1), columns(100)
    recent.add(small)
    recent.add(large)
    assert (small.is_in_memory, large.is_in_memory) == (False, False)
    recent.add(again := columns(1))
    assert again.is_in_memory


def test_add_from_several_threads_keeps_the_account() -> None:
    """Several channels may be opened at the same time, each on a thread of its own."""
    recent = RecentColumns(1000)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(recent.add, (columns(number % 50) for number in range(2000))))
    kept = list(recent._columns)
    assert recent._bytes == sum(one.raw_bytes for one in kept) <= 1000
    assert all(one.is_in_memory for one in kept)


def test_add_while_another_thread_adds_counts_both() -> None:
    """The bytes of both threads are counted, and no more columns than needed are dropped."""

    class Yielding:
        """Columns that let another thread run first."""

        is_in_memory = True

        @property
        def raw_bytes(self) -> int:
            time.sleep(0)
            return 10

        def forget(self) -> None:
            self.is_in_memory = False

    recent = RecentColumns(1000)
    added = [Yielding() for _ in range(2000)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda one: recent.add(cast("StoredColumns", one)), added))
    assert recent._bytes == 1000
    assert sum(one.is_in_memory for one in added) == 100


def test_what_was_read_back_outlasts_what_is_written_in_the_meantime() -> None:
    """A writer at full speed does not displace what was read ahead for readers."""
    memory = RecentMemory()
    ahead = columns(READ_BYTES_MAX // 2)
    memory.read.add(ahead)
    for _ in range(3):
        memory.written.add(columns(READ_BYTES_MAX // 2))
    assert ahead.is_in_memory


def test_what_is_written_takes_little_space() -> None:
    """Requests at full speed use no more memory than a processor's cache has."""
    memory = RecentMemory()
    older, newer = columns(WRITTEN_BYTES_MAX * 2 // 3), columns(WRITTEN_BYTES_MAX * 2 // 3)
    memory.written.add(older)
    memory.written.add(newer)
    assert (older.is_in_memory, newer.is_in_memory) == (False, True)
