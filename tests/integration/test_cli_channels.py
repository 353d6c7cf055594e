import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millrace_client import ChannelState, connect
from tests.conftest import StartMillraced
from tests.millrace_program import run_millrace, wait_for
from tests.millraced import Millraced

UNUSED_ADDRESS = "127.0.0.1:1"
"""A port on which nothing listens."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server for the whole module, with the channel `orders`."""
    folder = tmp_path_factory.mktemp("cli-channels")
    (folder / "millrace.toml").write_text('[channels.orders]\ntype = "memory"\n')
    free_ports = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
    config = ("--config", str(folder / "millrace.toml"), "--data-dir", str(folder / "data"))
    millraced = Millraced((*config, *free_ports), folder / "data")
    yield millraced.grpc
    assert millraced.stop() == 0


def documents(server: str, *arguments: str) -> Any:
    result = run_millrace(server, *arguments, "--json")
    assert (result.returncode, result.stderr) == (0, b"")
    return json.loads(result.stdout)


def test_channel_from_creation_to_deletion_responds_to_each_command(millraced: Millraced) -> None:
    """The commands for the whole life of a channel, as in a script."""
    server = millraced.grpc
    assert documents(server, "channels") == []
    made = documents(server, "channel", "create", "orders", "--capacity", "500", "--byte-capacity", "1MiB")
    assert (made["config"]["capacity"], made["config"]["byte_capacity"]) == (500, 1_048_576)
    run_millrace(server, "put", "orders", typed=b"a\nb\nc\n")
    assert [channel["gauges"]["queued_events"] for channel in documents(server, "channels")] == [3]
    assert documents(server, "channel", "update", "orders", "--lease", "5")["config"]["lease_seconds"] == 5.0
    assert documents(server, "channel", "show", "orders")["config"]["capacity"] == 500
    assert run_millrace(server, "channel", "delete", "orders").returncode == 1
    assert documents(server, "channel", "purge", "orders") == {"purged_count": 3}
    assert run_millrace(server, "channel", "delete", "orders").returncode == 0
    assert documents(server, "channels") == []


