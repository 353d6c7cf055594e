"""Spark for tests: small, local, and quick to start."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pyspark.sql import SparkSession

from millrace_spark import ensure_java

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""For every Java of the tests: short runs gain nothing from the second compiler or from verifying classes."""

LOCAL_CONFIG: Mapping[str, str] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    # Each query is small and runs once, so that compiling its code would take longer than interpreting it.
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""For every driver of the tests: little memory, no compiled queries, and no web pages."""


def spark_session(
    master: str = "local[2,2]", log_level: str = "OFF", python: str = sys.executable, **config: str
) -> SparkSession:
    """Returns a session; by default it has two cores and tries each task twice, as a cluster does."""
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = python
    spark = SparkSession.builder.master(master).appName("millrace-tests").config(map={**LOCAL_CONFIG, **config})
    with java_started_without_fork():
        session = spark.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    return session


@contextmanager
def java_started_without_fork() -> Iterator[None]:
    """Lets a program that uses gRPC start Spark.

    PySpark gives its launcher a `preexec_fn`, for which Python forks. In the new process, gRPC starts threads before
    the launcher runs, and Python closes their descriptors: one in twenty crashes (gRPC's issue 43055), and PySpark
    reports JAVA_GATEWAY_EXITED.
    """
    with patch("pyspark.java_gateway.Popen", _start_launcher):
        yield


def _start_launcher(command: Sequence[str], *, preexec_fn: object, **options: Any) -> subprocess.Popen[bytes]:
    """Starts Java so that Ctrl-C does not end it, as `preexec_fn` does; it stays in the process group of its driver."""
    assert preexec_fn
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.Popen(command, **options)
    finally:
        signal.signal(signal.SIGINT, former)
