import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace_server.channels.channel_file import CHANNEL_FILE
from millrace_server.channels.stamps import Stamp
from millrace_server.log_tools.scanning import DamageKind
from millrace_server.log_tools.verify import CheckpointState, Report, recover_without
from millrace_server.log_tools.view import open_view
from millrace_server.wal.checkpoints import NEWEST, PREVIOUS
from millrace_server.wal.format import SEGMENT_HEADER_BYTES, RecordHead, SegmentHeader, UnknownVersionError
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.segments import LogCorruptError
from tests.channel_events import append
from tests.segment_versions import LATER_VERSION, set_version
from tests.unit.log_tools.kept_channels import (
    NAME,
    contents,
    copied,
    flip,
    layout_of,
    log_end,
    make_channel,
    open_channel,
    positions,
    segments,
    verified,
)

STEP = 61
"""Every n-th byte is damaged; n has no divisor in common with the lengths of records."""


def states(report: Report) -> list[CheckpointState]:
    return [one.state for one in report.checkpoints]


def opens(home: Path) -> bool:
    """Whether a server would open the channel."""
    with open_view(layout_of(home), is_live=False) as view:
        try:
            recover_without(view, PayloadCodec())
        except LogCorruptError:
            return False
    return True


def test_verify_of_a_good_channel_finds_nothing_and_changes_nothing(home: Path) -> None:
    """Both checkpoints are valid, and all ways to recover the channel agree."""
    before = contents(home)
    report = verified(home)
    assert report.is_good
    assert report.scan.contents.lost == []
    assert states(report) == [CheckpointState.GOOD, CheckpointState.GOOD]
    assert [one.segment_id for one in report.scan.segments] == list(range(1, len(segments(home)) + 1))
    assert sum(one.event_count for one in report.scan.segments) == 71
    assert report.recovered is not None
    assert (report.recovered.next_sequence, report.recovered.queue.event_count) == (72, 71 - 6 * 4)
    assert contents(home) == before


def test_verify_of_numbers_that_are_never_sent_any_more_finds_nothing(tmp_path: Path) -> None:
    """The log contains them as the checkpoint does."""

    async def fill_with_gaps() -> None:
        async with open_channel(tmp_path) as channel:
            for number in range(0, 12, 3):
                await append(channel, b"x", stamp=Stamp("p", number, number, oldest_open=number))

    asyncio.run(fill_with_gaps())
    report = verified(tmp_path / NAME)
    assert report.is_good
    assert report.recovered is not None
    assert dict(report.recovered.ledger.producers()) == {"p": [(0, 9)]}


def damaged_places(home: Path) -> Iterator[tuple[Path, int]]:
    """Positions in all segments, up to the last record with content."""
    for segment in segments(home):
        end = log_end(home) if segment == segments(home)[-1] else segment.stat().st_size
        yield from ((segment, position) for position in range(10, end, STEP))


def test_verify_with_any_bit_flipped_says_which_segment_is_damaged_where(made: Path, tmp_path: Path) -> None:
    """All damage is found, whether a server would read that position now, later or never."""
    for segment, position in damaged_places(made):
        home = copied(made, tmp_path / "orders")
        flip(home / segment.name, position)
        report = verified(home)
        [damage] = report.scan.damages
        assert damage.segment_id == int(segment.stem[-12:])
        if position < SEGMENT_HEADER_BYTES:
            assert damage.kind is DamageKind.HEADER
        else:
            assert damage.kind is DamageKind.RECORD
            assert damage.position == max(start for start in positions(made / segment.name) if start <= position)
            assert damage.synced_up_to is not None
            assert damage.synced_up_to > damage.position
        assert f"{segment.name}: " in report.sentences[0]


def test_verify_of_a_damaged_put_names_its_sequences(home: Path) -> None:
    """The report lists the sequences that damage concerns."""
    put = positions(segments(home)[0])[3]
    flip(segments(home)[0], put + 50)
    assert verified(home).scan.contents.lost == [(11, 20)]


def test_verify_with_the_last_segment_cut_anywhere_finds_it_wherever_a_server_would(made: Path, tmp_path: Path) -> None:
    """A cut log is shorter than its checkpoint says; everything that a server refuses is reported."""
    last = segments(made)[-1]
    content = last.read_bytes()
    for length in range(0, log_end(made), STEP):
        home = copied(made, tmp_path / "orders")
        (home / last.name).write_bytes(content[:length])
        assert not verified(home).is_good
        for name in (NEWEST, PREVIOUS):
            (home / name).unlink()
        assert verified(home).is_good <= opens(home)


@pytest.mark.parametrize("name", [NEWEST, PREVIOUS])
def test_verify_with_any_bit_of_a_checkpoint_flipped_tells_which_it_is(made: Path, tmp_path: Path, name: str) -> None:
    """The other checkpoint and the log still restore the channel."""
    for position in range(0, (made / name).stat().st_size, STEP):
        home = copied(made, tmp_path / "orders")
        flip(home / name, position)
        report = verified(home)
        assert report.sentences == [f"{name}: is damaged, or no checkpoint of this channel"]
        assert report.recovered is not None
        assert report.recovered.next_sequence == 72


