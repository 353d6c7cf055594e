"""Logs that were changed with valid checksums, and recoveries with different results."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from millrace_server.channels.commit import Receipt
from millrace_server.channels.committer import ClaimRecord
from millrace_server.channels.recovery import Recovered
from millrace_server.channels.stamps import Stamp
from millrace_server.channels.transaction import Outcome, TxnState
from millrace_server.log_tools import verify
from millrace_server.log_tools.layout import DamagedError
from millrace_server.log_tools.repair import repair
from millrace_server.log_tools.scanning import Damage, DamageKind
from millrace_server.log_tools.verify import differences
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.checkpoints import PREVIOUS, Checkpoint, CheckpointFiles
from millrace_server.wal.disk import OsDisk
from millrace_server.wal.format import RECORD_HEAD_BYTES, Kind, RecordHead, SegmentHeader, UnknownVersionError
from millrace_server.wal.segments import LogCorruptError
from tests.unit.log_tools.kept_channels import (
    NAME,
    TOOLS,
    copied,
    layout_of,
    opened_again,
    positions,
    segments,
    verified,
)


def change_header(segment: Path, change: Callable[[SegmentHeader], SegmentHeader]) -> None:
    """Writes another header with a valid checksum."""
    content = segment.read_bytes()
    header = change(SegmentHeader.decode(content)).encode()
    segment.write_bytes(header + content[len(header) :])


def change_head(segment: Path, index: int, change: Callable[[RecordHead], RecordHead]) -> int:
    """Writes another head of a record with a valid checksum; returns its position."""
    content = bytearray(segment.read_bytes())
    seed_of = SegmentHeader.decode(bytes(content)).seed
    position = positions(segment)[index]
    head = RecordHead.decode(bytes(content[position : position + RECORD_HEAD_BYTES]), seed_of(position))
    assert head is not None
    content[position : position + RECORD_HEAD_BYTES] = change(head).encode(seed_of(position))
    segment.write_bytes(content)
    return position


def first_damage(home: Path) -> Damage:
    return verified(home).scan.damages[0]


def test_verify_with_another_first_lsn_reports_it(home: Path) -> None:
    """The end of the previous segment requires another one."""
    segment = segments(home)[1]
    change_header(segment, lambda header: replace(header, first_lsn=99))
    damage = first_damage(home)
    assert (damage.kind, damage.position) == (DamageKind.CONTENT, 0)
    assert "begins with LSN 99; it must be" in damage.sentence


def test_verify_with_another_lsn_reports_it(home: Path) -> None:
    """A record that is valid elsewhere is not valid here."""
    position = change_head(segments(home)[0], 2, lambda head: head._replace(lsn=99))
    assert first_damage(home).sentence.endswith(f"the record at byte {position} has LSN 99; it must be 3")


def test_verify_with_a_segment_that_begins_otherwise_tells_it(home: Path) -> None:
    """Older segments may have been removed, and nothing else has the channel's state."""
    change_head(segments(home)[0], 0, lambda head: head._replace(kind=Kind.CLAIM))
    assert "is a CLAIM; a segment begins with a STATE" in first_damage(home).sentence


def test_verify_with_a_kind_of_a_later_version_refuses_to_judge(home: Path) -> None:
    """The checksum of the record is valid, so it was written on purpose."""
    change_head(segments(home)[0], 2, _of_unknown_kind)
    with pytest.raises(UnknownVersionError, match=r"segment-000000000001\.log: it has a record of kind 200"):
        verified(home)


def _of_unknown_kind(head: RecordHead) -> RecordHead:
    return RecordHead(head.payload_checksum, head.payload_length, cast("Kind", 200), *head[3:])