def test_file_channel_keeps_what_was_put_while_the_server_is_away(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """The channel is created, filled and changed; after a restart of the server it is open and unchanged."""
    first = start_millraced(data_dir=tmp_path)
    limits = ("--type", "file", "--compression", "zstd", "--min-free-bytes", "0", "--checkpoint-interval", "0.5")
    made = documents(first.grpc, "channel", "create", "orders", *limits)
    assert (made["config"]["type"], made["config"]["compression"], made["state"]) == ("file", "zstd", "open")
    run_millrace(first.grpc, "put", "orders", typed=b"a\nb\nc\n")
    documents(first.grpc, "channel", "update", "orders", "--capacity", "10", "--transaction-capacity", "5")
    assert first.stop() == 0
    second = start_millraced(data_dir=tmp_path)
    with connect(second.grpc) as client:
        wait_for(client, "orders", lambda channel: channel.state is ChannelState.OPEN)
    [orders] = documents(second.grpc, "channels")
    assert (orders["gauges"]["queued_events"], orders["config"]["capacity"]) == (3, 10)
    assert (orders["config"]["compression"], orders["channel_id"]) == ("zstd", made["channel_id"])
    assert run_millrace(second.grpc, "take", "orders", "--max-events", "3").stdout == b"a\nb\nc\n"


def test_channel_retention_is_set_and_lifted(server: str) -> None:
    """A duration with a unit is in force at once, and 0 lifts it; `find` tells where younger events begin."""
    created = run_millrace(server, "channel", "create", "kept", "--retention", "2h", "--json")
    assert json.loads(created.stdout)["config"]["retention_seconds"] == 7_200.0
    run_millrace(server, "put", "kept", typed=b"a\nb\n")
    find = run_millrace(server, "channel", "find", "kept", "--since", "1h", "--json")
    assert json.loads(find.stdout)["sequence"] == 1
    [kept] = [one for one in json.loads(run_millrace(server, "channels", "--json").stdout) if one["name"] == "kept"]
    assert json.loads(find.stdout)["commit_time"] == kept["gauges"]["oldest_commit_time"]
    assert (kept["counters"]["event_expired_count"], kept["counters"]["refused"]) == (0, {})
    lifted = run_millrace(server, "channel", "update", "kept", "--retention", "0", "--json")
    assert json.loads(lifted.stdout)["config"]["retention_seconds"] is None


def test_channel_update_without_space_to_shrink_changes_nothing(server: str) -> None:
    """The exit code says that a retry may succeed."""
    run_millrace(server, "channel", "create", "wide", "--type=memory", "--transaction-capacity=2", "--keep-alive=0.1")
    run_millrace(server, "put", "wide", typed=b"a\nb\nc\n")
    shrunk = run_millrace(server, "channel", "update", "wide", "--capacity", "2")
    assert (shrunk.returncode, shrunk.stdout) == (5, b"")
    assert shrunk.stderr.startswith(b"millrace: nothing was changed: ")
    assert shrunk.stderr.count(b"nothing was changed") == 1
    assert documents(server, "channel", "show", "wide")["config"]["capacity"] == 100


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (["channel", "show", "nosuch"], 1, "has no channel nosuch; see the names with `millrace channels`"),
        (["take", "nosuch"], 1, "has no channel nosuch;"),
        (["peek", "nosuch"], 1, "has no channel nosuch;"),
        (["tail", "nosuch"], 1, "has no channel nosuch;"),
        (["put", "nosuch"], 1, "has no channel nosuch;"),
        (["channel", "create", "orders"], 1, "change its limits with `millrace channel update orders`"),
        (["channel", "create", "../x"], 2, "'../x'"),
        (["channel", "create", ""], 2, "''"),
        (["channel", "create", "x" * 300], 2, "must match"),
        (["channel", "create", "big", "--capacity", "9999999999999"], 2, "config.capacity: is 9999999999999;"),
        (["channel", "create", "seg", "--type", "file", "--segment-bytes-max", "1"], 2, "segment_bytes_max: is 1;"),
        (["channel", "create", "log", "--type=memory", "--fsync=commit"], 2, 'config.fsync: is only for type "file"'),
        (["channel", "update", "orders", "--compression", "zstd"], 2, 'config.compression: is only for type "file"'),
        (["channel", "create", "huge", "--capacity", "9" * 30], 2, "capacity: is 999"),
        (["channel", "update", "orders", "--transaction-capacity", "101"], 2, "transaction_capacity"),
        (["channel", "update", "orders", "--lease", "inf"], 2, "lease_seconds: is inf;"),
        (["peek", "orders", "--from", "9" * 30], 2, "from_sequence: is 999"),
        (["put", "orders", *(f"--header={number}=x" for number in range(257))], 2, "256"),
    ],
)
def test_refusals_of_the_server_end_in_a_sentence(
    server: str, arguments: list[str], exit_code: int, words: str
) -> None:
    """The output is one sentence on standard error, nothing on standard output, and the exit code of its kind."""
    result = run_millrace(server, *arguments, typed=b"a\n")
    refusal = result.stderr.decode().splitlines()[0]
    assert (result.returncode, result.stdout) == (exit_code, b"")
    assert refusal.startswith("millrace: ")
    assert words in refusal
    assert "Traceback" not in result.stderr.decode()


def test_commands_without_a_server_end_with_3() -> None:
    """The sentence names the address, and how to start a server or name another."""
    commands = (["channels"], ["put", "orders"], ["tail", "orders"])
    # Each tries for a while, so they do it at the same time.
    with ThreadPoolExecutor(len(commands)) as pool:
        results = list(pool.map(lambda command: run_millrace(UNUSED_ADDRESS, *command), commands))
    for result in results:
        assert (result.returncode, result.stdout) == (3, b"")
        assert result.stderr.decode() == (
            f"millrace: no server responds at {UNUSED_ADDRESS}; start one with `millraced serve`,"
            " or name another with --server or MILLRACE_SERVER\n"
        )


def test_channels_onto_a_full_disk_end_in_a_sentence(server: str) -> None:
    """An error while writing the table is reported without a traceback."""
    with Path("/dev/full").open("wb") as full:
        result = run_millrace(server, "channels", output=full)
    assert (result.returncode, result.stderr) == (
        1,
        b"millrace: cannot write the output: No space left on device\n",
    )


def test_channels_into_a_pipe_that_closed_end_quietly(server: str) -> None:
    """This is the usual behaviour in a pipeline."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        result = run_millrace(server, "channels", output=closed)
    assert (result.returncode, result.stderr) == (141, b"")
