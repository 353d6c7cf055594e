"""The limits of open files, and when they are finished."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_server.agent.sinks.files import open_files
from millrace_server.agent.sinks.files.chunks import EventChunk, Rows, chunks_of
from millrace_server.agent.sinks.files.local_target import LocalTarget
from millrace_server.agent.sinks.files.open_files import OpenFiles, RollLimits, SequenceRanges
from millrace_server.agent.sinks.files.writers import TextWriter
from tests.files_sink import raw_of, rows_of

LIMITS = RollLimits(file_bytes=100, event_count=10, open_seconds=60.0, idle_seconds=20.0, open_files_max=2)


class BufferingWriter(TextWriter):
    """Buffers everything until `write_buffered`."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, "none", append_newline=False)
        self.held: list[tuple[EventChunk, Rows]] = []

    @property
    def buffered_bytes(self) -> int:  # type: ignore[override] # a text file's is always 0
        """The number of buffered bytes."""
        return sum(len(body) for chunk, _ in self.held for body in chunk.bodies)

    def write(self, chunk: EventChunk, rows: Rows) -> None:
        self.held.append((chunk, rows))

    def write_buffered(self) -> None:
        for chunk, rows in self.held:
            super().write(chunk, rows)
        self.held = []


@pytest.fixture
def target(tmp_path: Path) -> LocalTarget:
    """A directory, opened."""
    made = LocalTarget(tmp_path)
    made.open("sink-1")
    return made


@pytest.fixture
def files() -> Iterator[OpenFiles]:
    """No open files yet; those that are open at the end are closed."""
    made = OpenFiles(LIMITS, lambda file: TextWriter(file, "none", append_newline=False))
    yield made
    made.discard()


def _chunk(*bodies: bytes, first_sequence: int = 1) -> EventChunk:
    [chunk] = chunks_of([(first_sequence, raw_of(rows_of(bodies)))])
    return chunk


def test_get_for_a_directory_opens_one_file(files: OpenFiles, target: LocalTarget) -> None:
    """All events of a directory go to the same file until that is finished."""
    file = files.get("/data/a", target, 0.0)
    assert files.get("/data/a", target, 1.0) is file
    assert files.get("/data/b", target, 1.0).staged != file.staged


def test_due_at_follows_the_first_event_and_the_last(files: OpenFiles, target: LocalTarget) -> None:
    """A file is due when it was open for long enough, or got nothing for long enough, whichever comes first."""
    file = files.get("/data/a", target, 100.0)
    assert files.due_at(file) == files.next_due_at() == 120.0
    file.write(1, _chunk(b"x"), range(1), 115.0)
    assert files.due_at(file) == 135.0
    file.write(1, _chunk(b"x", first_sequence=2), range(1), 159.0)
    assert files.due_at(file) == 160.0


def test_is_full_at_either_limit(files: OpenFiles, target: LocalTarget) -> None:
    """A file is full at its event limit, or at about its size limit."""
    file = files.get("/data/a", target, 0.0)
    file.write(1, _chunk(*[b""] * 9), range(9), 0.0)
    assert not files.is_full(file)
    assert files.space_in(file) == 1
    file.write(1, _chunk(b"", first_sequence=10), range(1), 0.0)
    assert files.is_full(file)
    other = files.get("/data/b", target, 0.0)
    other.write(1, _chunk(b"x" * 100), range(1), 0.0)
    assert files.is_full(other)


def test_to_evict_for_a_new_directory_is_the_least_recent(files: OpenFiles, target: LocalTarget) -> None:
    """At the maximum a new file replaces the least recently written one."""
    first = files.get("/data/a", target, 0.0)
    second = files.get("/data/b", target, 0.0)
    assert files.to_evict_for("/data/a") is None
    assert files.to_evict_for("/data/c") is first
    files.get("/data/a", target, 1.0)
    assert files.to_evict_for("/data/c") is second


def test_bound_memory_writes_the_largest(target: LocalTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of all files is bounded; the largest buffer is written first."""
    monkeypatch.setattr(open_files, "BUFFERED_BYTES_MAX", 100)
    files = OpenFiles(LIMITS, BufferingWriter)
    small, large = files.get("/data/a", target, 0.0), files.get("/data/b", target, 0.0)
    small.write(1, _chunk(b"x" * 40), range(1), 0.0)
    large.write(1, _chunk(b"x" * 60), range(1), 0.0)
    files.bound_memory()
    assert (small.buffered_bytes, large.buffered_bytes) == (40, 60)
    large.write(1, _chunk(b"x", first_sequence=2), range(1), 0.0)
    files.bound_memory()
    assert (small.buffered_bytes, large.buffered_bytes) == (40, 0)
    assert large.file_bytes == 61
    files.discard()


def test_discard_of_all_leaves_nothing(files: OpenFiles, target: LocalTarget) -> None:
    """Unfinished files are removed."""
    for name in "ab":
        files.get(f"/data/{name}", target, 0.0).write(1, _chunk(b"x"), range(1), 0.0)
    files.discard()
    assert list(target.staging.iterdir()) == []
    assert list(files) == []


def test_add_of_neighbours_makes_one_range() -> None:
    """A contiguous part of a channel costs one range, however it was added."""
    ranges = SequenceRanges()
    ranges.add(1, range(10))
    ranges.add(11, range(5))
    ranges.add(16, [0, 1, 4])
    assert list(ranges) == [(1, 17), (20, 20)]
    assert (ranges.first, ranges.last) == (1, 20)


def test_add_of_lower_sequences_keeps_them_apart() -> None:
    """Events that another reader nacked arrive late, and are recorded as they are."""
    ranges = SequenceRanges()
    ranges.add(100, range(2))
    ranges.add(7, range(2))
    assert (ranges.first, ranges.last) == (7, 101)


@given(st.sets(st.integers(0, 50), min_size=1))
def test_add_of_any_rows_holds_exactly_these(rows: set[int]) -> None:
    """The ranges cover what was added and nothing else."""
    ranges = SequenceRanges()
    ranges.add(1_000, sorted(rows))
    assert {number for first, last in ranges for number in range(first, last + 1)} == {1_000 + row for row in rows}
