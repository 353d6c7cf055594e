"""The rounds of the program that `make run` starts, with its landing in the tests' own Spark."""

import io
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from examples.access_log import job
from examples.access_log.agents import Agents, RoundLimits, two_agents
from examples.access_log.cluster import agents_on_a_cluster
from examples.access_log.job import Job
from examples.access_log.landing import LandingPlan, LandingProcess
from examples.access_log.log_file import open_log_file
from millrace_spark.landing.config_file import load_config
from millrace_spark.landing.landing_run import Landing

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("forked_local_servers")]


class SessionLanding(LandingProcess):
    """A landing that runs in this process when the job waits for it."""

    is_running = False

    def __init__(self, spark: SparkSession, plan: LandingPlan, folder: Path) -> None:
        config = folder / "landing.toml"
        config.write_text(plan.config())
        self._landing = Landing(load_config(config), spark, threading.Event())

    def wait(self) -> None:
        self._landing.run()


@contextmanager
def job_on(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    log: Path,
    limits: RoundLimits,
    start: Callable[[Path, RoundLimits], AbstractContextManager[Agents]] = two_agents,
) -> Iterator[tuple[Job, list[LandingPlan], io.StringIO]]:
    """Yields a job with its own agents and landings in this process, the plans of the landings, and the output."""
    shown = io.StringIO()
    plans: list[LandingPlan] = []

    @contextmanager
    def landing_here(plan: LandingPlan) -> Iterator[LandingProcess]:
        plans.append(plan)
        yield SessionLanding(spark, plan, log.parent)

    monkeypatch.setattr(job, "local_landing", landing_here)
    with start(log.parent, limits) as agents:
        console = Console(file=shown, width=200)
        yield (
            Job(log=open_log_file(log), agents=agents, output=log.parent, console=console, limits=limits),
            plans,
            shown,
        )


@pytest.mark.timeout(600)
def test_job_with_a_log_larger_than_the_channel_takes_several_rounds(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round frees the channel for the next one, and any text is landed, including odd bytes and empty lines."""
    lines = [b"2024-05-17 10:05:03,123 Collecting thing-%d" % n for n in range(1_495)]
    lines += [b"", b"\xff\xfe not utf-8", b"WARNING: careful", "größe".encode(), b"x" * 5_000]
    log = tmp_path / "setup.log"
    log.write_bytes(b"\r\n".join(lines))
    with job_on(spark, monkeypatch, log, RoundLimits(lines_max=1_000)) as (rounds_job, plans, shown):
        assert rounds_job.run()
    rows = spark.read.parquet(str(tmp_path / "landed" / "parquet")).orderBy("sequence").collect()
    assert [row.sequence for row in rows] == list(range(1, 1_501))
    assert [row.line for row in rows] == [line.decode(errors="replace") for line in lines]
    assert [bytes(row.body) for row in rows] == lines
    for reported in ("Collecting", "WARNING", "5,000", "1,500 lines of text"):
        assert reported in shown.getvalue()
    assert len(plans) >= 2
    assert all(plan.batch_events_max <= 334 for plan in plans), "a round holds at most 1,000 lines in 3 batches"
    assert shown.getvalue().count("Killed the collector") == 1
    assert shown.getvalue().count("The landing was done before it could be killed.") == 1
    assert "Killed the landing" not in shown.getvalue()


@pytest.mark.timeout(600)
def test_job_on_a_cluster_that_loses_a_node_and_the_owner_accounts_for_each_line(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other collector takes the channel over, whose sequences are those of the file's lines; nothing is left."""
    log = tmp_path / "some.log"
    log.write_text("".join(f"line {number}\n" for number in range(2_000)))
    with job_on(spark, monkeypatch, log, RoundLimits(), agents_on_a_cluster) as (clustered_job, _, shown):
        assert clustered_job.run()
    for reported in ("Killed the edge", "Killed the node", "Killed collector-", "rows landed         2,000"):
        assert shown.getvalue().count(reported) == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "landing.toml") == [
        "collector-1.log",
        "collector-2.log",
        "edge.log",
        "landed",
        "some.log",
    ]


def test_job_that_loses_lines_says_so(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job fails if counts differ, and keeps the earlier result beside the incomplete one."""
    (tmp_path / "landed").mkdir()
    (tmp_path / "landed" / "earlier").write_text("")
    log = tmp_path / "some.log"
    log.write_text("line\n" * 100)
    wait = SessionLanding.wait

    def wait_and_lose_a_file(landing: SessionLanding) -> None:
        wait(landing)
        next((tmp_path / "landed" / "parquet").glob("*.parquet")).unlink()

    monkeypatch.setattr(SessionLanding, "wait", wait_and_lose_a_file)
    with job_on(spark, monkeypatch, log, RoundLimits()) as (lossy_job, _, shown):
        assert not lossy_job.run()
    assert "The account is not equal; 0 events are not acknowledged." in shown.getvalue()
    assert re.search(r"rows landed +6[68]\b", shown.getvalue()), "one of the batches of 34, 34 and 32 rows is lost"
    assert f"The earlier result is in {tmp_path / 'landed.earlier'}" in shown.getvalue()
    assert [path.name for path in (tmp_path / "landed.earlier").iterdir()] == ["earlier"]
