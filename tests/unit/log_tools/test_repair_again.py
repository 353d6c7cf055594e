"""What a second repair keeps of a log that a repair has written, and what it names."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace_server.channels.stamps import Stamp
from millrace_server.log_tools.read_only_disk import ReadOnlyFile
from millrace_server.log_tools.repair import Repair, repair
from millrace_server.log_tools.salvage import Salvage, salvage
from millrace_server.log_tools.view import open_view
from millrace_server.wal.checkpoints import NEWEST, PREVIOUS
from millrace_server.wal.format import RECORD_HEAD_BYTES, SEGMENT_HEADER_BYTES, Kind, SegmentHeader
from millrace_server.wal.reading import SegmentScanner
from tests.channel_events import append, begin_with_takes
from tests.unit.log_tools.kept_channels import (
    NAME,
    TOOLS,
    copied,
    flip,
    layout_of,
    open_channel,
    opened_again,
    segments,
)

_SEGMENT_BYTES = 100_000
"""All records of a test fit into one segment."""

_MEMORY = {"memory_capacity": 100, "memory_byte_capacity": 1 << 20}
_KINDS = {Kind.PUT, Kind.COMMIT, Kind.MEMORY_STATE}
_KEPT_ROUNDS = (1, 3, 4, 6)
"""Rounds that the first repair of `gappy` keeps: there are gaps before, between and behind them."""


async def _put(base: Path, rounds: range, *, taken: int = 0, **limits: Any) -> None:
    async with open_channel(base, segment_bytes_max=_SEGMENT_BYTES, **limits) as channel:
        for number in rounds:
            stamp = Stamp("producer", 10 * number, 10 * number + 9)
            await append(channel, *[b"%d of %d" % (index, number) for index in range(10)], stamp=stamp)
        if taken:
            await channel.transactions.commit([await begin_with_takes(channel, taken)], None)


def _damage(home: Path, *indexes: int) -> None:
    """Damages some of the records that have events or give them effect, and leaves no checkpoint that knows of them."""
    for name in (NEWEST, PREVIOUS):
        (home / name).unlink(missing_ok=True)
    found: list[tuple[Path, int]] = []
    for segment in segments(home):
        content = segment.read_bytes()
        records = SegmentScanner(ReadOnlyFile.of(content), SegmentHeader.decode(content)).records()
        found += [(segment, record.position) for record in records if record.head.kind in _KINDS]
    for index in indexes:
        segment, position = found[index]
        flip(segment, position + RECORD_HEAD_BYTES)


def _repaired(home: Path, keep: Path) -> Repair:
    done = repair(layout_of(home), TOOLS, keep=keep, applies=True)
    assert done.report is not None
    assert done.report.is_good, done.report.sentences
    return done


@pytest.mark.parametrize("lost", [1, 3], ids=["gap between", "gap at the end"])
def test_repair_of_three_records_behind_a_repair_gives_up_nothing_that_can_be_read(tmp_path: Path, lost: int) -> None:
    """A repair's reserve is no memory's: what was consumed before it is not lost, and puts keep their places."""
    home = tmp_path / NAME
    asyncio.run(_put(tmp_path, range(4), taken=10))
    _damage(home, 2 * lost)
    first = _repaired(home, tmp_path / "first").salvage
    assert first is not None
    assert first.lost == [(10 * lost + 1, 10 * lost + 10)]
    asyncio.run(_put(tmp_path, range(4, 8)))
    # Behind the two PUT records that were kept: the next one's COMMIT, and both records of the one behind that.
    _damage(home, 5, 6, 7)
    second = _repaired(home, tmp_path / "second").salvage
    assert second is not None
    assert second.lost == [(51, 60)]
    assert second.unstamped == [(41, 60)]
    events, next_sequence = opened_again(tmp_path)
    kept = [10 * number + index for number in range(1, 8) if number not in {lost, 5} for index in range(10)]
    assert events == [(index + 1, b"%d of %d" % (index % 10, index // 10)) for index in kept]
    assert next_sequence == 81


def test_repair_without_memory_states_behind_a_repair_names_nothing_from_before_it(tmp_path: Path) -> None:
    """Events in memory have sequences behind all that the first repair kept: none before them is lost."""
    home = tmp_path / NAME
    asyncio.run(_put(tmp_path, range(4), taken=10))
    _damage(home, 2)
    _repaired(home, tmp_path / "first")
    asyncio.run(_put(tmp_path, range(4, 6), **_MEMORY))
    _damage(home, -1, -2)
    second = _repaired(home, tmp_path / "second").salvage
    assert second is not None
    assert second.lost
    assert all(first > 40 for first, _ in [*second.lost, *second.unstamped])


@pytest.fixture(scope="module")
def gappy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log that a repair has written with gaps in it: 10 events in each of 8 rounds, of which it keeps some."""
    base = tmp_path_factory.mktemp("gappy")
    asyncio.run(_put(base, range(8), taken=10))
    _damage(base / NAME, *[2 * number for number in range(8) if number not in _KEPT_ROUNDS])
    _repaired(base / NAME, base / "kept")
    return base / NAME


