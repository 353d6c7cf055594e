"""Where partitions are read from, and the numbers of their batches."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_server.agent.sources.kafka.positions import PartitionFacts, PieceCutter, Start, producer_id_of, start_of
from millrace_server.agent.sources.stored_ranges import Ranges
from millrace_server.agent.supervision import ComponentFailedError
from millrace_server.channels.config import check_identifier
from millrace_server.channels.stamps import Stamp, StampLedger

ID = "kafka/orders/0/x"


def facts(stored: Ranges = ((),), committed: int | None = None, low: int = 0, high: int = 1_000) -> PartitionFacts:
    return PartitionFacts("orders-0", low, high, committed, ID, stored)


@pytest.mark.parametrize(
    ("known", "reset", "expected"),
    [
        pytest.param(facts(), "earliest", Start(0, 0, ""), id="first-start"),
        pytest.param(facts(low=7), "earliest", Start(7, 7, ""), id="first-start-of-an-old-partition"),
        pytest.param(facts(), "latest", Start(1_000, 1_000, ""), id="first-start-at-the-end"),
        pytest.param(facts(committed=500), "latest", Start(500, 500, ""), id="committed"),
        pytest.param(facts([[(0, 599)]], 500), "latest", Start(600, 600, ""), id="commit-lost"),
        pytest.param(facts([[(0, 599)]]), "latest", Start(600, 600, ""), id="group-forgotten"),
        pytest.param(facts([[(0, 599)], [(0, 549)]], 500), "earliest", Start(550, 550, ""), id="stored-in-one-only"),
        pytest.param(facts([[(0, 599)], [(0, 549)]]), "earliest", Start(550, 550, ""), id="the-same-without-group"),
        pytest.param(facts([[(40, 59)], []]), "latest", Start(40, 40, ""), id="first-batch-in-one-only"),
        pytest.param(facts([[(0, 99)]], 700), "earliest", Start(700, 700, ""), id="operator-skips"),
        pytest.param(facts([[(0, 99), (200, 299)]], 50), "earliest", Start(100, 100, ""), id="operator-goes-back"),
    ],
)
def test_start_of_known_offsets_begins_at_what_is_not_stored(
    known: PartitionFacts, reset: str, expected: Start
) -> None:
    """The group's offset counts, corrected by what the channels have stored."""
    assert start_of(known, reset) == expected


def test_start_of_offset_that_is_gone_covers_what_is_gone() -> None:
    """Records that were deleted before they were read leave no gap in the numbers, unless existing ones are skipped."""
    known = facts([[(0, 99)]], committed=100, low=300)
    reason = "offset 100 is gone; the oldest record has offset 300"
    assert start_of(known, "earliest") == Start(300, 100, reason)
    assert start_of(known, "latest") == Start(1_000, 1_000, reason)


def test_start_of_offset_behind_the_end_is_reset() -> None:
    """A group's offset behind the partition's end is no place to start from."""
    start = start_of(facts(committed=2_000), "earliest")
    assert start.position == 0
    assert "2000" in start.reset_reason


@pytest.mark.parametrize("known", [facts(), facts(committed=3, low=9), facts(committed=2_000)])
def test_start_of_offset_to_be_reset_when_resets_fail_asks_the_operator(known: PartitionFacts) -> None:
    """With `fail`, an operator decides where to start."""
    with pytest.raises(ComponentFailedError, match="set the offset of the group"):
        start_of(known, "fail")


def test_start_of_partition_that_is_shorter_than_what_is_stored_asks_the_operator() -> None:
    """Where brokers use offsets again, new records must not pass for stored ones in silence."""
    with pytest.raises(ComponentFailedError, match=f"millrace producer forget CHANNEL {ID}"):
        start_of(facts([[(0, 1_099)]], committed=1_100), "earliest")


