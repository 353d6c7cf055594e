"""A real Spark standalone cluster on loopback: a master and workers, each a process of its own."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from millrace_spark import ensure_java
from tests.spark_session import JAVA_OPTIONS

_START_SECONDS_MAX = 60.0
_STOP_SECONDS_MAX = 20.0
_DAEMON_CLASS = "org.apache.spark.deploy.{0}.{1}"

EXECUTOR_OPTIONS: Mapping[str, str] = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
}
"""The settings of a driver that make its executors fit the workers."""


class SparkDaemonError(Exception):
    """Raised when a master or worker did not reach the state that a test waits for; contains its log."""


class SparkDaemon:
    """A master or a worker.

    Attributes:
        process: Its process, which leads a process group.
        log: Its log so far, line by line.
    """

    def __init__(self, role: str, *arguments: str, environment: Mapping[str, str]) -> None:
        self.log: list[str] = []
        self._news = threading.Condition()
        self._is_closed = False
        self.process = subprocess.Popen(
            [
                Path(environment["SPARK_HOME"]) / "bin" / "spark-class",
                _DAEMON_CLASS.format(role.lower(), role),
                *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
                *arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            encoding="utf-8",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, pattern: str) -> str:
        """Waits for the first line of the log that matches, and returns its first group."""
        give_up = time.monotonic() + _START_SECONDS_MAX
        with self._news:
            while not (found := [match for line in self.log if (match := re.search(pattern, line))]):
                if self._is_closed or not self._news.wait(give_up - time.monotonic()):
                    raise SparkDaemonError(f"never logged {pattern!r}, but {self.log}")
            return found[0][1]

    def stop(self) -> None:
        """Ends it and all processes that it started."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
        self._reader.join(_STOP_SECONDS_MAX)

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                with self._news:
                    self.log.append(line.rstrip())
                    self._news.notify_all()
        with self._news:
            self._is_closed = True
            self._news.notify_all()


@dataclass(frozen=True)
class StandaloneCluster:
    """A running master with its workers."""

    url: str
    """The master URL for drivers."""
    environment: Mapping[str, str]
    """The environment of drivers."""
    workers: tuple[SparkDaemon, ...]


@contextmanager
def standalone_cluster(folder: Path, worker_count: int = 2) -> Iterator[StandaloneCluster]:
    """Runs a cluster of workers with one core each for the duration of the block.

    Args:
        folder: The directory for the workers and their executors.
        worker_count: The number of workers.
    """
    environment = spark_environment()
    with ExitStack() as running:
        master = SparkDaemon("Master", environment=environment)
        running.callback(master.stop)
        url = master.wait_for(r"Starting Spark master at (spark://\S+)")
        workers = []
        for number in range(worker_count):
            scratch = folder / f"worker-{number}"
            arguments = ("--cores", "1", "--memory", "600m", "--work-dir", str(scratch), url)
            workers.append(SparkDaemon("Worker", *arguments, environment=environment))
            running.callback(workers[-1].stop)
        for worker in workers:
            worker.wait_for(r"(Successfully registered with master)")
        yield StandaloneCluster(url, environment, tuple(workers))


def spark_environment() -> dict[str, str]:
    """An environment for Spark's own programs as installed by pip."""
    ensure_java()
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return os.environ | {
        "SPARK_HOME": str(Path(spec.origin).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        "PYSPARK_PYTHON": sys.executable,
    }
