import json
import random
import time
from pathlib import Path

import pytest

from millrace.dead_letters import DEAD_LETTER_PREFIX
from millrace_client import ChannelConfig, Client, Event, Stamp, connect
from millrace_client.dead_letters.targets import StampedEvents, append_pipelined
from tests.conftest import StartMillraced
from tests.millrace_program import run_millrace, started_millrace, wait_for
from tests.millraced import Millraced
from tests.waiting import wait_until

SEED = 90_117
WAIT_SECONDS_MAX = 60.0
LETTERS = 4_800

CHANNELS = """
[channels.orders]
type = "file"

[channels.logs]
type = "file"
transaction_capacity = 50

[channels.rejected]
type = "file"
lease_seconds = 1.0
"""

CHOOSY_SINK = '''
"""Writes lines, and rejects bad ones until somebody has mended it."""

from pathlib import Path

from millrace_server.agent.channel_reader import EventsRejectedError
from millrace_server.agent.sinks.sink import BatchSink


class ChoosySink(BatchSink):
    def __init__(self, place, *, directory):
        self._directory = Path(directory)

    async def write(self, batches):
        bodies = [body for batch in batches for _, body in batch.window.rows()]
        if not (self._directory / "mended").exists() and any(body.startswith(b"bad") for body in bodies):
            raise EventsRejectedError("line is\\x1b[31m bad")
        with (self._directory / "lines").open("ab") as file:
            file.writelines(body + b"\\n" for body in bodies)
'''


def _held(client: Client, channel: str) -> int:
    gauges = client.admin.get_channel(channel).gauges
    return gauges.queued_events + gauges.taken_events


def _bodies(client: Client, channel: str) -> list[bytes]:
    return [body for batch in client.channel(channel).peek(max_events=100_000) for body in batch.bodies()]


