import asyncio
import errno
import itertools
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from millrace_server.channels.channel_file import CHANNEL_FILE, ChannelFile
from millrace_server.channels.directories import REPAIRED
from millrace_server.log_tools import repair as repairing
from millrace_server.log_tools.backup import ToolContext
from millrace_server.log_tools.layout import DamagedError, ToolError, UsageError
from millrace_server.log_tools.read_only_disk import ReadOnlyFile
from millrace_server.log_tools.repair import Repair, repair
from millrace_server.log_tools.scanning import ToolProgress
from millrace_server.log_tools.verify import recover_without
from millrace_server.log_tools.view import open_view
from millrace_server.wal.checkpoints import NEWEST, PREVIOUS
from millrace_server.wal.format import SEGMENT_HEADER_BYTES, Kind, SegmentHeader, UnknownVersionError
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.reading import SegmentScanner
from millrace_server.wal.records import LogFullError
from tests.channel_events import append, begin, begin_with_takes, stored
from tests.crashing_os import CrashingOs, Killed
from tests.segment_versions import LATER_VERSION, set_version
from tests.unit.log_tools.full_disk import FullDisk
from tests.unit.log_tools.kept_channels import (
    NAME,
    TOOLS,
    contents,
    copied,
    durable_state_of,
    flip,
    layout_of,
    log_end,
    make_channel,
    open_channel,
    opened_again,
    positions,
    segments,
    verified,
)

STEP = 293
NEXT_SEQUENCE = 72


def repaired(home: Path, keep: Path | None = None) -> Repair:
    """Repairs a channel, which must be valid then."""
    done = repair(layout_of(home), TOOLS, keep=keep, applies=True)
    assert done.report is not None
    assert done.report.is_good, done.report.sentences
    assert verified(home).is_good
    return done


def test_repair_of_a_good_channel_does_nothing(home: Path) -> None:
    """No copy is made either."""
    before = contents(home)
    assert repair(layout_of(home), TOOLS, applies=True) == Repair()
    assert contents(home.parent) == before


def test_repair_without_agreement_only_says_what_it_would_do(home: Path) -> None:
    """Without a confirmation, nothing is changed."""
    flip(segments(home)[1], 100)
    before = contents(home)
    reported = repair(layout_of(home), TOOLS)
    assert reported.report is None
    assert reported.steps == ["rewrite the log with the 47 readable events of the channel"]
    assert contents(home.parent) == before


def test_repair_with_any_bit_flipped_keeps_all_that_can_be_read(made: Path, tmp_path: Path) -> None:
    """The channel opens with each intact event under its sequence, and no sequence is granted twice."""
    events, next_sequence = opened_again(copied(made, tmp_path / "good" / NAME).parent)
    assert next_sequence == NEXT_SEQUENCE
    for segment in segments(made):
        end = log_end(made) if segment == segments(made)[-1] else segment.stat().st_size
        for position in range(7, end, STEP):
            home = copied(made, tmp_path / NAME)
            flip(home / segment.name, position, 4)
            done = repaired(home, tmp_path / "keep")
            shutil.rmtree(tmp_path / "keep")
            found, next_sequence = opened_again(tmp_path)
            assert next_sequence == NEXT_SEQUENCE
            assert done.salvage is not None
            # A checkpoint says what is in the channel, so nothing comes back.
            assert done.salvage.redelivered == []
            lost = {sequence for first, last in done.salvage.lost for sequence in range(first, last + 1)}
            assert found == [event for event in events if event[0] not in lost]
            assert len(lost) <= 10
            if position < SEGMENT_HEADER_BYTES:
                assert not lost


def test_repair_keeps_a_copy_of_all_files_as_they_were(home: Path) -> None:
    """Every change of the tool can be undone."""
    flip(segments(home)[1], 100)
    before = {path.name: content for path, content in contents(home).items()}
    done = repaired(home)
    assert done.keep is not None
    assert done.keep.parent == home.parent.resolve()
    assert done.keep.name.startswith(f"{NAME}.before-repair-")
    assert {path.name: content for path, content in contents(done.keep).items()} == before


