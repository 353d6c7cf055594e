"""Fixtures of the tests that use the wire protocol: one server for all of them, channels for each."""

from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.millraced import Millraced
from tests.rpc import Rpc, connected
from tests.span_collector import Collector, collecting

_FREE_PORTS = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
# Tests leave transactions open, and the server must not wait for them when it stops.
_CONFIG_TOML = "server.shutdown_grace_seconds = 0.0\nserver.channels_max = 100_000\n"


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Millraced]:
    """A server for tests that create channels of their own; checks in the end that it has logged no fault."""
    scratch = tmp_path_factory.mktemp("shared-server")
    config, data_dir = scratch / "millrace.toml", scratch / "data"
    config.write_text(_CONFIG_TOML)
    server = Millraced(("--config", str(config), "--data-dir", str(data_dir), *_FREE_PORTS), data_dir)
    try:
        yield server
        assert server.stop() == 0
        assert server.other_output == []
        assert [entry for entry in server.log if entry["level"] == "error"] == []
    finally:
        server.kill()


@pytest.fixture
async def rpc(shared_server: Millraced) -> AsyncGenerator[Rpc]:
    """A connection to the shared server."""
    async with connected(shared_server.grpc) as connection:
        yield connection


@pytest.fixture(scope="session")
def spark_events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the event log of the session."""
    return tmp_path_factory.mktemp("spark-events")


@pytest.fixture(scope="session")
def spark_spans() -> Iterator[Collector]:
    """Receives the spans of the session's tasks."""
    with collecting() as collector, pytest.MonkeyPatch.context() as patch:
        # Spark's workers inherit the environment that it starts in.
        for name, value in collector.environment.items():
            patch.setenv(name, value)
        yield collector


@pytest.fixture(scope="session")
def spark(spark_events: Path, spark_spans: Collector) -> Iterator[SparkSession]:
    """One Spark session for all tests, created for the first one that needs it."""
    from millrace_spark import register
    from tests.spark_session import spark_session

    to = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": spark_events.as_uri(),
    }
    session = spark_session(**to)
    # Spark also finds the format by itself, but starts separate workers for the lookup, which takes seconds.
    register(session)
    yield session
    session.stop()
