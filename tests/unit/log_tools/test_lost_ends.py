"""What a repair names where a log has lost its beginning or its end."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from millrace_server.channels.channel import Channel
from millrace_server.channels.log_store import LogStore
from millrace_server.log_tools import view
from millrace_server.wal.checkpoints import NEWEST, PREVIOUS
from millrace_server.wal.disk import OsDisk
from millrace_server.wal.format import SEGMENT_HEADER_BYTES
from tests.channel_events import append, begin_with_takes
from tests.unit.log_tools.kept_channels import (
    NAME,
    make_channel,
    open_channel,
    open_hosted,
    opened_again,
    run,
    segments,
)
from tests.unit.log_tools.known_channels import Known, damage, known, members, salvaged

_SEGMENT_BYTES = 100_000
_MEMORY: dict[str, Any] = {"memory_capacity": 4, "memory_byte_capacity": 1 << 20, "segment_bytes_max": _SEGMENT_BYTES}


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server is running that could still write the proof of a log's end."""
    monkeypatch.setattr(view, "PROOF_SECONDS_MAX", 0.0)


def _destroy(segment: Path, start: int) -> None:
    """Changes all bytes of a segment from one on that are not zero, and leaves what was never written as it is."""
    content = segment.read_bytes()
    end = len(content.rstrip(b"\0"))
    with segment.open("r+b") as file:
        file.seek(start)
        file.write(bytes(byte ^ 0x5A for byte in content[start:end]))


def _kill(home: Path, target: Path) -> Path:
    """Copies the files of a channel as a kill would leave them, with the space that its log has preallocated."""
    shutil.copytree(home, target)
    for segment in segments(target):
        content = segment.read_bytes()
        with segment.open("wb") as file:
            file.write(content.rstrip(b"\0"))
            os.posix_fallocate(file.fileno(), 0, len(content))
    return target


async def _emptied(base: Path) -> None:
    """Makes a log whose first segments were removed."""
    limits: dict[str, Any] = {"backup_checkpoint": False, "segment_bytes_max": 400}
    async with open_channel(base, **limits) as channel:
        for number in range(10):
            await append(channel, b"%d" % number, b"more")
        await channel.transactions.commit([await begin_with_takes(channel, 20)], None)
    async with open_channel(base, **limits) as channel:
        for number in range(12):
            await append(channel, b"%d" % number, b"more")


@pytest.mark.parametrize("kept_bytes", [None, 0, 48, SEGMENT_HEADER_BYTES, 120])
def test_salvage_without_the_first_segment_names_what_it_had(tmp_path: Path, kept_bytes: int | None) -> None:
    """Nobody knows how many records it had; its length, which the next header states, bounds how many events."""
    before = known(tmp_path, _emptied)
    first = before.records[0].segment
    assert first.name != "segment-000000000001.log"
    home = tmp_path / NAME
    damage(before, home, [], keeps_checkpoints=False)
    if kept_bytes is None:
        _destroy(home / first.name, 0)
    else:
        os.truncate(home / first.name, kept_bytes)
    found, bodies = salvaged(home, before.codec)
    lost = members(found.lost, max(before.bodies))
    assert before.queued - bodies.keys()
    assert before.queued <= bodies.keys() | lost
    assert found.recovered.next_sequence == max(before.bodies) + 1


def test_salvage_of_a_first_segment_that_cannot_be_read_at_all_keeps_the_others(tmp_path: Path) -> None:
    """The id of a first segment says that no sequence was given before it."""
    before = Known(make_channel(tmp_path / "made"))
    home = tmp_path / NAME
    damage(before, home, [], keeps_checkpoints=False)
    _destroy(segments(home)[0], 0)
    found, bodies = salvaged(home, before.codec)
    assert before.queued <= bodies.keys() | members(found.lost, max(before.bodies))


def test_salvage_passes_over_the_header_of_another_segment(tmp_path: Path) -> None:
    """What lies in the place of a segment tells nothing of the log: records behind it were taken for repeats."""
    before = Known(make_channel(tmp_path / "made"))
    home = tmp_path / NAME
    damage(before, home, [], keeps_checkpoints=False)
    shutil.copy(segments(home)[-1], segments(home)[1])
    found, bodies = salvaged(home, before.codec)
    assert before.queued <= bodies.keys() | members(found.lost, max(before.bodies))
    assert found.recovered.next_sequence == max(before.bodies) + 1


async def _killed(base: Path, target: Path, *, is_checkpointed: bool, **limits: Any) -> int:
    """Makes the files of a channel that was killed, perhaps behind a checkpoint; returns its last sequence."""
    async with open_hosted(base, segment_bytes_max=_SEGMENT_BYTES, **limits) as hosted:
        assert isinstance(hosted.store, LogStore)
        await append(hosted.channel, b"1", b"2")
        if is_checkpointed:
            await hosted.store._checkpointing.make()
        await hosted.channel.transactions.commit([await begin_with_takes(hosted.channel, 1)], None)
        receipt = await append(hosted.channel, b"3", b"4", b"5")
        await hosted.store._checkpointing.stop()
        _kill(base / NAME, target)
    return receipt.first_sequence + 2


