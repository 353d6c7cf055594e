from collections.abc import Sequence

import pytest

from millrace.columns import columns_from_events
from millrace_server.channels.replay import ContradictionError
from millrace_server.log_tools.contents_check import ContentsCheck, Totals
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.format import Flags, Kind
from millrace_server.wal.log import LogRecord
from millrace_server.wal.records import Location


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


def state_of(next_sequence: int, reserved_sequence: int = 0) -> bytes:
    return pb.State(next_sequence=next_sequence, reserved_sequence=reserved_sequence).SerializeToString()


def keep_of(next_sequence: int, reserved_sequence: int = 0, puts: Sequence[bytes] = (), first: int = 6) -> bytes:
    """The payload of a MEMORY_STATE of puts with one event each, which has one byte of body."""
    ones = [1] * len(puts)
    return pb.MemoryState(
        state=pb.State(next_sequence=next_sequence, reserved_sequence=reserved_sequence),
        put_counts=ones,
        put_body_bytes=ones,
        put_raw_bytes=[len(put) for put in puts],
        first_sequences=[first + index for index in range(len(puts))],
        put_indexes=list(range(len(puts))),
        starts=[0] * len(puts),
        stops=ones,
        body_bytes=ones,
    ).SerializeToString()


def record_of(kind: Kind, payload: bytes) -> LogRecord:
    return LogRecord(kind, Flags(0), Location(1, 64, len(payload)), lambda: payload)


ONE, THREE = put_of(b"a"), put_of(b"b", b"c", b"d")


@pytest.fixture
def check() -> ContentsCheck:
    """A log that begins with sequence 5, after one PUT with an event."""
    check = ContentsCheck()
    check.apply(record_of(Kind.STATE, state_of(5)))
    check.apply(record_of(Kind.PUT, ONE))
    check.apply(record_of(Kind.COMMIT, commit_of(5, [ONE], [1])))
    return check


def test_apply_of_records_that_fit_follows_the_sequences(check: ContentsCheck) -> None:
    """Events before the beginning of a log were not needed any more, which is not a loss."""
    take = pb.Take(first_sequences=[5], counts=[1], body_bytes=[1]).SerializeToString()
    for kind, payload in [
        # A PUT left by a crash, without a COMMIT.
        (Kind.PUT, ONE),
        (Kind.PUT, THREE),
        (Kind.TAKE, take),
        (Kind.COMMIT, commit_of(6, [THREE], [3], take_records=1)),
        (Kind.ROLLBACK, pb.Rollback(txn_id="t").SerializeToString()),
        (Kind.SYNC_POINT, b""),
        (Kind.STATE, state_of(9)),
    ]:
        check.apply(record_of(kind, payload))
    assert (check.next_sequence, check.lost) == (9, [])
    assert check.totals == Totals(commit_count=2, event_count=4)


def test_apply_of_what_was_reserved_and_kept_follows_the_sequences(check: ContentsCheck) -> None:
    """Reserved sequences may be skipped, since events in memory had them, until the reserve is released."""
    for kind, payload in [
        (Kind.MEMORY_STATE, keep_of(6, 20)),
        (Kind.PUT, THREE),
        (Kind.COMMIT, commit_of(8, [THREE], [3])),
        (Kind.STATE, state_of(12, reserved_sequence=20)),
        (Kind.PUT, ONE),
        (Kind.PUT, ONE),
        (Kind.MEMORY_STATE, keep_of(14, 0, [ONE, ONE])),
        (Kind.COMMIT, commit_of(14)),
    ]:
        check.apply(record_of(kind, payload))
    assert (check.next_sequence, check.reserved_sequence, check.lost) == (14, 0, [])
    with pytest.raises(ContradictionError):
        check.apply(record_of(Kind.COMMIT, commit_of(15)))


@pytest.mark.parametrize(
    ("records", "words", "lost"),
    [
        ([(Kind.PUT, b"\xff")], "does not hold events", []),
        ([(Kind.PUT, b"\x08\x05")], "does not hold events: columns.body_sizes", []),
        ([(Kind.COMMIT, b"\xff")], "does not hold the message of a COMMIT", []),
        ([(Kind.COMMIT, commit_of(7))], "its first sequence is 7; those before it lead to 6", []),
        ([(Kind.PUT, ONE), (Kind.COMMIT, commit_of(9, [ONE], [1]))], "its first sequence is 9", [(6, 9)]),
        ([(Kind.PUT, ONE), (Kind.COMMIT, commit_of(6, [THREE], [3]))], "it has puts of", [(6, 8)]),
        ([(Kind.COMMIT, commit_of(6, take_records=1))], "it has 1 takes; before it lie 0", []),
        ([(Kind.STATE, state_of(8))], "the next sequence is 8; those before it lead to 6", [(6, 7)]),
        ([(Kind.MEMORY_STATE, keep_of(8))], "the next sequence is 8; those before it lead to 6", [(6, 7)]),
        ([(Kind.MEMORY_STATE, b"\xff")], "does not hold the message of a MEMORY_STATE", []),
        ([(Kind.MEMORY_STATE, keep_of(6, 20)), (Kind.COMMIT, commit_of(21))], "its first sequence is 21", [(6, 20)]),
        (
            [(Kind.MEMORY_STATE, keep_of(6, 20)), (Kind.PUT, THREE), (Kind.MEMORY_STATE, keep_of(9, 20, [ONE], 7))],
            "it has puts of .* before it lie puts of",
            [(7, 7)],
        ),
    ],
)
def test_apply_of_a_record_that_contradicts_says_how(
    check: ContentsCheck, records: list[tuple[Kind, bytes]], words: str, lost: list[tuple[int, int]]
) -> None:
    """This includes records with valid checksums."""
    *before, last = records
    for record in before:
        check.apply(record_of(*record))
    with pytest.raises(ContradictionError, match=words):
        check.apply(record_of(*last))
    assert [pair for pair in check.lost if pair[0] <= pair[1]] == (lost or check.lost)


def test_apply_behind_damage_names_what_was_lost(check: ContentsCheck) -> None:
    """The next COMMIT or STATE states where the sequences continue."""
    check.skip_damage()
    check.apply(record_of(Kind.PUT, ONE))
    check.apply(record_of(Kind.COMMIT, commit_of(9, [ONE], [1])))
    check.skip_damage()
    # Its PUT was lost with the damaged part.
    check.apply(record_of(Kind.COMMIT, commit_of(10, [THREE], [3])))
    check.skip_damage()
    check.apply(record_of(Kind.STATE, state_of(20)))
    check.skip_damage()
    check.apply(record_of(Kind.STATE, state_of(20)))
    assert check.lost == [(6, 8), (10, 12), (13, 19)]
