"""Spark on a cluster of real processes, whose executors are killed during their tasks."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow.dataset as ds
import pytest

import millrace_client as millrace
from tests.millraced import Millraced
from tests.process_figures import parent_of
from tests.spark_cluster import EXECUTOR_OPTIONS, StandaloneCluster, spark_environment, standalone_cluster
from tests.spark_driver import Flow, Plan
from tests.spark_output import committed_rows

pytestmark = pytest.mark.spark

_EVENTS = 20_000
_WAIT_SECONDS_MAX = 120.0
_POLL_SECONDS = 0.05
_BODIES = [b"event %05d" % number for number in range(_EVENTS)]


def fill(endpoint: str, name: str) -> None:
    with millrace.connect(endpoint) as client:
        config = millrace.ChannelConfig(capacity=_EVENTS, transaction_capacity=1_000)
        client.admin.create_channel(name, config)
        for start in range(0, _EVENTS, 1_000):
            client.channel(name).append(_BODIES[start : start + 1_000])


def queued_count(endpoint: str, name: str) -> int:
    with millrace.connect(endpoint) as client:
        return client.admin.get_channel(name).gauges.queued_events


def landing(folder: Path, endpoint: str, name: str) -> Flow:
    """Reads a channel into Parquet in eight partitions or in small micro-batches; the first task is killed."""
    return Flow(
        source="millrace",
        source_options={"endpoints": endpoint, "channels": name, "maxEventsPerPartition": "2500"},
        target="parquet",
        target_options={"path": str(folder / f"landed-{name}")},
        hold=str(folder / f"hold-{name}"),
    )


def streamed(flow: Flow, folder: Path) -> Flow:
    """Does the same as a streaming query that ends when all events are read."""
    return replace(
        flow,
        source_options={**flow.source_options, "maxEventsPerTrigger": "5000"},
        checkpoint=str(folder / "checkpoint"),
    )


@contextmanager
def driver(folder: Path, plan: Plan, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a driver with a plan."""
    plan.save(folder / "plan.json")
    with (folder / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark_driver", folder / "plan.json"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def kill_executor(process: subprocess.Popen[bytes], flow: Flow, log: Path) -> None:
    """Kills the executor whose task is waiting, after part of its work."""
    hold = Path(str(flow.hold))
    give_up = time.monotonic() + _WAIT_SECONDS_MAX
    while not hold.exists() or not hold.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < give_up, log.read_text()
        time.sleep(_POLL_SECONDS)
    executor = parent_of(int(hold.read_text()))
    assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
    os.kill(executor, signal.SIGKILL)


def run_and_kill(folder: Path, plan: Plan, environment: Mapping[str, str]) -> str:
    """Runs flows, kills an executor in each, and returns the output of the driver."""
    log = folder / "driver.log"
    with driver(folder, plan, environment) as process:
        for flow in plan.flows:
            kill_executor(process, flow, log)
        assert process.wait(_WAIT_SECONDS_MAX) == 0, log.read_text()
    return log.read_text()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    with standalone_cluster(tmp_path) as running:
        yield running


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_stream_on_a_cluster_that_loses_an_executor_brings_each_event_once(
    cluster: StandaloneCluster, shared_server: Millraced, tmp_path: Path
) -> None:
    """After an executor is killed during a task, no row is missing or duplicated."""
    endpoint, name = shared_server.grpc, "cluster-stream"
    fill(endpoint, name)
    flow = streamed(landing(tmp_path, endpoint, name), tmp_path)
    said = run_and_kill(tmp_path, Plan(master=cluster.url, config=EXECUTOR_OPTIONS, flows=[flow]), cluster.environment)
    assert "Lost executor" in said
    assert sorted(committed_rows(tmp_path / f"landed-{name}", "body")) == _BODIES
    assert queued_count(endpoint, name) == 0


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("round_number", range(3))
def test_batch_on_a_cluster_that_loses_executors_brings_each_event_once(
    round_number: int, cluster: StandaloneCluster, shared_server: Millraced, tmp_path: Path
) -> None:
    """Two batch reads and a stream, each of which loses an executor, read each event once."""
    endpoint = shared_server.grpc
    names = [f"cluster-{round_number}-{part}" for part in ("one", "two", "stream")]
    for name in names:
        fill(endpoint, name)
    flows = [landing(tmp_path, endpoint, name) for name in names]
    flows[-1] = streamed(flows[-1], tmp_path)
    run_and_kill(tmp_path, Plan(master=cluster.url, config=EXECUTOR_OPTIONS, flows=flows), cluster.environment)
    for name in names[:-1]:
        landed = ds.dataset(tmp_path / f"landed-{name}", format="parquet").to_table(columns=["body"])
        assert sorted(landed["body"].to_pylist()) == _BODIES
    assert sorted(committed_rows(tmp_path / f"landed-{names[-1]}", "body")) == _BODIES


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_local_cluster_that_loses_executors_brings_each_event_once(shared_server: Millraced, tmp_path: Path) -> None:
    """The same holds if the driver starts its executors as processes."""
    endpoint, names = shared_server.grpc, ("local-cluster-batch", "local-cluster-stream")
    for name in names:
        fill(endpoint, name)
    flows = [landing(tmp_path, endpoint, names[0]), streamed(landing(tmp_path, endpoint, names[1]), tmp_path)]
    plan = Plan(master="local-cluster[2,1,512]", config=EXECUTOR_OPTIONS, flows=flows)
    run_and_kill(tmp_path, plan, spark_environment())
    landed = ds.dataset(tmp_path / f"landed-{names[0]}", format="parquet").to_table(columns=["body"])
    assert sorted(landed["body"].to_pylist()) == _BODIES
    assert sorted(committed_rows(tmp_path / f"landed-{names[1]}", "body")) == _BODIES


def python_that_knows_the_package_in_the_driver_only(folder: Path) -> Path:
    """Returns a Python that finds no editable installation when executors run it."""
    [installed] = [place for place in sys.path if place.endswith("site-packages")]
    program = folder / "python"
    program.write_text(
        f"""#!/bin/sh
case "$PWD" in
{folder}/worker-*) PYTHONPATH={installed}:$PYTHONPATH exec {sys.executable} -S "$@" ;;
*) exec {sys.executable} "$@" ;;
esac
"""
    )
    program.chmod(0o755)
    return program


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_ship_gives_executors_the_package(cluster: StandaloneCluster, shared_server: Millraced, tmp_path: Path) -> None:
    """Without the package on the nodes, reading fails with an error; after `ship`, it succeeds."""
    endpoint, name = shared_server.grpc, "cluster-shipped"
    fill(endpoint, name)
    flow = replace(landing(tmp_path, endpoint, name), hold=None)
    plan = Plan(master=cluster.url, config=EXECUTOR_OPTIONS, flows=[flow])
    python = python_that_knows_the_package_in_the_driver_only(tmp_path)
    environment = {**cluster.environment, "PYSPARK_PYTHON": str(python)}
    log = tmp_path / "driver.log"
    with driver(tmp_path, plan, environment) as process:
        assert process.wait(_WAIT_SECONDS_MAX) != 0
    assert "No module named 'millrace_spark'" in log.read_text()
    with driver(tmp_path, replace(plan, is_shipped=True), environment) as process:
        assert process.wait(_WAIT_SECONDS_MAX) == 0, log.read_text()
    landed = ds.dataset(tmp_path / f"landed-{name}", format="parquet").to_table(columns=["body"])
    assert sorted(landed["body"].to_pylist()) == _BODIES
