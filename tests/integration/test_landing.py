"""`millrace-spark land` against real servers, stopped by Ctrl-C or killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import millrace_client as millrace
from millrace_spark.landing import commands
from millrace_spark.landing.program import app
from tests.conftest import StartMillraced
from tests.fenced_blocks import blocks_of
from tests.millraced import Millraced
from tests.spark_session import JAVA_OPTIONS

PAGE = Path(__file__).parents[2] / "docs" / "landing.md"
CHANNELS = 'channels.web.type = "file"\nchannels.rejected-web.type = "file"'
EVENTS_MAX = 10_000
BAD_EVERY = 100
RUN_SECONDS_MAX = 240.0

SMALL = (
    *("--conf", f"spark.driver.extraJavaOptions={JAVA_OPTIONS}"),
    *("--conf", "spark.driver.memory=512m", "--master", "local[2]"),
)


def line(number: int) -> bytes:
    """Returns a line of an access log within three hours, or a bad line."""
    if number % BAD_EVERY == 0:
        return b"bad line %d" % number
    time = f"17/May/2015:{10 + number % 3:02}:05:03 +0000"
    return f'83.149.9.216 - - [{time}] "GET /{number} HTTP/1.1" 200 {number} "-" "Mozilla"'.encode()


class LandProgram:
    """The documented commands, in the test's own folder."""

    def __init__(self, folder: Path, servers: Sequence[Millraced]) -> None:
        self.folder = folder
        [config] = blocks_of(PAGE, "land")
        for number, server in enumerate(servers, start=1):
            config = config.replace(f"mill-{number}:7070", server.grpc)
        (folder / "web.toml").write_text(config, encoding="utf-8")

    def kill_in_a_batch(self, land: Sequence[str]) -> None:
        """Starts the command, and kills it while it writes its second batch."""
        small_batches = ("--set", "source.events_per_batch_max=1000")
        command = [sys.executable, "-m", "millrace_spark.cli", *land, *SMALL, *small_batches]
        with subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as killed:
            try:
                wait_until(killed, lambda: max(self.staged_batches(), default=0) >= 1)
            finally:
                killed.kill()
            errors = killed.communicate()[1]
        assert killed.returncode == -signal.SIGKILL, errors

    def staged_batches(self) -> set[int]:
        """Returns the numbers of the batches that are being written."""
        staging = self.folder / "landed" / "web.landing" / "staging"
        return {int(path.name.split("-")[-2]) for path in staging.glob("*-*-*")}


def wait_until(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    """Waits until a condition holds, or the process has ended."""
    give_up = time.monotonic() + RUN_SECONDS_MAX
    while process.poll() is None and not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def queued(servers: Sequence[Millraced], channel: str) -> int:
    count = 0
    for server in servers:
        with millrace.connect(server.grpc) as client:
            count += client.admin.get_channel(channel).gauges.queued_events
    return count


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("event_count", "is_killed"), [(300, False), pytest.param(2_500, True, marks=pytest.mark.torture)]
)
def test_land_followed_until_ctrl_c_lands_each_line_once(  # noqa: PLR0913 - fixtures and parameters
    start_millraced: StartMillraced,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    event_count: int,
    is_killed: bool,
) -> None:
    """The documented commands land each row and each bad line once, even after a kill during a batch."""
    servers = [start_millraced(CHANNELS) for _ in range(2)]
    for server in servers:
        server.wait_for("channel opened")
        with millrace.connect(server.grpc) as client:
            client.channel("web").append([line(number) for number in range(event_count)])
    program = LandProgram(tmp_path, servers)
    check, land = (command.split()[1:] for command in blocks_of(PAGE, "shell")[0].splitlines())
    monkeypatch.chdir(tmp_path)
    assert "web.toml: valid; lands web in" in CliRunner().invoke(app, check).output
    if is_killed:
        program.kill_in_a_batch(land)
        assert queued(servers, "web") > 0

    monkeypatch.setattr(commands, "spark_session", lambda *_, **__: nullcontext(spark))
    at_once = ("--set", "run.trigger_seconds=0", "--json")
    with interrupted_when(lambda: queued(servers, "web") == 0):
        followed = CliRunner().invoke(app, [*land, "--follow", *at_once])
    assert followed.exit_code == 0, followed.output
    report = json.loads(followed.stdout)
    assert report["outcome"] == "stopped"
    assert 0 < report["events"] <= 2 * event_count

    bad = {number for number in range(event_count) if number % BAD_EVERY == 0}
    wanted = {(server.grpc, number + 1) for server in servers for number in range(event_count) if number not in bad}
    landed = ds.dataset(tmp_path / "landed" / "web", partitioning="hive").to_table()
    rows = Counter(zip(landed["endpoint"].to_pylist(), landed["sequence"].to_pylist(), strict=True))
    assert rows == Counter(wanted)
    assert set(landed["hour"].to_pylist()) == {10, 11, 12}
    assert landed["bytes"].to_pylist() == [sequence - 1 for sequence in landed["sequence"].to_pylist()]
    assert sorted(rejected(servers)) == sorted(line(number) for number in bad for _ in servers)
    assert queued(servers, "web") == 0


@contextmanager
def interrupted_when(condition: Callable[[], bool]) -> Iterator[None]:
    """Sends SIGINT once a condition holds, or after a time limit."""
    give_up = time.monotonic() + RUN_SECONDS_MAX
    is_over = threading.Event()

    def interrupt() -> None:
        while not condition() and time.monotonic() < give_up and not is_over.wait(0.05):
            pass
        # Only while the program runs, since other tests in this process would fail on it.
        if not is_over.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    waiting = threading.Thread(target=interrupt, daemon=True)
    waiting.start()
    try:
        yield
    finally:
        is_over.set()
        waiting.join()


def rejected(servers: Sequence[Millraced]) -> list[bytes]:
    """Returns the bodies of all dead letters, after checking that each has a reason."""
    bodies = []
    for server in servers:
        with millrace.connect(server.grpc) as client:
            for batch in client.channel("rejected-web").peek(1, EVENTS_MAX):
                for event in batch:
                    assert event.headers["millrace.dead_letter.reason"] == "is not a line of an access log"
                    assert event.headers["millrace.dead_letter.channel"] == "web"
                    bodies.append(event.body)
    return bodies