def test_repair_of_a_log_that_contradicts_itself_keeps_what_fits(home: Path) -> None:
    """The checkpoint says what is in the channel."""
    events, _ = opened_again(copied(home, home.parent / "good" / NAME).parent)
    change_head(segments(home)[0], 3, lambda head: head._replace(kind=Kind.CLAIM))
    done = repair(layout_of(home), TOOLS, applies=True)
    assert done.report is not None
    assert done.report.is_good
    assert opened_again(home.parent) == (events, 72)


def test_repair_of_what_does_not_open_even_then_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is changed if the new log is not what it should be."""
    change_head(segments(home)[0], 3, lambda head: head._replace(kind=Kind.CLAIM))
    before = {path: path.read_bytes() for path in segments(home)}
    monkeypatch.setattr(verify, "recover", _raise_corrupt)
    with pytest.raises(DamagedError, match="returns other bytes than were written"):
        repair(layout_of(home), TOOLS, applies=True)
    assert {path: path.read_bytes() for path in segments(home)} == before


def _raise_corrupt(*_arguments: object, **_options: object) -> None:
    raise LogCorruptError("no")


# Recoveries.


def recovered_of(change: Callable[[Recovered], object] = id) -> Recovered:
    recovered = Recovered()
    change(recovered)
    return recovered


def test_differences_of_the_same_are_none() -> None:
    """The start of replay makes no difference."""
    assert differences(recovered_of(), recovered_of()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: setattr(one, "next_sequence", 2), "its next sequence is 1 and 2"),
        (lambda one: one.ledger.accept(Stamp("p", 1, 2)), "it has accepted other numbers of its producers"),
        (lambda one: setattr(one, "claim", ClaimRecord("r", 1, 1.0)), "its claim is None and ClaimRecord"),
        (
            lambda one: one.ended.add("t", Outcome(TxnState.COMMITTED, Receipt(1, 2))),
            "other transactions were committed",
        ),
    ],
)
def test_differences_of_recoveries_name_what_differs(change: Callable[[Recovered], object], words: str) -> None:
    """One of them must be wrong."""
    [difference] = differences(recovered_of(), recovered_of(change))
    assert difference.startswith(words)


def test_differences_of_endings_that_may_be_forgotten_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback need not be in the log, and which old outcomes are forgotten depends on the start of replay."""
    rolled_back = recovered_of(lambda one: one.ended.add("t", Outcome(TxnState.ROLLED_BACK)))
    assert differences(recovered_of(), rolled_back) == []
    committed = recovered_of(lambda one: one.ended.add("t", Outcome(TxnState.COMMITTED, Receipt(1, 2))))
    assert differences(rolled_back, committed) == ["other transactions were committed"]
    stamped = recovered_of(lambda one: one.ledger.accept(Stamp("p", 1, 2)))
    further = recovered_of(lambda one: one.ledger.accept(Stamp("p", 1, 3)))
    monkeypatch.setattr(verify, "ENDED_MAX", 1)
    monkeypatch.setattr(verify, "PRODUCERS_MAX", 1)
    assert differences(recovered_of(), committed) == []
    assert differences(recovered_of(), stamped) == []
    assert differences(further, stamped) == ["it has accepted other numbers of its producers"]


def test_verify_with_a_checkpoint_of_another_past_tells_it(home: Path) -> None:
    """A valid checkpoint may contradict the log; its sequences are still not granted again."""
    (home / PREVIOUS).unlink()
    files = CheckpointFiles(OsDisk(), home, layout_of(home).log_id, keeps_previous=False)
    checkpoint = next(files.valid_checkpoints())
    message = pb.Checkpoint.FromString(checkpoint.state)
    message.state.next_sequence = 99
    files.write(Checkpoint(checkpoint.position, message.SerializeToString()))
    assert verified(home).problems == [
        "recovery with no checkpoint and with checkpoint gives different channels: its next sequence is 99 and 72"
    ]
    done = repair(layout_of(home), TOOLS, applies=True)
    assert done.steps == ["rewrite the log with the 47 readable events of the channel"]
    assert opened_again(home.parent)[1] == 99
