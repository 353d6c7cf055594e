"""Programs import modules only when they need them, since imports delay their start."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.millraced import Millraced

_MILLRACE = ("-c", "from millrace_client.cli import main; main()")
_SECONDS_MAX = 60.0


def _imported(arguments: Sequence[str], until: str = "", **environment: str) -> set[str]:
    """Returns all modules that a Python program imports, until its end or until it writes this text."""
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if until and until in line:
                process.terminate()
                break
        else:
            assert not until, lines
        process.stderr.read()
        assert process.wait(_SECONDS_MAX) == 0, lines
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}


@pytest.mark.parametrize("name", ["asyncio", "google.protobuf", "grpc", "millrace_client.channel"])
def test_import_of_the_client_does_not_import(name: str) -> None:
    """The names of the package are imported when they are used."""
    assert name not in _imported(("-c", "import millrace_client"))


def test_help_of_the_program_imports_no_command() -> None:
    """The help needs neither tables nor a client."""
    imported = _imported((*_MILLRACE, "--help"))
    assert "typer" in imported
    assert not imported & {"asyncio", "google.protobuf", "grpc", "pydantic", "rich", "importlib.metadata"}
    assert not {name for name in imported if name.startswith("millrace_client.cli.") and name.endswith("_command")}


def test_command_imports_what_it_needs(shared_server: Millraced) -> None:
    """The list of channels needs a client and a table."""
    imported = _imported((*_MILLRACE, "channels"), MILLRACE_SERVER=shared_server.grpc)
    assert {"grpc", "rich.table"} <= imported
    assert not imported & {
        "markdown_it",
        "millrace_client.aio",
        "millrace_client.cli.put_command",
        "millrace_client.consumer",
        "millrace_client.producer",
        "opentelemetry",
        "prometheus_client",
        "pydantic",
        "pygments",
        "rich.live",
        "rich.progress",
    }


def test_server_imports_what_its_configuration_needs(tmp_path: Path) -> None:
    """Modules that only some flows, files, scrapes or gRPC tools need are not imported."""
    addresses = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
    serve = ("-m", "millrace_server", "serve", "--data-dir", str(tmp_path / "data"), *addresses)
    imported = _imported(serve, until='"serving"')
    assert {"grpc", "millrace_server.process.daemon", "pydantic", "uvicorn"} <= imported
    assert not imported & {
        "cryptography",
        "fastavro",
        "fsspec",
        "millrace_client",
        "millrace_server.agent.sinks.millrace.sink",
        "millrace_server.agent.sources.http.source",
        "millrace_server.agent.sources.syslog.source",
        "millrace_server.agent.sources.taildir.source",
        "millrace_server.flume_import",
        "millrace_server.log_tools",
        "opentelemetry",
        "pyarrow",
        "pygments",
        "regex",
        "rich.console",
        "zstandard",
    }
