import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from millrace.v1 import admin_service_pb2, admin_service_pb2_grpc
from millrace_server.cli.reporting import EXIT_CANNOT_START, EXIT_USAGE
from tests.conftest import StartMillraced
from tests.millraced import Millraced, run_millraced

ORDERS_TOML = """
[channels.orders]
type = "memory"
capacity = 7
"""

IMPORTS_SECONDS_MAX = 200.0
"""How long a program may take that imports everything itself."""


def get_json(server: Millraced, path: str) -> Any:
    with urllib.request.urlopen(f"http://{server.http}{path}", timeout=20.0) as response:
        return json.load(response)


@contextmanager
def admin_of(server: Millraced) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc) as channel:
        yield admin_service_pb2_grpc.AdminServiceStub(channel)


@contextmanager
def listening() -> Iterator[str]:
    """An address that is in use."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield f"127.0.0.1:{other.getsockname()[1]}"


def options(data_dir: Path, **others: str) -> list[str]:
    """Options that start a server on free ports, combined with other ones."""
    values = {"listen": "127.0.0.1:0", "http_listen": "127.0.0.1:0", "data_dir": str(data_dir)} | others
    return [part for field, value in values.items() for part in (f"--{field.replace('_', '-')}", value)]


def create(server: Millraced, name: str, capacity: int) -> None:
    config = admin_service_pb2.ChannelConfig(type=admin_service_pb2.CHANNEL_TYPE_MEMORY, capacity=capacity)
    with admin_of(server) as admin:
        admin.CreateChannel(admin_service_pb2.CreateChannelRequest(name=name, config=config), timeout=20.0)


def capacities(server: Millraced) -> dict[str, int]:
    with admin_of(server) as admin:
        listed = admin.ListChannels(admin_service_pb2.ListChannelsRequest(), timeout=20.0)
    return {channel.name: channel.config.capacity for channel in listed.channels}


def test_health_while_many_requests_are_half_open_is_served(millraced: Millraced) -> None:
    """512 connections with half a request do not make a health probe fail."""
    host, _, port = millraced.http.rpartition(":")
    with ExitStack() as opened:
        for _ in range(512):
            connection = opened.enter_context(socket.create_connection((host, int(port)), timeout=20.0))
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: mill\r\n")
        assert get_json(millraced, "/healthz") == {"status": "serving"}


def test_serve_responds_on_both_ports(millraced: Millraced) -> None:
    """Once `serving` is logged, gRPC and HTTP respond at the addresses in the entry."""
    with grpc.insecure_channel(millraced.grpc) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        response = health.Check(health_pb2.HealthCheckRequest(), timeout=20.0)
    assert response.status == health_pb2.HealthCheckResponse.SERVING
    assert get_json(millraced, "/healthz") == {"status": "serving"}
    assert get_json(millraced, "/channels") == {}


def test_serve_writes_nothing_but_json_to_its_log(millraced: Millraced) -> None:
    """Each line is an entry, from the first to the last."""
    assert millraced.stop() == 0
    assert millraced.other_output == []
    assert [entry["event"] for entry in millraced.log] == ["serving", "stopping", "stopped"]


def test_serve_opens_the_configured_channels(start_millraced: StartMillraced) -> None:
    """Configured channels exist from the start."""
    server = start_millraced(ORDERS_TOML)
    assert capacities(server) == {"orders": 7}
    assert get_json(server, "/channels")["CHANNEL.orders"]["ChannelCapacity"] == 7


def test_serve_on_ipv6_responds_there(start_millraced: StartMillraced) -> None:
    """Addresses in brackets work for both protocols, and are reported in brackets."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 loopback here")
    server = start_millraced(arguments=("--listen", "[::1]:0", "--http-listen", "[::1]:0"))
    assert server.grpc.startswith("[::1]:")
    assert get_json(server, "/healthz") == {"status": "serving"}
    assert capacities(server) == {}


