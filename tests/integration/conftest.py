"""Fixtures of the tests that use the wire protocol: one server for all of them, channels for each."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import millrace_client as millrace
from examples.access_log.local_server import LocalServer
from examples.jetstream_cluster import JetStreamCluster
from millrace.v1 import admin_service_pb2 as pb
from tests.fork_server import ForkedProgram
from tests.integration.span_collector import Collector, collecting
from tests.millraced import Millraced
from tests.rpc import Rpc, connected

_FREE_PORTS = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
# Tests leave transactions open, and the server must not wait for them when it stops.
_ENGINE_TOML = 'server.engine = {{ type = "jetstream", servers = ["{}"], replicas = 1, stream_bytes_max = "64MB" }}\n'
_CONFIG_TOML = "server.shutdown_grace_seconds = 0.0\nserver.channels_max = 100_000\n"
_CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Millraced]:
    """A server for tests that create channels of their own; checks in the end that it has logged no fault."""
    with _shared_server(tmp_path_factory.mktemp("shared-server"), "") as server:
        yield server


@pytest.fixture
def client(shared_server: Millraced) -> Iterator[millrace.Client]:
    """A client of that server."""
    with millrace.connect(shared_server.grpc) as connected:
        yield connected


@contextmanager
def _shared_server(scratch: Path, more_toml: str) -> Iterator[Millraced]:
    config, data_dir = scratch / "millrace.toml", scratch / "data"
    config.write_text(f"{_CONFIG_TOML}{more_toml}")
    server = Millraced(("--config", str(config), "--data-dir", str(data_dir), *_FREE_PORTS), data_dir)
    try:
        yield server
        assert server.stop() == 0
        assert server.other_output == []
        assert server.faults == []
    finally:
        server.kill()


@pytest.fixture(scope="session")
def replicating_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Millraced]:
    """The same, with replicated channels in an engine of their own, since unit tests remove the bucket of the other."""
    with (
        JetStreamCluster(tmp_path_factory.mktemp("nats"), 1) as engine,
        _shared_server(tmp_path_factory.mktemp("replicating-server"), _ENGINE_TOML.format(engine.urls[0])) as server,
    ):
        yield server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs the tests of a module with `RUNS_REPLICATED = True` with replicated channels, too."""
    if "channel_type" in metafunc.fixturenames and getattr(metafunc.module, "RUNS_REPLICATED", False):
        metafunc.parametrize("channel_type", ["memory", "replicated"], indirect=True)


@pytest.fixture
def channel_type(request: pytest.FixtureRequest) -> str:
    """The type of the channels that a test makes without saying so."""
    return str(getattr(request, "param", "memory"))


@pytest.fixture
def rpc_server(request: pytest.FixtureRequest, channel_type: str) -> Millraced:
    """The shared server that has channels of this type."""
    is_replicated = channel_type == "replicated"
    server: Millraced = request.getfixturevalue("replicating_server" if is_replicated else "shared_server")
    return server


@pytest.fixture
async def rpc(rpc_server: Millraced, channel_type: str) -> AsyncGenerator[Rpc]:
    """A connection to the shared server."""
    async with connected(rpc_server.grpc) as connection:
        connection.channel_type = getattr(pb, f"CHANNEL_TYPE_{channel_type.upper()}")
        yield connection
        if channel_type == "memory":
            # Each one that stays makes every listing longer, and every write of the catalog.
            await connection.delete_made()


@pytest.fixture
def forked_local_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the example's servers that a test starts in its own process come from the fork server."""

    def start(server: LocalServer) -> ForkedProgram:
        with server._log.open("ab") as log_file:
            program, *arguments = server._command
            return ForkedProgram(Path(program).name, arguments, stdout=log_file, stderr=log_file)

    monkeypatch.setattr(LocalServer, "_start", start)


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
    from tests.spark_python import spark_python
    from tests.spark_session import spark_session

    to = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": spark_events.as_uri(),
        # Spark's other one starts `readlink` forty times for each micro-batch.
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,
        # A query that waits for events asks the servers every 10 ms by default.
        "spark.sql.streaming.pollingDelay": "100ms",
    }
    session = spark_session(python=spark_python(), **to)
    # Spark also finds the format by itself, but starts separate workers for the lookup, which takes seconds.
    register(session)
    yield session
    session.stop()
