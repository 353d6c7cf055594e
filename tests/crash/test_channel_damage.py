"""Flipped bits and cut ends in the files of a small channel: detected, or harmless."""

import asyncio
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from millrace_server.channels.stamps import Stamp
from millrace_server.errors import ChannelCorruptError
from millrace_server.wal.checkpoints import NEWEST, PREVIOUS
from millrace_server.wal.format import UnknownVersionError
from millrace_server.wal.segments import LogCorruptError
from tests.crash.channel_histories import Story, new_disk
from tests.fuzz import channel_calls as calls
from tests.segment_versions import LATER_VERSION, of_version
from tests.simulated_channels import DATA, Held, make_simple, open_simulated_channel, small_limits
from tests.simulated_disk import SimulatedDisk

_CONFIG = small_limits(segment_bytes_max=100)
_CHECKPOINTS = [DATA / NEWEST, DATA / PREVIOUS]

_SEGMENTS_MIN = 3
_FLIPS_IN_THE_SUITE = 1_000
_CUTS_IN_THE_SUITE = 300


class WrittenChannel:
    """A channel with all kinds of content in a few segments and two checkpoints."""

    def __init__(self) -> None:
        self.stopped: SimulatedDisk
        """As a server that stopped has left it."""
        self.killed: SimulatedDisk
        """As one has left it that was killed in a silence, some commits behind its last checkpoint."""
        self.held: Held
        asyncio.run(self._write())

    async def _write(self) -> None:
        story = Story(new_disk(random.Random(1)), config=_CONFIG)
        await story.open()
        for number in range(3):
            await story.do(calls.Append([b"%d" % number, b"more"], None))
        await story.do(calls.Begin("t", 60.0))
        await story.do(calls.Take("t", 3, 0, 0.0, None))
        await story.do(calls.Put("t", [b"swapped"], 1, None))
        await story.do(calls.Commit(["t"], None))
        # The first one begins a segment; the others share a record.
        together = [calls.Append([b"%d" % number], Stamp("p", number, number)) for number in range(3)]
        await story.do(*together)
        await story.checkpoint()
        story.mark()
        self.held = story.states[-1]
        self.killed = story.disk.copy()
        await story.stop()
        self.stopped = story.disk
        for disk in (self.killed, self.stopped):
            assert disk.paths()[:2] == _CHECKPOINTS
            assert len(disk.paths()) >= len(_CHECKPOINTS) + _SEGMENTS_MIN


@pytest.fixture(scope="module")
def written() -> Iterator[WrittenChannel]:
    """One channel for all tests of this module, each of which damages copies."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        make_simple(monkeypatch)
        yield WrittenChannel()


async def _is_found(disk: SimulatedDisk, held: Held) -> bool:
    """Whether damage is reported when the channel is opened or read; if not, the channel is unchanged."""
    before = disk.fingerprint()
    try:
        opened = await open_simulated_channel(disk, _CONFIG)
    except (LogCorruptError, UnknownVersionError):
        assert disk.fingerprint() == before, "what is damaged is left as it is"
        return True
    try:
        assert Held.by(opened.channel) == held
    except ChannelCorruptError:
        assert opened.store.fault
        assert len(opened.changes) == 1
        return True
    finally:
        opened.abandon()
    return False


def _flips(disk: SimulatedDisk) -> list[tuple[Path, int]]:
    return [(path, bit) for path in disk.paths() for bit in range(8 * len(disk.content(path)))]


def _cuts(disk: SimulatedDisk) -> list[tuple[Path, int]]:
    return [(path, length) for path in disk.paths() for length in range(len(disk.content(path)))]


async def _check_flips(disk: SimulatedDisk, held: Held, flips: Iterable[tuple[Path, int]]) -> None:
    for path, bit in flips:
        content = bytearray(disk.content(path))
        content[bit // 8] ^= 1 << bit % 8
        damaged = disk.copy()
        damaged.set_content(path, content)
        is_found = await _is_found(damaged, held)
        assert not is_found or path not in _CHECKPOINTS, f"bit {bit} of {path}: there is another checkpoint"


async def _check_cuts(disk: SimulatedDisk, held: Held, cuts: Iterable[tuple[Path, int]]) -> None:
    for path, length in cuts:
        damaged = disk.copy()
        damaged.set_content(path, disk.content(path)[:length])
        is_found = await _is_found(damaged, held)
        assert not is_found or path not in _CHECKPOINTS, f"{path} cut to {length} bytes: there is another checkpoint"


@pytest.mark.parametrize("end", ["stopped", "killed"])
async def test_open_with_a_bit_flipped_finds_it_or_loses_nothing(
    end: str, written: WrittenChannel, chance: random.Random
) -> None:
    """A single flipped bit in a segment or a checkpoint is reported, or the channel is unchanged."""
    disk: SimulatedDisk = getattr(written, end)
    await _check_flips(disk, written.held, chance.sample(_flips(disk), _FLIPS_IN_THE_SUITE))


@pytest.mark.torture
@pytest.mark.parametrize("end", ["stopped", "killed"])
async def test_open_with_any_bit_flipped_finds_it_or_loses_nothing(end: str, written: WrittenChannel) -> None:
    """The same for each bit."""
    disk: SimulatedDisk = getattr(written, end)
    await _check_flips(disk, written.held, _flips(disk))


@pytest.mark.parametrize("end", ["stopped", "killed"])
async def test_open_with_a_file_cut_finds_it_or_loses_nothing(
    end: str, written: WrittenChannel, chance: random.Random
) -> None:
    """A file that was cut is reported, or the channel is unchanged: a checkpoint knows where the log ended."""
    disk: SimulatedDisk = getattr(written, end)
    cuts = _cuts(disk)
    await _check_cuts(disk, written.held, chance.sample(cuts, min(_CUTS_IN_THE_SUITE, len(cuts))))


@pytest.mark.torture
@pytest.mark.parametrize("end", ["stopped", "killed"])
async def test_open_with_a_file_cut_anywhere_finds_it_or_loses_nothing(end: str, written: WrittenChannel) -> None:
    """The same for each length."""
    disk: SimulatedDisk = getattr(written, end)
    await _check_cuts(disk, written.held, _cuts(disk))


async def test_open_with_a_file_missing_finds_it_or_loses_nothing(written: WrittenChannel) -> None:
    """Any single file may be missing: a needed segment is reported, and one of the checkpoints is enough."""
    for disk in (written.stopped, written.killed):
        found = []
        for path in disk.paths():
            damaged = disk.copy()
            damaged.remove(path)
            found.append(await _is_found(damaged, written.held))
        assert not any(found[: len(_CHECKPOINTS)])
        assert all(found[len(_CHECKPOINTS) + 1 :])


async def test_open_with_both_checkpoints_damaged_reads_the_whole_log(written: WrittenChannel) -> None:
    """The log alone suffices."""
    damaged = written.stopped.copy()
    for path in _CHECKPOINTS:
        damaged.set_content(path, b"MILLCHKP")
    assert not await _is_found(damaged, written.held)


async def test_open_of_another_version_is_refused_and_writes_nothing(written: WrittenChannel) -> None:
    """Files of a later Millrace stay unchanged."""
    damaged = written.stopped.copy()
    last = damaged.paths()[-1]
    damaged.set_content(last, of_version(damaged.content(last), LATER_VERSION))
    before = damaged.fingerprint()
    with pytest.raises(UnknownVersionError):
        await open_simulated_channel(damaged, _CONFIG)
    assert damaged.fingerprint() == before
