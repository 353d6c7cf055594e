"""The tools on the files of a running server."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from millrace_client import Channel, ChannelState, Event, connect
from tests.conftest import StartMillraced
from tests.millrace_program import run_millrace, wait_for
from tests.millraced import Millraced, run_millraced

ROUNDS_IN_THE_SUITE = 2
ROUNDS = 12

CONFIG = """
[channels.orders]
type = "file"
min_free_bytes = 0
segment_bytes_max = 65536
checkpoint_interval_seconds = 0.1
"""


@dataclass
class Load:
    """What was acknowledged to clients so far."""

    acknowledged_through: int = 0
    """The last sequence that the server has acknowledged."""
    taken_through: int = 0
    """The last sequence whose take the server has acknowledged."""
    failures: list[BaseException] = field(default_factory=list)
    is_ending: threading.Event = field(default_factory=threading.Event)


def put(channel: Channel, load: Load) -> None:
    """Puts events with their sequence as the body, until the end."""
    while not load.is_ending.is_set():
        first = load.acknowledged_through + 1
        receipt = channel.append([b"%d" % sequence for sequence in range(first, first + 50)])
        assert (receipt.first_sequence, receipt.last_sequence) == (first, first + 49)
        load.acknowledged_through = receipt.last_sequence


def take(channel: Channel, load: Load) -> None:
    """Takes the oldest events until the end, slightly slower than they come."""
    while not load.is_ending.wait(0.002):
        with channel.transaction() as txn:
            batches = txn.take(40, wait_seconds=0.1)
        for batch in batches:
            load.taken_through = batch.last_sequence


@contextmanager
def under_load(server: Millraced) -> Iterator[Load]:
    """Runs a producer and a consumer until the end of the block."""
    load = Load()

    def run(work: Any) -> None:
        try:
            with connect(server.grpc) as client:
                work(client.channel("orders"), load)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test is to fail with it
            load.failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in (put, take)]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        load.is_ending.set()
        for thread in threads:
            thread.join()
    assert load.failures == []


def result_of(*arguments: str | Path) -> Any:
    """The JSON output of a command, which must succeed."""
    result = run_millraced(*arguments, "--json")
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    return json.loads(result.stdout)


def held(server: Millraced) -> dict[int, bytes]:
    """The content of a channel that was just opened."""
    with connect(server.grpc) as client:
        wait_for(client, "orders", lambda channel: channel.state is ChannelState.OPEN)
        found: dict[int, bytes] = {}
        while batches := list(client.channel("orders").peek(max(found, default=0) + 1, 10_000)):
            for batch in batches:
                found |= dict(enumerate(batch.bodies(), start=batch.first_sequence))
        return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rounds", [ROUNDS_IN_THE_SUITE, pytest.param(ROUNDS, marks=pytest.mark.torture)])
def test_backup_and_verify_under_load_find_no_damage_and_all_that_was_acknowledged(
    start_millraced: StartMillraced, tmp_path: Path, rounds: int
) -> None:
    """While segments are created and deleted, each backup has the channel's state at one moment, and opens."""
    server = start_millraced(CONFIG)
    home = server.data_dir / "channels" / "orders"
    before: list[tuple[int, int]] = []
    with connect(server.grpc) as client:
        wait_for(client, "orders", lambda channel: channel.state is ChannelState.OPEN)
    with under_load(server) as load:
        while not [*home.glob("segment-*2.log")]:
            time.sleep(0.01)
        for number in range(rounds):
            before.append((load.taken_through, load.acknowledged_through))
            result_of("backup", home, tmp_path / f"backup-{number}")
            assert result_of("log", "verify", home)["is_good"]
    assert server.stop() == 0
    assert result_of("log", "verify", home)["is_good"]
    for number, (taken_through, acknowledged_through) in enumerate(before):
        data_dir = tmp_path / f"restored-{number}"
        restored = result_of("restore", tmp_path / f"backup-{number}", data_dir / "channels" / "orders")
        assert restored["channel_id"] != restored["log_id"]
        again = start_millraced(CONFIG, data_dir)
        found = held(again)
        assert again.stop() == 0
        assert restored["state"]["next_sequence"] > acknowledged_through
        assert restored["state"]["events"] == len(found)
        first = min(found, default=restored["state"]["next_sequence"])
        assert first > taken_through
        # A prefix of the commits: the remaining events are a range without gaps.
        assert found == {sequence: b"%d" % sequence for sequence in range(first, restored["state"]["next_sequence"])}


