"""A server with a sink that writes files."""

import random
import resource
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import millrace_client as millrace
from tests.conftest import StartMillraced
from tests.fake_s3 import fake_s3
from tests.files_sink import files_below, lines_below, unfinished_below
from tests.millraced import Millraced
from tests.waiting import wait_until

SEED = 20_260_101
PATIENCE_SECONDS = 30.0

CHANNEL = """
[channels.orders]
type = "{channel_type}"
capacity = 100000
transaction_capacity = 10000
"""

SINK = """
[sinks.archive]
type = "files"
channel = "orders"
path = "{path}"
"""


def _config(path: Path | str, *settings: str, channel_type: str = "file") -> str:
    return CHANNEL.format(channel_type=channel_type) + SINK.format(path=path) + "\n".join(settings)


def _append(server: Millraced, numbers: range) -> None:
    with millrace.connect(server.grpc) as client:
        events = [millrace.Event(str(number).encode(), {"host": f"web-{number % 3}"}) for number in numbers]
        client.channel("orders").append(events)


def _left(client: millrace.Client) -> int:
    gauges = client.admin.get_channel("orders").gauges
    return gauges.queued_events + gauges.taken_events


def test_sink_stopped_with_its_server_finishes_its_files_at_once(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """A clean stop waits neither for a file's deadline nor for the grace time, and leaves nothing unfinished."""
    (tmp_path / "out").mkdir()
    settings = ('format = "parquet"', 'compression = "zstd"', "roll_seconds = 3600")
    # A server that used its grace time would outlast the wait for its end.
    grace = "server.shutdown_grace_seconds = 600.0\n"
    server = start_millraced(grace + _config(tmp_path / "out" / "host={header:host}", *settings))
    _append(server, range(3_000))
    with millrace.connect(server.grpc) as client:
        # Events that are still queued when the server stops stay in the channel.
        wait_until(lambda: client.admin.get_channel("orders").gauges.taken_events == 3_000)
    assert len(unfinished_below(tmp_path / "out")) == 3
    assert server.stop() == 0
    assert unfinished_below(tmp_path / "out") == []
    table = pq.read_table(tmp_path / "out")
    assert sorted(map(int, table["body"].to_pylist())) == list(range(3_000))
    assert sorted(table["sequence"].to_pylist()) == list(range(1, 3_001))
    assert {host.as_py() for host in table["host"].unique()} == {"web-0", "web-1", "web-2"}


def _check_kills(start_millraced: StartMillraced, tmp_path: Path, kills: int, chance: random.Random) -> None:
    """Kills a server repeatedly while it writes; then each event must be in exactly one finished file."""
    out, data_dir = tmp_path / "out", tmp_path / "data"
    out.mkdir()
    config = _config(out / "{header:host}", "roll_events = 400", "roll_seconds = 0.2", "batch_events_max = 700")
    sent = 0
    for _ in range(kills):
        server = start_millraced(config, data_dir)
        for _ in range(chance.randrange(1, 5)):
            _append(server, range(sent, sent + 2_000))
            sent += 2_000
        time.sleep(chance.uniform(0.0, 0.3))
        server.kill()
    server = start_millraced(config, data_dir)
    with millrace.connect(server.grpc) as client:
        wait_until(lambda: not _left(client))
    assert server.stop() == 0
    assert sorted(map(int, lines_below(out))) == list(range(sent))
    assert unfinished_below(out) == []
    assert list((data_dir / "sinks" / "archive" / "receipts").iterdir()) == []


def test_sink_killed_again_and_again_has_each_event_in_one_file(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """Each event is in exactly one finished file, and no unfinished file remains."""
    _check_kills(start_millraced, tmp_path, 4, random.Random(SEED))


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(5))
def test_sink_killed_very_often_has_each_event_in_one_file(
    start_millraced: StartMillraced, tmp_path: Path, seed: int
) -> None:
    """The same for longer."""
    _check_kills(start_millraced, tmp_path, 25, random.Random(seed))


def test_sink_whose_files_may_not_grow_says_so_and_goes_on_when_they_may(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """When the kernel refuses to write, no event is lost, the reason is logged, and the sink recovers by itself."""
    out = tmp_path / "out"
    out.mkdir()
    server = start_millraced(_config(out, "roll_seconds = 0.1", channel_type="memory"))
    limit = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1_000, limit[1]))
    _append(server, range(2_000))
    assert "File too large" in server.wait_for("backs off")["reason"]
    assert files_below(out) == []
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limit)
    server.wait_for("works again")
    wait_until(lambda: len(lines_below(out)) >= 2_000)
    assert sorted(map(int, lines_below(out))) == list(range(2_000))


def test_sink_on_s3_that_refuses_at_first_brings_everything_in_the_end(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """Objects are complete and named after their events; a refusal is logged and retried."""
    with fake_s3() as s3:
        s3.refuses = True
        options = f'{{ endpoint_override = "{s3.endpoint}", scheme = "http", access_key = "a", secret_key = "b" }}'
        settings = ('format = "json"', 'compression = "gzip"', "roll_seconds = 0.1", f"options = {options}")
        server = start_millraced(_config("s3://bucket/orders/{header:host}", *settings))
        _append(server, range(300))
        assert "ACCESS_DENIED" in server.wait_for("backs off")["reason"]
        assert s3.objects == {}
        s3.refuses = False
        server.wait_for("works again")
        assert server.stop() == 0
        objects = dict(s3.objects)
    assert {key.rpartition("/")[0] for key in objects} == {f"bucket/orders/web-{number}" for number in range(3)}
    for key, content in objects.items():
        path = tmp_path / "read" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert len(lines_below(tmp_path / "read")) == 300