def test_serve_with_an_address_file_tells_where_it_listens(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """The file contains both addresses while the server runs, and replaces a stale one."""
    address_file = tmp_path / "addresses.json"
    address_file.write_text('{"grpc": "stale", "http": "stale"}')
    server = start_millraced(arguments=("--address-file", str(address_file)))
    assert json.loads(address_file.read_text()) == {"grpc": server.grpc, "http": server.http}
    assert not list(tmp_path.glob("addresses.json?*"))
    assert server.stop() == 0
    assert not address_file.exists()


def test_serve_with_an_address_file_of_another_server_leaves_that(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """A server that stops does not remove a file that another server has written meanwhile."""
    address_file = tmp_path / "addresses.json"
    server = start_millraced(arguments=("--address-file", str(address_file)))
    address_file.write_text("another's")
    assert server.stop() == 0
    assert address_file.read_text() == "another's"


def test_serve_when_the_address_file_cannot_be_written_does_not_start(tmp_path: Path) -> None:
    """Without the address file the server could not be found, so it does not start."""
    address_file = tmp_path / "missing" / "addresses.json"
    result = run_millraced("serve", *options(tmp_path / "data"), "--address-file", address_file)
    assert result.returncode == EXIT_CANNOT_START
    assert result.stderr.splitlines()[-1] == (
        f"millraced: cannot write {address_file} (--address-file): No such file or directory"
    )
    result = run_millraced("serve", *options(tmp_path / "data"), "--address-file", "/")
    assert result.stderr.splitlines()[-1] == "millraced: cannot write / (--address-file): Is a directory"


@pytest.mark.parametrize("field", ["listen", "http_listen"])
def test_serve_when_a_port_is_in_use_says_so_in_a_sentence(tmp_path: Path, field: str) -> None:
    """One line names the address, the setting and the reason; the exit code is 1."""
    with listening() as address:
        result = run_millraced("serve", *options(tmp_path / "data", **{field: address}))
    assert result.returncode == EXIT_CANNOT_START
    assert result.stderr == f"millraced: cannot listen on {address} (server.{field}): Address already in use\n"


def test_serve_on_the_port_of_another_server_is_refused(millraced: Millraced, tmp_path: Path) -> None:
    """Two servers never share a port, which would distribute the clients between them."""
    result = run_millraced("serve", *options(tmp_path / "other", listen=millraced.grpc))
    assert result.returncode == EXIT_CANNOT_START
    assert f"cannot listen on {millraced.grpc} (server.listen): Address already in use" in result.stderr


def test_serve_on_the_data_of_another_server_is_refused(millraced: Millraced) -> None:
    """The error names the first server's process, which continues."""
    result = run_millraced("serve", *options(millraced.data_dir))
    assert result.returncode == EXIT_CANNOT_START
    assert result.stderr == (
        f"millraced: cannot use {millraced.data_dir} (server.data_dir): another server "
        f"(process {millraced.process.pid}) uses it; stop that one, or give this one a directory of its own\n"
    )
    assert get_json(millraced, "/healthz") == {"status": "serving"}


def test_serve_after_a_kill_starts_on_the_same_data(start_millraced: StartMillraced) -> None:
    """After a crash, channels created by CreateChannel exist, without the deleted ones."""
    first = start_millraced()
    create(first, "kept", 3)
    create(first, "deleted", 4)
    with admin_of(first) as admin:
        admin.DeleteChannel(admin_service_pb2.DeleteChannelRequest(name="deleted"), timeout=20.0)
    first.send(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    assert capacities(start_millraced(data_dir=first.data_dir)) == {"kept": 3}


def test_update_of_a_configured_channel_lasts_until_the_next_start_and_says_so(
    start_millraced: StartMillraced,
) -> None:
    """Updates of channels that CreateChannel made persist; channels in the file cannot be deleted."""
    first = start_millraced(ORDERS_TOML)
    create(first, "made", 3)
    with admin_of(first) as admin:
        updated = [
            admin.UpdateChannel(
                admin_service_pb2.UpdateChannelRequest(name=name, config={"capacity": 9}), timeout=20.0
            ).channel
            for name in ("made", "orders")
        ]
        assert [(channel.is_configured, channel.is_overridden) for channel in updated] == [(False, False), (True, True)]
        with pytest.raises(grpc.RpcError) as refused:
            admin.DeleteChannel(admin_service_pb2.DeleteChannelRequest(name="orders"), timeout=20.0)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    first.stop()
    assert capacities(start_millraced(ORDERS_TOML, data_dir=first.data_dir)) == {"made": 9, "orders": 7}


def test_serve_when_both_know_a_channel_prefers_the_configuration(start_millraced: StartMillraced) -> None:
    """The configuration file takes precedence over CreateChannel, and the log says so."""
    first = start_millraced()
    create(first, "orders", 3)
    first.stop()
    second = start_millraced(ORDERS_TOML, data_dir=first.data_dir)
    assert capacities(second) == {"orders": 7}
    [warning] = [entry for entry in second.log if entry["level"] == "warning"]
    assert warning["channel"] == "orders"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\0", "is damaged: it is not JSON"),
        (b'{"format": "millrace catalog", "version": 2}', "its version is 2, and this server knows version 1 only"),
    ],
)
def test_serve_when_the_catalog_cannot_be_used_refuses_without_writing(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    """A damaged or newer catalog prevents the start and stays unchanged."""
    catalog = tmp_path / "catalog.json"
    catalog.write_bytes(content)
    result = run_millraced("serve", *options(tmp_path))
    assert result.returncode == EXIT_CANNOT_START
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert catalog.read_bytes() == content


def test_serve_with_a_bad_configuration_makes_nothing(tmp_path: Path) -> None:
    """All problems are listed, and not even the data directory is created."""
    config = tmp_path / "millrace.toml"
    config.write_text("[server]\nreflection = 1\nport = 7070\n")
    result = run_millraced("serve", "--config", config, *options(tmp_path / "data"))
    assert result.returncode == EXIT_USAGE
    assert [line.rpartition(": ")[0] for line in result.stderr.splitlines()] == [
        f"millraced: {config}:2: server.reflection",
        f"millraced: {config}:3: server.port",
    ]
    assert not (tmp_path / "data").exists()


BROKEN_SERVER = """
import millrace_server.process.daemon
from millrace_server.cli import main

async def fail(*_arguments):
    raise RuntimeError("a bug")

millrace_server.process.daemon.serve = fail
main()
"""


def test_serve_when_it_fails_by_a_bug_logs_the_traceback(tmp_path: Path) -> None:
    """An unexpected exception is logged as an entry like all others."""
    result = subprocess.run(
        [sys.executable, "-c", BROKEN_SERVER, "serve", *options(tmp_path)],
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=IMPORTS_SECONDS_MAX,
    )
    assert result.returncode == EXIT_CANNOT_START
    [entry] = map(json.loads, result.stderr.splitlines())
    assert entry["event"] == "the server failed"
    assert entry["exception"].endswith("RuntimeError: a bug")


IMPORTS_OF_A_SERVER = """
import json, os, pathlib, signal, sys, threading, time
from millrace_server.cli import main

def stop_when_open():
    log = pathlib.Path(sys.argv[-1])
    while not log.exists():
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=stop_when_open, daemon=True).start()
try:
    main()
except SystemExit:
    print(*sorted(name for name in sys.modules if name.startswith(("nats", "millrace_server.replication"))))
"""

ENGINE_SETTINGS = {
    "millrace_server.replication",
    "millrace_server.replication.engine_access",
    "millrace_server.replication.engine_settings",
    "millrace_server.replication.nkeys",
}
"""What describes the configuration, of which the engine is a part."""


def test_serve_without_replicated_channels_imports_nothing_of_an_engine(tmp_path: Path) -> None:
    """Neither the engine's library nor what uses it, from the start of a server with a file channel to its end."""
    (tmp_path / "millrace.toml").write_text(ORDERS_TOML + '[channels.logged]\ntype = "file"\n')
    config = ["--config", str(tmp_path / "millrace.toml"), *options(tmp_path, address_file=str(tmp_path / "address"))]
    result = subprocess.run(
        [sys.executable, "-c", IMPORTS_OF_A_SERVER, "serve", *config],
        capture_output=True,
        check=True,
        encoding="utf-8",
        timeout=IMPORTS_SECONDS_MAX,
    )
    assert set(result.stdout.split()) == ENGINE_SETTINGS