def _salvaged(home: Path) -> Salvage:
    with open_view(layout_of(home), is_live=False) as view:
        return salvage(view, TOOLS.codec)


def _sequences(*rounds: int) -> list[tuple[int, int]]:
    return [(10 * number + 1, 10 * number + 10) for number in rounds]


def _kept(found: Salvage) -> list[tuple[int, int]]:
    return [(piece.first_sequence, piece.last_sequence) for piece in found.pieces]


def _damages(tmp_path: Path, gappy: Path, *offsets: int) -> Iterator[tuple[int, Salvage]]:
    """Yields what is found after damage to records of each kept round: 0 is its PUT, 1 its COMMIT."""
    for index, number in enumerate(_KEPT_ROUNDS):
        home = copied(gappy, tmp_path / NAME)
        _damage(home, *[2 * index + offset for offset in offsets])
        yield number, _salvaged(home)


def test_salvage_of_a_repaired_log_without_one_commit_keeps_its_events(tmp_path: Path, gappy: Path) -> None:
    """The COMMIT records on both sides say where the gaps are, so nothing is given up, and nothing else is named."""
    for _, found in _damages(tmp_path, gappy, 1):
        assert _kept(found) == _sequences(*_KEPT_ROUNDS)
        assert (found.lost, found.redelivered, found.unstamped, found.bound_from) == ([], [], [], 0)
        assert found.recovered.next_sequence == 81


@pytest.mark.parametrize("offsets", [(0,), (0, 1)], ids=["put", "put and commit"])
def test_salvage_of_a_repaired_log_without_one_put_names_its_events_alone(
    tmp_path: Path, gappy: Path, offsets: tuple[int, ...]
) -> None:
    """The gaps beside it were named by the first repair, or consumed before it."""
    for number, found in _damages(tmp_path, gappy, *offsets):
        assert found.lost == _sequences(number)
        assert _kept(found) == _sequences(*[other for other in _KEPT_ROUNDS if other != number])
        assert (found.bound_from, found.recovered.next_sequence) == (0, 81)
        assert (found.redelivered, found.unstamped) == ([], [])


def test_salvage_of_a_repaired_log_without_its_state_names_all_stamps(tmp_path: Path, gappy: Path) -> None:
    """Only the STATE had them; the gaps are known all the same."""
    home = copied(gappy, tmp_path / NAME)
    flip(segments(home)[0], SEGMENT_HEADER_BYTES + RECORD_HEAD_BYTES)
    found = _salvaged(home)
    assert _kept(found) == _sequences(*_KEPT_ROUNDS)
    assert (found.lost, found.redelivered, found.unstamped) == ([], [], [(1, 80)])
    assert found.recovered.next_sequence == 81


def test_salvage_of_a_repaired_log_without_two_commits_across_a_gap_places_what_is_certain(
    tmp_path: Path, gappy: Path
) -> None:
    """What lies before the gap follows the COMMIT before, and what lies behind it ends at the one behind."""
    home = copied(gappy, tmp_path / NAME)
    _damage(home, 1, 3)
    found = _salvaged(home)
    assert _kept(found) == _sequences(*_KEPT_ROUNDS)
