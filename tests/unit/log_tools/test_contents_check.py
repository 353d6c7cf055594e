from collections.abc import Sequence

import pytest

from millrace.columns import columns_from_events
from millrace_server.log_tools.contents_check import ContentsCheck, ContradictionError, Totals
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.format import Kind


def put_of(*bodies: bytes) -> bytes:
    """The payload of a PUT."""
    (columns,) = columns_from_events([({}, body) for body in bodies])
    return columns.SerializeToString()


def commit_of(first: int, puts: Sequence[bytes] = (), counts: Sequence[int] = (), take_records: int = 0) -> bytes:
    """The payload of a COMMIT of puts with one byte of body in each event."""
    return pb.Commit(
        first_sequence=first,
        put_counts=counts,
        put_body_bytes=counts,
        put_raw_bytes=[len(put) for put in puts],
        take_records=take_records,
    ).SerializeToString()


def state_of(next_sequence: int, claim: pb.Claim | None = None) -> bytes:
    return pb.State(next_sequence=next_sequence, claim=claim).SerializeToString()


ONE, THREE = put_of(b"a"), put_of(b"b", b"c", b"d")


@pytest.fixture
def check() -> ContentsCheck:
    """A log that begins with sequence 5, of which one event was put."""
    check = ContentsCheck()
    check.apply(Kind.STATE, state_of(5))
    check.apply(Kind.PUT, ONE)
    check.apply(Kind.COMMIT, commit_of(5, [ONE], [1]))
    return check


def test_apply_of_records_that_fit_follows_the_sequences(check: ContentsCheck) -> None:
    """Where a log begins, what was before it went because nothing needed it: that is no loss."""
    take = pb.Take(first_sequences=[5], counts=[1], body_bytes=[1]).SerializeToString()
    for kind, payload in [
        # A crash left it: its COMMIT never came.
        (Kind.PUT, ONE),
        (Kind.PUT, THREE),
        (Kind.TAKE, take),
        (Kind.COMMIT, commit_of(6, [THREE], [3], take_records=1)),
        (Kind.ROLLBACK, pb.Rollback(txn_id="t").SerializeToString()),
        (Kind.MARK, b""),
        (Kind.STATE, state_of(9)),
    ]:
        check.apply(kind, payload)
    assert (check.next_sequence, check.next_sequence_seen, check.lost) == (9, 9, [])
    assert check.totals == Totals(commit_count=2, event_count=4, taken_count=1)


@pytest.mark.parametrize(
    ("records", "words", "lost"),
    [
        ([(Kind.PUT, b"\xff")], "does not hold events", []),
        ([(Kind.PUT, b"\x08\x05")], "does not hold events: columns.body_sizes", []),
        ([(Kind.COMMIT, b"\xff")], "does not hold what a COMMIT says", []),
        ([(Kind.COMMIT, commit_of(7))], "its first sequence is 7; those before it lead to 6", []),
        ([(Kind.PUT, ONE), (Kind.COMMIT, commit_of(9, [ONE], [1]))], "its first sequence is 9", [(6, 9)]),
        ([(Kind.PUT, ONE), (Kind.COMMIT, commit_of(6, [THREE], [3]))], "it has puts of", [(6, 8)]),
        ([(Kind.COMMIT, commit_of(6, take_records=1))], "and 1 takes; before it lie puts of .* and 0 takes", []),
        ([(Kind.STATE, state_of(8))], "the next sequence is 8; those before it lead to 6", [(6, 7)]),
    ],
)
def test_apply_of_a_record_that_contradicts_says_how(
    check: ContentsCheck, records: list[tuple[Kind, bytes]], words: str, lost: list[tuple[int, int]]
) -> None:
    """Also one whose checksums are right."""
    *before, last = records
    for record in before:
        check.apply(*record)
    with pytest.raises(ContradictionError, match=words):
        check.apply(*last)
    assert [pair for pair in check.lost if pair[0] <= pair[1]] == (lost or check.lost)


def test_apply_behind_damage_names_what_was_lost(check: ContentsCheck) -> None:
    """The next COMMIT or STATE tells where the sequences go on."""
    check.skip()
    check.apply(Kind.PUT, ONE)
    check.apply(Kind.COMMIT, commit_of(9, [ONE], [1]))
    check.skip()
    # Its PUT was lost with what was damaged.
    check.apply(Kind.COMMIT, commit_of(10, [THREE], [3]))
    check.skip()
    check.apply(Kind.STATE, state_of(20))
    check.skip()
    check.apply(Kind.STATE, state_of(20))
    assert check.lost == [(6, 8), (10, 12), (13, 19)]
    assert check.next_sequence_seen == 20


def test_apply_of_claims_remembers_the_highest_epoch(check: ContentsCheck) -> None:
    """It is the one that must not be granted again."""
    for epoch in (3, 7, 5):
        check.apply(Kind.CLAIM, pb.Claim(reader_id="r", epoch=epoch).SerializeToString())
    check.apply(Kind.STATE, state_of(6, pb.Claim(reader_id="s", epoch=6)))
    assert check.claim_seen == pb.Claim(reader_id="r", epoch=7)