@pytest.mark.parametrize("is_checkpointed", [True, False])
def test_salvage_of_a_killed_channel_without_its_last_segment_names_what_its_written_bytes_may_have_had(
    tmp_path: Path, *, is_checkpointed: bool
) -> None:
    """What was put or taken behind a checkpoint is lost with it; preallocated space had no events."""
    home = tmp_path / "killed" / NAME
    last = asyncio.run(_killed(tmp_path, home, is_checkpointed=is_checkpointed))
    [segment] = segments(home)
    _destroy(segment, SEGMENT_HEADER_BYTES)
    size = segment.stat().st_size
    document = run("log", "repair", home, "--json").stdout
    found, bodies = salvaged(home, Known(tmp_path / NAME).codec)
    assert not bodies
    assert set(range(2, last + 1)) <= members(found.lost, last)
    # Some file systems do not tell what was written.
    is_told = OsDisk().open(segment).written_end() < size
    assert last < found.recovered.next_sequence < (600 if is_told else 2 * size)
    assert found.bound_from == (3 if is_checkpointed else 1)
    assert f'"sequences_bound_from": {found.bound_from}' in document
    lines = run("log", "repair", home).stdout
    assert f"from {found.bound_from} on, this is an upper bound" in lines


def test_salvage_of_a_zeroed_log_counts_all_that_was_written(tmp_path: Path) -> None:
    """A block that the disk has lost may read as zeros, which are no proof that there was nothing."""
    home = tmp_path / "killed" / NAME
    last = asyncio.run(_killed(tmp_path, home, is_checkpointed=False))
    [segment] = segments(home)
    end = len(segment.read_bytes().rstrip(b"\0"))
    with segment.open("r+b") as file:
        file.seek(SEGMENT_HEADER_BYTES)
        file.write(bytes(end - SEGMENT_HEADER_BYTES))
    found, _ = salvaged(home, Known(tmp_path / NAME).codec)
    assert set(range(1, last + 1)) <= members(found.lost, last)


async def _killed_behind_a_checkpoint(base: Path, target: Path) -> None:
    async with open_hosted(base, segment_bytes_max=400) as hosted:
        assert isinstance(hosted.store, LogStore)
        await append(hosted.channel, b"before")
        await hosted.store._checkpointing.make()
        await append(hosted.channel, b"x" * 500)
        await append(hosted.channel, b"behind the checkpoint", b"and its segment")
        await hosted.store._checkpointing.stop()
        _kill(base / NAME, target)


def test_salvage_of_a_killed_channel_names_what_a_segment_behind_its_checkpoint_had(tmp_path: Path) -> None:
    """That records before the checkpoint are lost as well does not hide it."""
    home = tmp_path / "killed" / NAME
    asyncio.run(_killed_behind_a_checkpoint(tmp_path, home))
    former, last = segments(home)
    _destroy(former, SEGMENT_HEADER_BYTES)
    _destroy(last, 0)
    found, _ = salvaged(home, Known(tmp_path / NAME).codec)
    assert {1, 2, 3, 4} <= members(found.lost, 4)
    assert found.recovered.next_sequence > 4


@pytest.mark.parametrize("content", [b"", b"short"])
def test_salvage_of_a_last_segment_that_is_cut_off_names_as_many_as_another_has(tmp_path: Path, content: bytes) -> None:
    """It had a record at least, and nothing says how long it was."""
    before = known(tmp_path, _emptied)
    home = tmp_path / NAME
    damage(before, home, [], keeps_checkpoints=False)
    last = before.places[max(before.places)][0].segment.name
    for segment in segments(home):
        if segment.name > last:
            segment.unlink()
    (home / last).write_bytes(content)
    found, bodies = salvaged(home, before.codec)
    assert before.queued - bodies.keys()
    assert before.queued == bodies.keys() | (members(found.lost, max(before.bodies)) & before.queued)
    assert found.recovered.next_sequence > max(before.bodies)
    assert found.bound_from


async def _use_memory(channel: Channel) -> None:
    await append(channel, *[b"in the log"] * 10)
    await channel.transactions.commit([await begin_with_takes(channel, 10)], None)
    # Given to readers, and lost by the kill.
    await append(channel, b"in memory", b"too")


async def _killed_with_memory(base: Path, target: Path) -> None:
    async with open_hosted(base, **_MEMORY) as hosted:
        assert isinstance(hosted.store, LogStore)
        await _use_memory(hosted.channel)
        await hosted.store._checkpointing.stop()
        _kill(base / NAME, target)


def test_repair_of_a_spillable_log_without_any_reserve_gives_no_sequence_twice(tmp_path: Path) -> None:
    """`channel.json` says that the log is not that of a file channel, whatever is left of it."""
    home = tmp_path / "killed" / NAME
    asyncio.run(_killed_with_memory(tmp_path, home))
    before = Known(home, **_MEMORY)
    stating = [index for index, record in enumerate(before.records) if record.kind in {"STATE", "KEEP"}]
    damaged = tmp_path / "damaged" / NAME
    damage(before, damaged, [(index, 0) for index in stating], keeps_checkpoints=False)
    assert not {NEWEST, PREVIOUS} & {path.name for path in damaged.iterdir()}
    assert run("log", "repair", damaged, "--yes").exit_code == 0
    _, first = opened_again(damaged.parent, **_MEMORY)
    assert first > 12