def test_verify_without_checkpoints_finds_a_good_log(home: Path) -> None:
    """Checkpoints save time, and are not required."""
    (home / NEWEST).unlink()
    (home / PREVIOUS).unlink()
    report = verified(home)
    assert report.is_good
    assert states(report) == [CheckpointState.MISSING, CheckpointState.MISSING]


def test_verify_with_a_segment_missing_tells_which(home: Path) -> None:
    """A gap is damage; sequences known to be lost are listed."""
    segments(home)[1].unlink()
    report = verified(home)
    [damage] = report.scan.damages
    assert (damage.kind, damage.segment_id) == (DamageKind.MISSING, 2)
    assert damage.sentence == "segment 2 is missing: segment-000000000003.log is the next one that exists"
    [(first, last)] = report.scan.contents.lost
    assert 1 < first <= last < 72


def test_verify_with_the_last_segment_missing_learns_of_it_from_the_checkpoint(home: Path) -> None:
    """The log itself would look like a shorter one."""
    count = len(segments(home))
    segments(home)[-1].unlink()
    report = verified(home)
    assert report.scan.damages == []
    assert report.sentences[0] == f"{NEWEST}: needs segment {count}, and the log ends before it"


def test_verify_with_the_first_segment_missing_tells_whose_events_are_gone(home: Path) -> None:
    """A log without its first segments is valid, unless a checkpoint needs them."""
    segments(home)[0].unlink()
    report = verified(home)
    assert f"{NEWEST}: needs segment 1, and the log begins after it" in report.sentences


def test_verify_with_an_old_checkpoint_calls_it_stale(home: Path) -> None:
    """The server ignores it, so it is not damage."""
    segments(home)[0].unlink()
    (home / NEWEST).unlink()
    report = verified(home)
    assert report.is_good
    assert states(report) == [CheckpointState.MISSING, CheckpointState.STALE]


def test_verify_with_a_segment_that_grew_tells_what_is_too_much(home: Path) -> None:
    """Bytes after the end of a full segment belong to no record."""
    first = segments(home)[0]
    length = first.stat().st_size
    first.write_bytes(first.read_bytes() + b"more")
    [damage] = verified(home).scan.damages
    assert (damage.kind, damage.position) == (DamageKind.TOO_LONG, length)


def test_verify_with_a_segment_of_another_channel_says_whose_it_is(home: Path, tmp_path: Path) -> None:
    """However valid it is, it does not belong to this channel."""
    other = make_channel(tmp_path / "other")
    shutil.copy(segments(other)[1], segments(home)[1])
    report = verified(home)
    assert DamageKind.FOREIGN in {damage.kind for damage in report.scan.damages}
    assert any("must be segment 2 of" in sentence for sentence in report.sentences)


def test_verify_with_a_segment_twice_says_so(home: Path, tmp_path: Path) -> None:
    """It is unknown which of the two is right."""
    second = tmp_path / "second"
    second.mkdir()
    shutil.copy(segments(home)[1], second)
    damages = verified(home, second).scan.damages
    assert [damage.kind for damage in damages] == [DamageKind.FOREIGN]
    assert "exists twice" in damages[0].sentence


def test_verify_with_a_damaged_channel_file_goes_on_without(home: Path) -> None:
    """The segments contain the channel's identity."""
    flip(home / CHANNEL_FILE, 60)
    report = verified(home)
    assert report.scan.damages == []
    assert len(report.sentences) == 1
    assert CHANNEL_FILE in report.sentences[0]
    assert report.recovered is not None


def test_verify_of_another_versions_files_refuses_to_judge(home: Path) -> None:
    """Unknown formats cannot be checked."""
    set_version(segments(home)[1], LATER_VERSION)
    with pytest.raises(UnknownVersionError, match=rf"segment-000000000002\.log: its format version is {LATER_VERSION}"):
        verified(home)


def test_verify_with_records_that_contradict_each_other_tells_which(home: Path) -> None:
    """Valid checksums are not enough: a record may have wrong content."""
    first = segments(home)[0]
    content = bytearray(first.read_bytes())
    header = SegmentHeader.decode(bytes(content))
    put, commit = positions(first)[1:3]
    head = RecordHead.decode(bytes(content[put : put + 32]), header.seed(put))
    assert head is not None
    # The PUT becomes a CLAIM with valid checksums.
    changed = RecordHead(head.payload_checksum, head.payload_length, type(head.kind).CLAIM, head.flags, head.lsn, 0)
    content[put : put + 32] = changed.encode(header.seed(put))
    first.write_bytes(content)
    report = verified(home)
    assert {damage.kind for damage in report.scan.damages} == {DamageKind.CONTENT}
    assert any(f"the record at byte {commit} says that it has puts" in sentence for sentence in report.sentences)
    assert (1, 10) in report.scan.contents.lost
