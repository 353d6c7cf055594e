import os
from pathlib import Path

import pytest

from millrace_server.agent.sources.stored_ranges import Ranges
from millrace_server.agent.sources.taildir.discovery import FileIdentifier, FoundFile
from millrace_server.agent.sources.taildir.positions import FilePosition
from tests.unit.agent.sources.taildir.tailing import append, config_of, numbered

LINE_BYTES = len(b"line 000000 of a log\n")


class FirstReads:
    """First reads of one file; `ledger` contains what one channel has stored."""

    def __init__(self, path: Path, **settings: object) -> None:
        self._path = path
        self.ledger: dict[str, list[tuple[int, int]]] = {}
        self._identifier = FileIdentifier(config_of(path, **settings), "app", self._stored_ranges)

    def _stored_ranges(self, producer_id: str) -> Ranges:
        return [[], self.ledger.get(producer_id, [])]

    def look(self, *known_ids: str, has_no_positions: bool = False) -> FilePosition | None:
        found = FoundFile(str(self._path), self._path.stat(), "pattern")
        return self._identifier.identify(found, known_ids, has_no_positions=has_no_positions)

    def identity(self, *known_ids: str, has_no_positions: bool = False) -> str:
        seen = self.look(*known_ids, has_no_positions=has_no_positions)
        assert seen is not None
        return seen.producer_id


def test_identify_of_an_empty_file_waits(log: Path) -> None:
    """A file without content cannot be identified; a hole is not content."""
    log.touch()
    sights = FirstReads(log)
    assert sights.look() is None
    os.truncate(log, 1 << 20)
    assert sights.look() is None


def test_identify_of_a_file_reports_what_it_begins_with(log: Path) -> None:
    """A file is identified by its beginning, and is read from there."""
    append(log, *numbered(0, 100))
    seen = FirstReads(log).look()
    assert seen is not None
    assert (seen.position, seen.head.size, seen.tail.size) == (0, 1024, 0)
    assert seen.head.matches(log.read_bytes()[:1024])
    assert (seen.path, seen.place, seen.pattern) == (str(log), str(log), "pattern")
    assert seen.key == (log.stat().st_dev, log.stat().st_ino)


def test_identify_after_a_hole_begins_with_what_is_written(log: Path) -> None:
    """Bytes of a hole are skipped, except those that may begin a wide character."""
    with log.open("wb") as writer:
        writer.seek((1 << 20) + 10)
        writer.write(b"line\n")
    seen = FirstReads(log).look()
    assert seen is not None
    assert seen.position == seen.head.start == (1 << 20) + 8


def test_identify_of_files_that_begin_alike_assigns_each_an_identity(log: Path) -> None:
    """No identity is given twice, whether channels know it or another file has it."""
    append(log, *numbered(0, 10))
    sights = FirstReads(log)
    first = sights.identity()
    assert sights.identity() == first, "nothing tells that it is another file"
    second = sights.identity(first)
    sights.ledger[second] = [(0, 5)]
    third = sights.identity(first)
    assert len({first, second, third}) == 3


def test_identify_with_nothing_known_asks_the_channels(log: Path) -> None:
    """A file known to the channels is recognized even after it has grown; of several alike the last one counts."""
    append(log, *numbered(0, 1))
    sights = FirstReads(log)
    first = sights.identity()
    sights.ledger[first] = [(0, LINE_BYTES - 1)]
    second = sights.identity()
    sights.ledger[second] = [(0, LINE_BYTES - 1)]
    append(log, *numbered(1, 100))
    assert sights.identity(has_no_positions=True) == second
    assert sights.identity() not in {first, second}


def test_identify_with_nothing_known_takes_no_longer_files_identity(log: Path) -> None:
    """If channels have stored more than the file contains, they mean another file."""
    append(log, *numbered(0, 10))
    sights = FirstReads(log)
    other = sights.identity()
    sights.ledger[other] = [(0, 10 * LINE_BYTES)]
    assert sights.identity(has_no_positions=True) != other
    sights.ledger[other] = [(0, 10 * LINE_BYTES - 1)]
    assert sights.identity(has_no_positions=True) == other


@pytest.mark.parametrize(
    ("content", "charset", "position"),
    [
        (b"one\ntwo\n", "utf-8", 8),
        (b"one\ntwo\nthr", "utf-8", 8),
        (b"thr", "utf-8", 0),
        (b"x" * 70_000, "utf-8", 70_000),
        ("one\nਊĀ".encode("utf-16-le"), "utf-16-le", 8),
    ],
    ids=["whole lines", "unfinished", "no line", "no line near", "wide"],
)
def test_identify_with_skipping_begins_at_the_last_line(log: Path, content: bytes, charset: str, position: int) -> None:
    """The skipped part ends at a line end, so that no line is read in part."""
    log.write_bytes(content)
    seen = FirstReads(log, skip_to_end=True, charset=charset).look(has_no_positions=True)
    assert seen is not None
    assert seen.position == position
    assert (seen.tail.end, seen.tail.matches(content[max(position - 256, 0) : position])) == (position, True)


def test_identify_of_a_file_that_was_replaced_in_the_meantime_raises(log: Path) -> None:
    """A file that replaced the one found is not taken for it."""
    append(log, b"one")
    found = FoundFile(str(log), log.stat(), "pattern")
    log.rename(log.with_name("old"))
    append(log, b"two")
    identifier = FileIdentifier(config_of(log), "app", lambda _id: [])
    with pytest.raises(FileNotFoundError, match="another file is in its place"):
        identifier.identify(found, (), has_no_positions=False)
