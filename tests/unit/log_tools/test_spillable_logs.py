"""The tools on the log of a spillable channel, which does not contain all of its commits."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from millrace_server.channels.log_store import LogStore
from millrace_server.log_tools import view
from millrace_server.wal.checkpoints import NEWEST, PREVIOUS
from tests.channel_events import append, begin_with_takes
from tests.unit.log_tools.kept_channels import (
    NAME,
    durable_state_of,
    fill,
    open_hosted,
    opened_again,
    run,
    segments,
    verified,
)

LIMITS: dict[str, Any] = {"memory_capacity": 12, "memory_byte_capacity": 1 << 20}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped channel with events in memory, below `stopped`, and its state after a kill, below `killed`."""
    base = tmp_path_factory.mktemp("made")
    asyncio.run(_make(base))
    return base


async def _make(base: Path) -> None:
    async with open_hosted(base / "stopped", **LIMITS) as hosted:
        channel = hosted.channel
        for number in range(3):
            # Events in memory, then in the log, and then only those in memory remain.
            await fill(channel, 2, first_round=2 * number)
            await channel.purge()
            await append(channel, *[b"%d" % index for index in range(7)])
            txn_id = await begin_with_takes(channel, 3)
            await channel.transactions.commit([txn_id], None)
        await channel.claim("reader", 30.0, takeover=False)
        assert isinstance(hosted.store, LogStore)
        # Nothing may change during the copy.
        await hosted.store._checkpointing.stop()
        shutil.copytree(base / "stopped", base / "killed")


@pytest.fixture(params=["stopped", "killed"])
def home(made: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the channel's directory."""
    # No server is running that could still write the proof of the log's end.
    monkeypatch.setattr(view, "PROOF_SECONDS_MAX", 0.05)
    shutil.copytree(made / request.param, tmp_path / "channels")
    return tmp_path / "channels" / NAME


def test_verify_of_a_spillable_channel_finds_nothing(home: Path) -> None:
    """Sequences of events in memory are not gaps, and each checkpoint matches the log."""
    report = verified(home)
    assert (report.sentences, report.problems) == ([], [])
    assert report.recovered is not None


def test_verify_without_checkpoints_finds_the_same_channel(home: Path) -> None:
    """The log also contains what a checkpoint has about commits in memory."""
    before = durable_state_of(home)
    for name in (NEWEST, PREVIOUS):
        (home / name).unlink(missing_ok=True)
    assert (verified(home).sentences, durable_state_of(home)) == ([], before)


def test_dump_of_a_spillable_log_shows_what_was_kept(home: Path) -> None:
    """The fields have the names of the protos."""
    lines = [json.loads(line) for line in run("log", "dump", home, "--json").stdout.splitlines()]
    kept = [line["message"] for line in lines if line.get("kind") == "KEEP"]
    assert kept
    for message in kept:
        state = message["state"]
        if "reserved_sequence" in state:
            assert state["reserved_sequence"] > state["next_sequence"]
            # A stop writes the events in memory, and releases the reserve.
            assert "first_sequences" not in message


def test_repair_of_a_good_spillable_channel_does_nothing(home: Path) -> None:
    """A released reserve is not skipped."""
    before = durable_state_of(home)
    assert run("log", "repair", home, "--yes").exit_code == 0
    assert durable_state_of(home) == before


def test_repair_of_a_spillable_log_that_lost_its_end_gives_no_sequence_twice(home: Path) -> None:
    """The repaired log continues after all sequences that any record or checkpoint mentions or reserves."""
    last = segments(home)[-1]
    content = bytearray(last.read_bytes())
    content[100] ^= 1
    last.write_bytes(content)
    given = 64 + 1
    assert run("log", "repair", home, "--yes").exit_code == 0
    assert verified(home).sentences == []
    _, first = opened_again(home.parent, **LIMITS)
    assert first > given


def test_backup_and_restore_of_a_spillable_channel_is_the_same(home: Path, tmp_path: Path) -> None:
    """The copy contains everything in the log."""
    before = durable_state_of(home)
    assert run("backup", home, tmp_path / "backup").exit_code == 0
    shutil.rmtree(home)
    assert run("restore", tmp_path / "backup", home).exit_code == 0
    after = durable_state_of(home)
    assert (after.batches, after.next_sequence) == (before.batches, before.next_sequence)
    assert after.producers == before.producers


def test_open_of_a_stopped_spillable_channel_skips_no_sequence(made: Path, tmp_path: Path) -> None:
    """The events that were in memory are there, followed by the next one."""
    shutil.copytree(made / "stopped", tmp_path / "channels")
    events, first = opened_again(tmp_path / "channels", **LIMITS)
    assert [body for _, body in events] == [b"3", b"4", b"5", b"6"]
    assert first == events[-1][0] + 1
