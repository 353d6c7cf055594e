"""Fixtures of the tests that speak the wire: one server for all of them, channels for each."""

from collections.abc import AsyncGenerator, Iterator

import pytest
from pyspark.sql import SparkSession

from tests.millraced import Millraced
from tests.rpc import Rpc, connected

_FREE_PORTS = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
# Tests leave transactions open, and nobody is to wait for them in the end.
_CONFIG_TOML = "server.shutdown_grace_seconds = 0.0\n"


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Millraced]:
    """A server for tests that make channels of their own; whatever they did, it found no fault with itself."""
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
def spark() -> Iterator[SparkSession]:
    """One Spark for all tests; it starts with the first that wants it."""
    from millrace_spark import register
    from tests.spark_session import spark_session

    session = spark_session()
    # Spark finds the format by itself, too, but keeps other workers for what it found; they take seconds to start.
    register(session)
    yield session
    session.stop()