def test_producer_id_of_longest_names_is_valid_and_distinct() -> None:
    """Every part of a partition's identity makes another producer, within what an id may be."""
    parts = ("cluster", "id", "g" * 255, "t" * 249, 2**31 - 1)
    ids = [producer_id_of(*parts)]
    ids += [producer_id_of(*(*parts[:at], "other", *parts[at + 1 :])) for at in range(4)]  # type: ignore[arg-type]  # five parts
    ids.append(producer_id_of(*parts[:4], 0))
    assert len(set(ids)) == len(ids)
    for each in ids:
        check_identifier("producer_id", each)


def test_pieces_of_sparse_offsets_cover_the_gaps() -> None:
    """A batch's numbers reach from the end of the one before it to its last record."""
    cutter = PieceCutter(Start(10, 10, ""), [[]])
    pieces = [*cutter.pieces([12, 13, 19], [1, 1, 1], 2, 100), *cutter.pieces([25], [1], 2, 100)]
    assert [(piece.first_number, piece.last_number) for piece in pieces] == [(10, 13), (14, 19), (20, 25)]


def test_pieces_of_large_records_respect_the_bytes_but_for_single_ones() -> None:
    """Bodies are limited together; one that is larger goes alone."""
    pieces = PieceCutter(Start(0, 0, ""), [[]]).pieces([0, 1, 2, 3], [4, 4, 4, 20], 10, 9)
    assert [(piece.start, piece.stop) for piece in pieces] == [(0, 2), (2, 3), (3, 4)]


@dataclass
class _Partition:
    """A partition and the two channels that a source fills from it."""

    offsets: list[int]
    high: int
    ledgers: list[StampLedger] = field(default_factory=lambda: [StampLedger(), StampLedger()])
    stored: list[list[int]] = field(default_factory=lambda: [[], []])
    committed: int | None = None

    def run(self, draw: st.DataObject, *, may_crash: bool) -> None:
        """Reads to the end, or crashes between any two steps."""
        ranges = [list(ledger.intervals_of(ID)) for ledger in self.ledgers]
        start = start_of(PartitionFacts("p", 0, self.high, self.committed, ID, ranges), "earliest")
        cutter = PieceCutter(start, ranges)
        coming = [offset for offset in self.offsets if offset >= start.position]
        while coming:
            count = draw.draw(st.integers(1, 6))
            fetched, coming = coming[:count], coming[count:]
            for piece in cutter.pieces(fetched, [1] * len(fetched), 3, 100):
                stamp = Stamp(ID, piece.first_number, piece.last_number)
                for ledger, stored in zip(self.ledgers, self.stored, strict=True):
                    if may_crash and draw.draw(st.integers(0, 9)) == 0:
                        return
                    part = fetched[piece.start : piece.stop]
                    for first, stop in ledger.new_ranges(stamp, len(part)):
                        stored.extend(part[first:stop])
                    ledger.accept(stamp)
                if draw.draw(st.booleans()):
                    self.committed = piece.last_number + 1


@given(st.sets(st.integers(0, 60), min_size=1), st.data())
def test_runs_with_crashes_and_compaction_store_each_record_once(offsets: set[int], draw: st.DataObject) -> None:
    """Whatever is compacted away, and wherever runs crash or commits are lost, no record is missed or repeated."""
    partition = _Partition(sorted(offsets), high=61)
    for _ in range(draw.draw(st.integers(0, 5))):
        partition.run(draw, may_crash=True)
        removed = draw.draw(st.sets(st.sampled_from(sorted(offsets)), max_size=3))
        partition.offsets = [offset for offset in partition.offsets if offset not in removed]
    partition.run(draw, may_crash=False)
    for ledger, stored in zip(partition.ledgers, partition.stored, strict=True):
        assert stored == sorted(set(stored))
        assert set(partition.offsets) <= set(stored)
        # One interval, and a hole only where records vanished that one channel has stored and the other has not.
        assert len(list(ledger.intervals_of(ID))) <= 1 + len(offsets) - len(partition.offsets)
