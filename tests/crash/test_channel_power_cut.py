"""Power cuts and kills at every change that a file channel makes to its disk, also while it recovers."""

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from millrace_server.channels.config import EncryptionConfig, FileChannelConfig
from millrace_server.channels.stamps import Stamp
from tests.crash.channel_histories import CLOCK, Moment, Recording, Story, check_moment, new_disk, recorded
from tests.file_channels import put_version_1
from tests.fuzz import channel_calls as calls
from tests.simulated_channels import DATA, TWO_DIRECTORIES, Held, held_on, small_limits
from tests.simulated_disk import SimulatedDisk

pytestmark = pytest.mark.usefixtures("simple_channels")

Configs = Callable[[Path], Sequence[FileChannelConfig]]

_DISK_STATES_MIN = 10_000


def _usual(_scratch: Path) -> list[FileChannelConfig]:
    return [small_limits()]


def _without_backup(_scratch: Path) -> list[FileChannelConfig]:
    return [small_limits(backup_checkpoint=False, segment_bytes_max=600)]


def _now_and_then_synced(_scratch: Path) -> list[FileChannelConfig]:
    return [small_limits(fsync="interval", fsync_interval_seconds=3600)]


def _on_three_disks(scratch: Path) -> list[FileChannelConfig]:
    """Two for the log and one for checkpoints; with another codec after each restart."""
    places: dict[str, Any] = {"data_dirs": list(TWO_DIRECTORIES), "checkpoint_dir": DATA}
    keys = {key_id: scratch / key_id for key_id in ("old", "new")}
    for key_id, path in keys.items():
        path.write_bytes(key_id.encode().ljust(32, b"k"))
        path.chmod(0o600)
    sealings: list[dict[str, Any]] = [
        {"encryption": EncryptionConfig(keys=keys, active_key=active_key), "compression": compression}
        for active_key in keys
        for compression in ("none", "zstd")
    ]
    return [small_limits(**places, **sealing) for sealing in sealings]


CONFIGS = [_usual, _without_backup, _now_and_then_synced, _on_three_disks]


def _recorded(configs: Sequence[FileChannelConfig], chance: random.Random, step_count: int) -> list[Moment]:
    return asyncio.run(recorded(new_disk(chance, (DATA, *TWO_DIRECTORIES)), chance, step_count, configs))


@pytest.mark.parametrize("configs_in", CONFIGS)
def test_open_after_a_crash_at_any_change_finds_what_was_acknowledged(
    configs_in: Configs, tmp_path: Path, chance: random.Random
) -> None:
    """Everything acknowledged is there, the rest is complete or absent and in order; reopening finds the same."""
    for moment in _recorded(configs_in(tmp_path), chance, 25):
        asyncio.run(check_moment(moment, chance, 1))


@pytest.mark.parametrize("configs_in", CONFIGS)
def test_open_after_a_crash_in_a_long_history_finds_what_was_acknowledged(
    configs_in: Configs, tmp_path: Path, chance: random.Random
) -> None:
    """The same with many segments and checkpoints."""
    moments = _recorded(configs_in(tmp_path), chance, 100)
    for moment in chance.sample(moments, min(12, len(moments))):
        asyncio.run(check_moment(moment, chance, 3))


@pytest.mark.torture
def test_open_after_ten_thousand_power_cuts_finds_what_was_acknowledged(tmp_path: Path, chance: random.Random) -> None:
    """Recordings with each configuration give 10,000 distinct disks, and none of them loses anything."""
    fingerprints: set[int] = set()
    for configs_in in cycle(CONFIGS):
        for moment in _recorded(configs_in(tmp_path), chance, 300):
            fingerprints |= asyncio.run(check_moment(moment, chance, 6))
        if len(fingerprints) >= _DISK_STATES_MIN:
            break


@pytest.mark.parametrize("configs_in", CONFIGS)
async def test_open_after_a_crash_while_an_emptied_log_begins_anew_finds_what_was_acknowledged(
    configs_in: Configs, tmp_path: Path, chance: random.Random
) -> None:
    """Stamps, outcomes and sequences are there at every moment, and what was consumed never returns."""
    story = Story(new_disk(chance, (DATA, *TWO_DIRECTORIES)), config=configs_in(tmp_path)[0])
    await story.open()
    recording = Recording(story.disk, story.moment)
    for number in range(3):
        await story.do(calls.Append([bytes(800), bytes(800)], Stamp("p", 2 * number, 2 * number + 1)))
        await story.do(calls.Begin(f"t{number}", 3600.0))
        await story.do(calls.Take(f"t{number}", 2, 0, 0.0, None))
        await story.do(calls.Commit([f"t{number}"], None))
        await story.checkpoint()
        await story.checkpoint()
        assert story.opened.store.log_bytes < 600
    story.kill()
    for moment in recording.end():
        await check_moment(moment, chance, 2)


async def test_open_after_a_crash_while_a_part_of_a_run_expires_finds_the_rest(chance: random.Random) -> None:
    """The run is read to be cut; the expired part is gone as a whole or not at all, and never returns."""
    story = Story(new_disk(chance))
    await story.open()
    for number in range(4):
        CLOCK.micros += 1
        await story.do(calls.Append([b"%d" % number], None))
    recording = Recording(story.disk, story.moment)
    for age_micros in (1, 0):
        await story.expire(age_micros)
    assert [body for _, body in story.states[-1].events] == [b"3"]
    story.kill()
    for moment in recording.end():
        await check_moment(moment, chance, 2)


async def test_open_finds_a_take_across_parts_of_a_checkpoint(chance: random.Random) -> None:
    """Events taken in part at a checkpoint, returned, and then taken as a whole are removed."""
    story = Story(new_disk(chance))
    await story.open()
    await story.do(calls.Append([b"one", b"two", b"three"], None))
    await story.do(calls.Begin("part", 3600.0))
    await story.do(calls.Take("part", 1, 0, 0.0, None))
    await story.checkpoint()
    await story.do(calls.Rollback("part"))
    await story.do(calls.Begin("whole", 3600.0))
    await story.do(calls.Take("whole", 2, 0, 0.0, None))
    await story.do(calls.Commit(["whole"], None))
    story.kill()
    held = await held_on(story.disk)
    assert held.events == ((3, b"three"),)
    assert held == story.states[-1]


async def test_open_without_any_checkpoint_reads_the_whole_log(chance: random.Random) -> None:
    """The remaining log after the removal of segments contains everything in both checkpoints."""
    for _history in range(5):
        disk = new_disk(chance)
        moments = await recorded(disk, chance, 120)
        [held] = moments[-1].allowed.after_cut
        for path in disk.paths():
            if path.name.startswith("checkpoint"):
                disk.remove(path)
        assert await held_on(disk) == held


async def test_open_after_a_crash_of_a_log_of_two_versions_finds_what_was_acknowledged(chance: random.Random) -> None:
    """A log that an earlier release began, without times, goes on with them."""
    disk = SimulatedDisk([DATA], chance.randrange(1 << 32))
    put_version_1(disk)
    held = await held_on(disk.copy())
    assert (len(held.events), set(held.times)) == (46, {0})
    moments = await recorded(disk, chance, 40, held=held)
    for moment in chance.sample(moments, min(40, len(moments))):
        await check_moment(moment, chance, 1)


async def test_open_of_a_missing_channel_creates_it(chance: random.Random) -> None:
    """A new channel is empty, and so is one whose creation was interrupted."""
    disk = new_disk(chance)
    assert await held_on(disk) == Held.nothing()
    assert await held_on(disk.crashed(chance.randrange(1 << 32))) == Held.nothing()
