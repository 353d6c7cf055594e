"""`millrace bench` against a server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace_client import ChannelConfig, connect
from millrace_client.cli.exit_status import ExitCode
from tests.millrace_program import run_millrace
from tests.millraced import Millraced


@pytest.fixture
def channel(shared_server: Millraced, tmp_path: Path) -> Iterator[str]:
    name = f"bench-{tmp_path.name}"[:60].lower()
    with connect(shared_server.grpc) as client:
        client.admin.create_channel(name, ChannelConfig(capacity=100_000))
        yield name
        client.admin.delete_channel(name, force=True)


def bench(server: str, *arguments: str) -> Any:
    result = run_millrace(server, "bench", *arguments, "--json")
    assert (result.returncode, result.stderr) == (0, b"")
    return json.loads(result.stdout)


def test_bench_put_and_take_measure_what_they_move(shared_server: Millraced, channel: str) -> None:
    """What put stores is taken by take; both report rates and percentiles."""
    put = bench(shared_server.grpc, "put", channel, "--events", "500", "--body-bytes", "100", "--keys", "7")["put"]
    assert put["events"] == 500
    assert put["latency_milliseconds"]["p50"] > 0
    take = bench(shared_server.grpc, "take", channel)["take"]
    assert (take["events"], take["latency_milliseconds"]["max"] > 0) == (500, True)


def test_bench_both_takes_what_it_puts(shared_server: Millraced, channel: str) -> None:
    """The channel is empty before and after."""
    figures = bench(shared_server.grpc, "both", channel, "--seconds", "0.5", "--rate", "1000")
    assert figures["put"]["events"] == figures["take"]["events"] > 0
    with connect(shared_server.grpc) as client:
        assert client.admin.get_channel(channel).gauges.queued_events == 0


def test_bench_both_of_a_channel_in_use_is_refused(shared_server: Millraced, channel: str) -> None:
    """The benchmark would take events of others."""
    with connect(shared_server.grpc) as client:
        client.channel(channel).append([b"precious"])
    result = run_millrace(shared_server.grpc, "bench", "both", channel, "--seconds", "0.1")
    assert result.returncode == 1
    assert b"holds events, which this command would remove" in result.stderr


def test_bench_of_a_channel_that_is_not_there_says_so(shared_server: Millraced) -> None:
    """The error is the same as for every command."""
    result = run_millrace(shared_server.grpc, "bench", "put", "nosuch", "--events", "1")
    assert result.returncode == 1
    assert b"has no channel nosuch" in result.stderr


def test_bench_put_into_a_full_channel_says_what_it_waits_for_and_ends(shared_server: Millraced, channel: str) -> None:
    """The wait is reported at once, and the error is the channel's, not that of the client's buffer."""
    with connect(shared_server.grpc) as client:
        client.admin.update_channel(
            channel, ChannelConfig(capacity=100, transaction_capacity=50, keep_alive_seconds=0.05)
        )
    arguments = ("--timeout", "1", "bench", "put", channel, "--batch-events", "50", "--seconds", "0.2")
    result = run_millrace(shared_server.grpc, *arguments)
    waiting, ending = result.stderr.decode().splitlines()
    assert result.returncode == ExitCode.LATER
    assert waiting.endswith("; waiting for up to 1 s")
    for sentence in (waiting, ending):
        assert sentence.startswith("millrace: the channel holds 100 events of 100")
    assert "raise the capacity with" in ending
