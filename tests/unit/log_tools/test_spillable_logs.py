"""The tools on the log of a spillable channel, which does not have all of its commits."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from millrace_server.channels.file_store import FileStore
from millrace_server.wal.checkpoints import NEWEST, PREVIOUS
from tests.channel_events import append, begin_with_takes
from tests.unit.log_tools.kept_channels import (
    NAME,
    fill,
    open_hosted,
    opened_anew,
    run,
    segments,
    story_of,
    verified,
)

LIMITS: dict[str, Any] = {"memory_capacity": 12, "memory_byte_capacity": 1 << 20}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Below `stopped` a channel that was, with events in memory; below `killed` the same as a kill would leave it."""
    base = tmp_path_factory.mktemp("made")
    asyncio.run(_make(base))
    return base


async def _make(base: Path) -> None:
    async with open_hosted(base / "stopped", **LIMITS) as hosted:
        channel = hosted.channel
        for number in range(3):
            # In memory, then beyond it, then all of it out again but for what is in memory.
            await fill(channel, 2, first_round=2 * number)
            await channel.purge()
            await append(channel, *[b"%d" % index for index in range(7)])
            txn_id = await begin_with_takes(channel, 3)
            await channel.transactions.commit([txn_id], None)
        await channel.claim("reader", 30.0, takeover=False)
        assert isinstance(hosted.store, FileStore)
        # Nothing moves while it is copied.
        await hosted.store._checkpointing.stop()
        shutil.copytree(base / "stopped", base / "killed")


@pytest.fixture(params=["stopped", "killed"])
def home(made: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of its directory."""
    shutil.copytree(made / request.param, tmp_path / "channels")
    return tmp_path / "channels" / NAME


def test_verify_of_a_spillable_channel_finds_nothing(home: Path) -> None:
    """Sequences that events in memory had are no gaps, and each checkpoint comes to what the log comes to."""
    report = verified(home)
    assert (report.sentences, report.problems) == ([], [])
    assert report.recovered is not None


def test_verify_without_checkpoints_finds_the_same_channel(home: Path) -> None:
    """What a checkpoint says of commits in memory is in the log too."""
    before = story_of(home)
    for name in (NEWEST, PREVIOUS):
        (home / name).unlink(missing_ok=True)
    assert (verified(home).sentences, story_of(home)) == ([], before)


def test_dump_of_a_spillable_log_shows_what_was_kept(home: Path) -> None:
    """As all records: with the names of the protos."""
    lines = [json.loads(line) for line in run("log", "dump", home, "--json").stdout.splitlines()]
    kept = [line["message"] for line in lines if line.get("kind") == "KEEP"]
    assert kept
    for message in kept:
        state = message["state"]
        if "reserved_sequence" in state:
            assert state["reserved_sequence"] > state["next_sequence"]
            # A stop, which writes what was in memory, takes the reserve back.
            assert "first_sequences" not in message


def test_repair_of_a_good_spillable_channel_does_nothing(home: Path) -> None:
    """A reserve that was taken back is not skipped."""
    before = story_of(home)
    assert run("log", "repair", home, "--yes").exit_code == 0
    assert story_of(home) == before


def test_repair_of_a_spillable_log_that_lost_its_end_gives_no_sequence_twice(home: Path) -> None:
    """The repaired log continues behind all sequences that any record or checkpoint mentions or reserves."""
    last = segments(home)[-1]
    content = bytearray(last.read_bytes())
    content[100] ^= 1
    last.write_bytes(content)
    given = 64 + 1
    assert run("log", "repair", home, "--yes").exit_code == 0
    assert verified(home).sentences == []
    _, first = opened_anew(home.parent, **LIMITS)
    assert first > given


def test_backup_and_restore_of_a_spillable_channel_is_the_same(home: Path, tmp_path: Path) -> None:
    """It has everything that is in its log."""
    before = story_of(home)
    assert run("backup", home, tmp_path / "backup").exit_code == 0
    shutil.rmtree(home)
    assert run("restore", tmp_path / "backup", home).exit_code == 0
    after = story_of(home)
    assert (after.batches, after.next_sequence) == (before.batches, before.next_sequence)
    assert after.producers == before.producers


def test_open_of_a_stopped_spillable_channel_skips_no_sequence(made: Path, tmp_path: Path) -> None:
    """What was in memory is there, behind it the next one."""
    shutil.copytree(made / "stopped", tmp_path / "channels")
    events, first = opened_anew(tmp_path / "channels", **LIMITS)
    assert [body for _, body in events] == [b"3", b"4", b"5", b"6"]
    assert first == events[-1][0] + 1