def test_dead_letters_of_a_sink_are_listed_and_replayed_when_it_is_mended(
    start_millraced: StartMillraced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command understands the agent's headers, and each line arrives once."""
    (tmp_path / "users_choosy.py").write_text(CHOOSY_SINK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = start_millraced(f"""
        {CHANNELS}
        [sinks.own]
        type = "custom"
        channel = "orders"
        factory = "users_choosy:ChoosySink"
        options = {{ directory = "{tmp_path}" }}
        deliveries_max = 1
        dead_letter_channel = "rejected"
    """)
    lines = [b"bad %d" % number if number % 4 == 0 else b"good %d" % number for number in range(12)]
    with connect(server.grpc) as client:
        client.channel("orders").append([Event(line, {"n": line.decode()}) for line in lines])
        wait_until(lambda: not _held(client, "orders"))
        listed = run_millrace(server.grpc, "dead-letter", "list", "rejected", "--json")
        letters = [json.loads(line) for line in listed.stdout.splitlines()]
        assert [(letter["body"], letter["channel_sequence"]) for letter in letters] == [
            *[("bad 0", 1), ("bad 4", 5), ("bad 8", 9)]
        ]
        assert {(letter["component"], letter["channel"], letter["deliveries"]) for letter in letters} == {
            ("sinks/own", "orders", 1)
        }
        table = run_millrace(server.grpc, "dead-letter", "list", "rejected").stdout.decode()
        assert "line is\\x1b[31m bad" in table
        assert len(table.splitlines()) == 4

        (tmp_path / "mended").touch()
        replay = run_millrace(server.grpc, "dead-letter", "replay", "rejected")
        assert (replay.returncode, replay.stdout) == (0, b"rejected: 3 events replayed (3 to orders)\n")
        wait_until(lambda: not _held(client, "orders"))
        assert _held(client, "rejected") == 0
        assert run_millrace(server.grpc, "dead-letter", "list", "rejected").returncode == 4
    assert sorted((tmp_path / "lines").read_bytes().splitlines()) == sorted(lines)
    assert server.stop() == 0


def test_dead_letters_whose_channel_was_deleted_stay_and_are_reported(start_millraced: StartMillraced) -> None:
    """The others are replayed; the exit code is 1, and `--to` helps."""
    server = start_millraced(CHANNELS)
    with connect(server.grpc) as client:
        client.channel("rejected").append([_letter(number, ["orders", "gone"][number % 2]) for number in range(10)])
        replay = run_millrace(server.grpc, "dead-letter", "replay", "rejected")
        assert (replay.returncode, replay.stdout) == (1, b"rejected: 5 events replayed (5 to orders)\n")
        assert b"5 events stay: the server has no channel gone" in replay.stderr
        assert _bodies(client, "rejected") == [b"1", b"3", b"5", b"7", b"9"]
        assert run_millrace(server.grpc, "dead-letter", "replay", "rejected", "--to", "logs").returncode == 0
        assert _bodies(client, "logs") == [b"1", b"3", b"5", b"7", b"9"]
        assert client.admin.get_channel("rejected").gauges.open_transactions == 0


def test_append_pipelined_stops_at_the_first_refusal(shared_server: Millraced) -> None:
    """Nothing after the refused request is stored, and all of it can be appended again with the same stamps."""
    appends = [
        StampedEvents([Event(b"x" * (2000 if number == 5 else 10))], Stamp("p", 2 * number, 2 * number))
        for number in range(9)
    ]
    responses = []
    with connect(shared_server.grpc) as client:
        client.admin.create_channel("pipelined", ChannelConfig(byte_capacity=1_000))
        channel = client.channel("pipelined")
        assert append_pipelined(channel, appends, lambda: responses.append(1)) == len(responses) == 5
        assert _held(client, "pipelined") == 5
        assert append_pipelined(channel, appends[6:], lambda: None) == 3
        assert append_pipelined(channel, appends[:5], lambda: None) == 5
        assert _held(client, "pipelined") == 8
        assert append_pipelined(client.channel("nosuch"), appends, lambda: None) == 0
        client.admin.delete_channel("pipelined", force=True)


def test_replay_that_is_killed_again_and_again_brings_each_event_once(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """Whether the command or the server is killed, no event is duplicated, lost or reordered."""
    chance = random.Random(SEED)
    kinds = [chance.choice(["orders", "orders", "orders", "logs", "stays"]) for _ in range(LETTERS)]
    server = start_millraced(CHANNELS, tmp_path / "data")
    with connect(server.grpc) as client:
        client.channel("rejected").append([_letter(number, kind) for number, kind in enumerate(kinds)])
    for round_number in range(2):
        _kill_amid_replay(server, chance, capacity=1_400 * (1 + round_number))
        if round_number == 0:
            server.kill()
            server = start_millraced(CHANNELS, tmp_path / "data")
    with connect(server.grpc) as client:
        wait_for(client, "rejected", lambda info: not info.gauges.open_transactions)
        client.admin.update_channel("orders", ChannelConfig(capacity=LETTERS))
        replay = run_millrace(server.grpc, "dead-letter", "replay", "rejected", "--reason", "again")
        assert replay.returncode == 0, replay.stderr
        for channel, kind in (("orders", "orders"), ("logs", "logs"), ("rejected", "stays")):
            expected = [b"%d" % number for number, each in enumerate(kinds) if each == kind]
            assert _bodies(client, channel) == expected, f"seed {SEED}: {channel}"
    assert server.stop() == 0


def _letter(number: int, channel: str) -> Event:
    reported = {"channel": channel, "reason": "never" if channel == "stays" else "again", "sink": "web"}
    return Event(b"%d" % number, {DEAD_LETTER_PREFIX + key: value for key, value in reported.items()})


def _kill_amid_replay(server: Millraced, chance: random.Random, capacity: int) -> None:
    """Kills a replay, which cannot end before: `orders` has too little space for its events."""
    with connect(server.grpc) as client:
        client.admin.update_channel("orders", ChannelConfig(capacity=capacity, transaction_capacity=1_000))
        stored = _held(client, "orders")
        # Events taken by a killed command return when its lease ends.
        wait_for(client, "rejected", lambda info: not info.gauges.open_transactions)
        with started_millrace(server.grpc, "dead-letter", "replay", "rejected", "--reason", "again") as replay:
            wait_until(lambda: _held(client, "orders") > stored)
            time.sleep(chance.uniform(0.0, 0.03))
            assert replay.poll() is None
            replay.kill()