def test_repair_while_a_server_runs_is_refused(start_millraced: StartMillraced) -> None:
    """Only one program may write to a channel; the error names the process that uses it."""
    server = start_millraced(CONFIG)
    with connect(server.grpc) as client:
        wait_for(client, "orders", lambda channel: channel.state is ChannelState.OPEN)
    refused = run_millraced("log", "repair", server.data_dir / "channels" / "orders", "--yes")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert f"(process {server.process.pid}) uses it" in refused.stderr


def test_tools_after_a_kill_find_a_good_channel(start_millraced: StartMillraced) -> None:
    """A kill causes no damage, and acknowledged events are there."""
    server = start_millraced(CONFIG)
    home = server.data_dir / "channels" / "orders"
    with connect(server.grpc) as client:
        wait_for(client, "orders", lambda channel: channel.state is ChannelState.OPEN)
        channel = client.channel("orders")
        receipts = [channel.append([b"x" * 1000] * 10) for _ in range(20)]
        server.kill()
    report = result_of("log", "verify", home)
    assert report["state"]["next_sequence"] == receipts[-1].last_sequence + 1
    assert run_millraced("log", "repair", home).returncode == 0


def test_repair_of_a_damaged_channel_has_the_server_open_it(start_millraced: StartMillraced) -> None:
    """The server refuses the channel, the tool keeps all but the damaged event, and the server continues after it."""
    server = start_millraced(CONFIG)
    home = server.data_dir / "channels" / "orders"
    with connect(server.grpc) as client:
        wait_for(client, "orders", lambda channel: channel.state is ChannelState.OPEN)
        for number in range(10):
            client.channel("orders").append([b"event-%d" % number])
    assert server.stop() == 0
    for checkpoint in home.glob("checkpoint*"):
        checkpoint.unlink()
    [segment] = home.glob("segment-*.log")
    content = bytearray(segment.read_bytes())
    content[content.index(b"event-4")] ^= 1
    segment.write_bytes(content)
    corrupt = start_millraced(CONFIG, server.data_dir)
    with connect(corrupt.grpc) as client:
        wait_for(client, "orders", lambda channel: channel.state is ChannelState.CORRUPT)
    assert corrupt.stop() == 0
    damaged = run_millraced("log", "verify", home)
    assert damaged.returncode == 1
    assert "is damaged at byte" in damaged.stderr
    repaired = result_of("log", "repair", home, "--yes")
    assert repaired["report"]["is_good"]
    again = start_millraced(CONFIG, server.data_dir)
    kept = held(again)
    with connect(again.grpc) as client:
        receipt = client.channel("orders").append([b"new"])
    assert repaired["sequences_lost"] == [[5, 5]]
    assert kept == {number + 1: b"event-%d" % number for number in range(10) if number != 4}
    assert receipt.first_sequence == 11


def test_export_of_a_channel_is_put_back_as_it_was(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """Headers and bodies have exactly the same bytes."""
    server = start_millraced(CONFIG)
    sent = [Event(bytes(range(256)), {"a": "ü\n\u2028"}), Event(b"", {}), Event(b"line\r\n", {"b": ""})]
    with connect(server.grpc) as client:
        client.channel("orders").append(sent)
    assert server.stop() == 0
    home = server.data_dir / "channels" / "orders"
    assert run_millraced("log", "export", home, "--to", tmp_path / "events.json").returncode == 0
    other = start_millraced(CONFIG, tmp_path / "other")
    put_back = run_millrace(other.grpc, "put", "orders", tmp_path / "events.json", "--json-lines")
    assert put_back.returncode == 0, put_back.stderr
    with connect(other.grpc) as client:
        [batch] = client.channel("orders").peek(1, 10)
        assert [(event.body, dict(event.headers)) for event in batch] == [
            (event.body, dict(event.headers)) for event in sent
        ]


def test_dump_whose_reader_leaves_ends_without_a_word(start_millraced: StartMillraced) -> None:
    """The exit code reports the broken pipe, not damage."""
    server = start_millraced(CONFIG)
    with connect(server.grpc) as client:
        for _ in range(100):
            client.channel("orders").append([bytes(1000)] * 10)
    server.stop()
    home = server.data_dir / "channels" / "orders"
    with subprocess.Popen(
        [sys.executable, "-m", "millrace_server", "log", "dump", "--json", home],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as dumping:
        assert dumping.stdout is not None
        assert dumping.stdout.readline()
        dumping.stdout.close()
        assert dumping.stderr is not None
        assert dumping.stderr.read() == b""
    assert dumping.returncode == 141