def test_repair_of_several_directories_keeps_each_apart(tmp_path: Path) -> None:
    """Files of the same name do not collide."""
    data_dirs = [tmp_path / "disk-a", tmp_path / "disk-b"]
    make_channel(tmp_path / "nowhere", data_dirs=data_dirs, checkpoint_dir=tmp_path / "disk-c")
    homes = [path / NAME for path in (*data_dirs, tmp_path / "disk-c")]
    flip(segments(homes[1])[0], 300)
    files = contents(*homes)
    done = repair(layout_of(*homes), TOOLS, keep=tmp_path / "keep", applies=True)
    assert done.report is not None
    assert done.report.is_good
    assert len(contents(tmp_path / "keep")) == len(files)
    _, next_sequence = opened_again(tmp_path, data_dirs=data_dirs, checkpoint_dir=tmp_path / "disk-c")
    assert next_sequence == NEXT_SEQUENCE


def test_repair_says_exactly_what_is_lost(home: Path) -> None:
    """A PUT of 10 events is lost, 4 of which were consumed for certain, and a TAKE, which took 4 others."""
    for name in (NEWEST, PREVIOUS):
        (home / name).unlink()
    first, second, *_ = segments(home)
    flip(first, positions(first)[1] + 40)
    [take] = [number for number, kind in enumerate(kinds(second)) if kind is Kind.TAKE][:1]
    flip(second, positions(second)[take] + 32)
    assert repaired(home).steps == [
        "rewrite the log with the 45 readable events of the channel",
        "give up sequences 1 to 2, 7 to 10, which cannot be read",
        "keep sequences 27 to 30, although the lost records may have consumed them",
    ]


def kinds(segment: Path) -> list[Kind]:
    """The kinds of a segment's records."""
    content = segment.read_bytes()
    scanner = SegmentScanner(ReadOnlyFile.of(content), SegmentHeader.decode(content))
    return [record.head.kind for record in scanner.records()]


def test_repair_keeps_the_epochs_of_claims_that_were_given_up(home: Path) -> None:
    """A reader that was fenced off stays so."""
    claim = durable_state_of(home).claim
    flip(segments(home)[1], 100)
    repaired(home)
    assert claim is not None
    assert durable_state_of(home).claim == claim


@pytest.mark.parametrize("is_gone", [True, False], ids=["no segment left", "cut"])
def test_repair_keeps_the_newest_time_of_what_was_given_up(home: Path, *, is_gone: bool) -> None:
    """No later commit has an earlier one, even if the clock is set back."""
    with open_view(layout_of(home), is_live=False) as view:
        last_time = recover_without(view, PayloadCodec()).last_commit_time
    assert last_time
    for segment in segments(home):
        if is_gone:
            segment.unlink()
    if not is_gone:
        flip(segments(home)[0], 100)
    report = repaired(home).report
    assert report is not None
    assert report.recovered is not None
    assert report.recovered.last_commit_time >= last_time


async def take_most(base: Path) -> None:
    """Takes nearly all events, then continues for some segments."""
    async with open_channel(base) as channel:
        await channel.claims.release("reader", None)
        txn_id = await begin_with_takes(channel, channel._contents.queue.event_count)
        await channel.transactions.commit([txn_id], None)
        for _ in range(4):
            await append(channel, *[b"x" * 100] * 10)


def test_repair_of_damage_that_nothing_needs_gives_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that were consumed are not lost."""
    with monkeypatch.context() as patched:
        patched.setattr(WriteAheadLog, "remove_before", lambda _log, _segment_id: 0)
        home = make_channel(tmp_path)
        asyncio.run(take_most(tmp_path))
    before = durable_state_of(home)
    flip(segments(home)[0], 100)
    assert repaired(home).steps == ["rewrite the log with the 40 readable events of the channel"]
    after = durable_state_of(home)
    assert (after.next_sequence, after.producers, after.claim, after.ended) == (
        before.next_sequence,
        before.producers,
        before.claim,
        before.ended,
    )
    assert len(opened_again(tmp_path)[0]) == 40


@pytest.mark.parametrize("name", [NEWEST, PREVIOUS])
def test_repair_of_a_damaged_checkpoint_removes_it_and_nothing_else(home: Path, name: str) -> None:
    """The log contains everything in the checkpoint."""
    before = durable_state_of(home)
    flip(home / name, 100)
    files = contents(home)
    done = repaired(home)
    assert done.steps == [f"remove {name}, which is damaged, or no checkpoint of this channel"]
    del files[home / name]
    assert contents(home) == files
    assert durable_state_of(home) == before


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"\xff" * path.stat().st_size)])
def test_repair_without_one_segment_keeps_what_the_others_have(home: Path, damage: Callable[[Path], None]) -> None:
    """Its events are lost, and no others; the segments behind it are read."""
    events, _ = opened_again(copied(home, home.parent / "good" / NAME).parent)
    damage(segments(home)[2])
    done = repaired(home)
    assert done.salvage is not None
    lost = {sequence for first, last in done.salvage.lost for sequence in range(first, last + 1)}
    assert 0 < len(lost) <= 20
    assert opened_again(home.parent) == ([event for event in events if event[0] not in lost], NEXT_SEQUENCE)


def test_repair_without_any_segment_begins_behind_what_the_checkpoint_tells(home: Path) -> None:
    """Events are lost, but no sequence is reused, and claims stay."""
    claim = durable_state_of(home).claim
    for segment in segments(home):
        segment.unlink()
    repaired(home)
    assert durable_state_of(home).claim == claim
    assert opened_again(home.parent) == ([], NEXT_SEQUENCE)


def test_repair_without_any_record_that_tells_says_where_the_channel_begins_again(home: Path) -> None:
    """Readers may remember later sequences than it has then, and no stamp is left."""
    for path in (home / NEWEST, home / PREVIOUS, *segments(home)[:-1]):
        path.unlink()
    [last] = segments(home)
    for position in positions(last)[:-1]:
        flip(last, position)
    steps = repaired(home).steps
    _, begin = opened_again(home.parent)
    assert begin < NEXT_SEQUENCE
    assert f"continue with sequence {begin}, since no record states which sequences were used" in steps
    assert "forget all stamps: repeats of any event are stored again" in steps


@pytest.mark.parametrize("is_header_damaged", [False, True])
def test_repair_without_any_record_of_the_last_segment_names_what_it_had(
    home: Path, *, is_header_damaged: bool
) -> None:
    """Nothing else tells of its event, whose sequence is not given again."""
    _, put = opened_again(home.parent, segment_bytes_max=100_000)
    for name in (NEWEST, PREVIOUS):
        (home / name).unlink()
    last = segments(home)[-1]
    assert Kind.PUT in kinds(last)
    for position in [20] * is_header_damaged + positions(last):
        flip(last, position)
    found = repaired(home).salvage
    assert found is not None
    *_, (first, end) = found.lost
    assert first <= put <= end
    assert opened_again(home.parent)[1] == end + 1


def test_repair_of_a_segment_that_grew_loses_nothing(home: Path) -> None:
    """What lies behind its end was never a part of the log."""
    before, first = durable_state_of(home), segments(home)[0]
    first.write_bytes(first.read_bytes() + b"more")
    done = repaired(home)
    assert done.salvage is not None
    assert (done.salvage.lost, done.salvage.unstamped, done.salvage.is_doubtful) == ([], [], False)
    after = durable_state_of(home)
    assert (after.producers, after.claim, after.ended) == (before.producers, before.claim, before.ended)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: flip(path, 80)], ids=["missing", "damaged"])
def test_repair_of_a_channel_file_makes_it_of_the_segments(home: Path, damage: Callable[[Path], None]) -> None:
    """The name is that of the directory, the ids are those of the log."""
    file = ChannelFile.read(home)
    assert file is not None
    damage(home / CHANNEL_FILE)
    done = repaired(home)
    assert done.steps == [f"rewrite {home / CHANNEL_FILE}"]
    recreated = ChannelFile.read(home)
    assert recreated is not None
    assert (recreated.identity.name, recreated.identity.log_id) == (NAME, file.identity.log_id)
    assert recreated.identity.made_at_microseconds > file.identity.made_at_microseconds
    assert opened_again(home.parent)[1] == NEXT_SEQUENCE


def test_repair_of_one_of_several_channel_files_has_the_others_tell(tmp_path: Path) -> None:
    """Identity, index and count are restored."""
    data_dirs = [tmp_path / "disk-a", tmp_path / "disk-b"]
    make_channel(tmp_path / "nowhere", data_dirs=data_dirs, checkpoint_dir=tmp_path / "disk-c")
    homes = [path / NAME for path in (*data_dirs, tmp_path / "disk-c")]
    for home in homes:
        before = ChannelFile.read(home)
        (home / CHANNEL_FILE).unlink()
        repair(layout_of(*homes), TOOLS, keep=tmp_path / f"keep-{home.parent.name}", applies=True)
        assert ChannelFile.read(home) == before


def test_repair_without_a_name_asks_for_one(made: Path, tmp_path: Path) -> None:
    """A directory whose name is not a valid channel name needs an explicit one."""
    home = copied(made, tmp_path / "Not a name")
    (home / CHANNEL_FILE).unlink()
    with pytest.raises(UsageError, match="no file states the channel's name"):
        repair(layout_of(home), TOOLS)


def test_repair_of_another_versions_files_is_refused(home: Path) -> None:
    """None of its files may be changed."""
    set_version(segments(home)[1], LATER_VERSION)
    before = contents(home)
    with pytest.raises(UnknownVersionError):
        repair(layout_of(home), TOOLS, applies=True)
    assert contents(home) == before


def test_repair_with_a_segment_of_another_channel_asks_to_move_it_away(home: Path, tmp_path: Path) -> None:
    """It may be a valid segment of another channel."""
    other = make_channel(tmp_path / "other")
    shutil.copy(segments(other)[1], segments(home)[1])
    with pytest.raises(DamagedError, match="move away what does not belong here"):
        repair(layout_of(home), TOOLS, applies=True)


@pytest.mark.parametrize("nth", range(1, 12))
def test_repair_on_a_full_disk_changes_nothing_before_the_copy_is_whole(home: Path, tmp_path: Path, nth: int) -> None:
    """An incomplete copy could not undo the repair."""
    flip(segments(home)[1], 100)
    before = contents(home)
    tools = ToolContext(PayloadCodec(), ToolProgress(), FullDisk(nth))
    with pytest.raises(ToolError, match="No space left on device; free some space and start again"):
        repair(layout_of(home), tools, keep=tmp_path / "keep", applies=True)
    assert contents(home) == before


def test_repair_that_finds_no_space_for_the_new_log_changes_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt succeeds."""
    flip(segments(home)[1], 100)
    before = contents(home)

    def refuse(_log: WriteAheadLog, _records: object, *, done: Callable[..., None], **_options: object) -> None:
        done(None, LogFullError("a write to the log failed: No space left on device"))

    with monkeypatch.context() as patched:
        patched.setattr(WriteAheadLog, "submit", refuse)
        with pytest.raises(ToolError, match="No space left on device; nothing was changed"):
            repair(layout_of(home), TOOLS, keep=tmp_path / "keep", applies=True)
    assert contents(home) == before
    repaired(home)
    assert opened_again(home.parent)[1] == NEXT_SEQUENCE


def test_repair_that_is_killed_leaves_the_old_channel_or_the_new_one(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the power cut keeps of what was not synced: the next opening finishes what the mark has decided."""
    root = tmp_path / "root"
    root.mkdir()
    expected = opened_again(copied(made, tmp_path / "good" / NAME).parent)
    disk, chance = CrashingOs(root, monkeypatch), random.Random(15)
    outcomes = set()
    write_log = repairing._write_log
    calls_left: int | None = None

    def write_and_run_on(*arguments: Any) -> None:
        # Until here nothing was changed, and the log syncs what it writes.
        write_log(*arguments)
        disk.adopt()
        disk.calls_left = calls_left

    monkeypatch.setattr(repairing, "_write_log", write_and_run_on)
    for count in itertools.count(chance.randrange(2), 2):
        home = copied(made, root / NAME)
        flip(segments(home)[1], 100)
        before = contents(home)
        disk.adopt()
        is_whole, calls_left = False, count
        with suppress(Killed):
            repair(layout_of(home), TOOLS, keep=tmp_path / "keep", applies=True)
            is_whole = True
        disk.calls_left = calls_left = None
        shutil.rmtree(tmp_path / "keep", ignore_errors=True)
        disk.cut_power(chance)
        after = {path: content for path, content in contents(home).items() if REPAIRED not in path.parts}
        if before.items() <= after.items():
            outcomes.add("old")
            repair(layout_of(home), TOOLS, keep=tmp_path / "keep", applies=True)
            shutil.rmtree(tmp_path / "keep")
        else:
            outcomes.add("new")
        assert opened_again(root) == expected
        if is_whole:
            break
    assert outcomes == {"old", "new"}


def test_repair_of_a_log_without_a_claim_only_skips_sequences(tmp_path: Path) -> None:
    """The PUT of the second batch is lost."""
    home = tmp_path / NAME
    asyncio.run(put_only(tmp_path))
    flip(segments(home)[0], positions(segments(home)[0])[3])
    assert repaired(home).steps == [
        "rewrite the log with the 10 readable events of the channel",
        "give up sequences 11 to 20, which cannot be read",
    ]
    assert opened_again(tmp_path)[1] == 21


async def put_only(base: Path) -> None:
    """Puts events without taking them."""
    async with open_channel(base, segment_bytes_max=1 << 20) as channel:
        for _ in range(2):
            await append(channel, *[b"x"] * 10)


def test_repair_of_a_transaction_whose_commit_is_lost_keeps_its_puts_in_their_order(tmp_path: Path) -> None:
    """Each in its place, since what follows tells how many they were."""
    home = tmp_path / NAME
    asyncio.run(put_in_parts(tmp_path))
    for name in (NEWEST, PREVIOUS):
        (home / name).unlink(missing_ok=True)
    [segment] = segments(home)
    commit = kinds(segment).index(Kind.COMMIT)
    flip(segment, positions(segment)[commit] + 40)
    assert "rewrite the log with the 3 readable events of the channel" in repaired(home).steps
    assert opened_again(tmp_path)[0] == [(1, b"a"), (2, b"b"), (3, b"last")]


async def put_in_parts(base: Path) -> None:
    """Puts two events with one commit, and one with another."""
    async with open_channel(base, segment_bytes_max=1 << 20) as channel:
        txn_id = begin(channel)
        for body in (b"a", b"b"):
            channel.transactions.put(txn_id, [stored(body)], None)
        await channel.transactions.commit([txn_id], None)
        await append(channel, b"last")


def test_repair_with_a_copy_that_reads_otherwise_changes_nothing(home: Path, tmp_path: Path) -> None:
    """The copy is compared with what was read."""
    flip(segments(home)[1], 100)
    before = contents(home)
    tools = ToolContext(PayloadCodec(), ToolProgress(), FullDisk(0, is_lying=True))
    with pytest.raises(DamagedError, match="the disk returns other bytes than were written"):
        repair(layout_of(home), tools, keep=tmp_path / "keep", applies=True)
    assert contents(home) == before


def test_repair_into_a_directory_in_use_is_refused(home: Path, tmp_path: Path) -> None:
    """The copy needs a directory of its own, outside of the channel."""
    flip(segments(home)[1], 100)
    (tmp_path / "file").touch()
    for keep in (home / "keep", tmp_path):
        with pytest.raises(UsageError):
            repair(layout_of(home), TOOLS, keep=keep, applies=True)
    with pytest.raises(UsageError, match="cannot be used"):
        repair(layout_of(home), TOOLS, keep=tmp_path / "file", applies=True)


def test_full_disk_raises_what_the_system_raises() -> None:
    """The fake disk of these tests behaves like a real one."""
    assert FullDisk(1).error().errno == errno.ENOSPC
