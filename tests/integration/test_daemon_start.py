import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from millrace.v1 import admin_service_pb2, admin_service_pb2_grpc
from millrace_server.cli.reporting import EXIT_BAD_SETTINGS, EXIT_CANNOT_START
from tests.conftest import StartMillraced
from tests.millraced import Millraced, run_millraced

ORDERS_TOML = """
[channels.orders]
type = "memory"
capacity = 7
"""


def get_json(server: Millraced, path: str) -> Any:
    with urllib.request.urlopen(f"http://{server.http}{path}", timeout=20.0) as answer:
        return json.load(answer)


@contextmanager
def admin_of(server: Millraced) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc) as channel:
        yield admin_service_pb2_grpc.AdminServiceStub(channel)


@contextmanager
def listening() -> Iterator[str]:
    """An address on which somebody else listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield f"127.0.0.1:{other.getsockname()[1]}"


def options(data_dir: Path, **others: str) -> list[str]:
    """Options that start a server on free ports, but for the others that are given."""
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


def test_serve_answers_on_both_ports(millraced: Millraced) -> None:
    """Once `serving` is logged, gRPC and HTTP answer at the addresses that it names."""
    with grpc.insecure_channel(millraced.grpc) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=20.0)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert get_json(millraced, "/healthz") == {"status": "serving"}
    assert get_json(millraced, "/channels") == {}


def test_serve_writes_nothing_but_json_to_its_log(millraced: Millraced) -> None:
    """Each line is an entry, from the first to the last."""
    assert millraced.stop() == 0
    assert millraced.other_output == []
    assert [entry["event"] for entry in millraced.log] == ["serving", "stopping", "stopped"]


def test_serve_opens_the_configured_channels(start_millraced: StartMillraced) -> None:
    """Channels of the configuration are there from the first moment."""
    server = start_millraced(ORDERS_TOML)
    assert capacities(server) == {"orders": 7}
    assert get_json(server, "/channels")["CHANNEL.orders"]["ChannelCapacity"] == 7


def test_serve_on_ipv6_answers_there(start_millraced: StartMillraced) -> None:
    """Addresses in brackets work for both protocols, and are told in brackets."""
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
    """The file holds both addresses while they hold, in the place of a stale one."""
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
    """A server that stops does not remove what another has written meanwhile."""
    address_file = tmp_path / "addresses.json"
    server = start_millraced(arguments=("--address-file", str(address_file)))
    address_file.write_text("another's")
    assert server.stop() == 0
    assert address_file.read_text() == "another's"


def test_serve_when_the_address_file_cannot_be_written_does_not_start(tmp_path: Path) -> None:
    """Nobody would find the server, so there is none."""
    address_file = tmp_path / "missing" / "addresses.json"
    result = run_millraced("serve", *options(tmp_path / "data"), "--address-file", address_file)
    assert result.returncode == EXIT_CANNOT_START
    assert result.stderr.splitlines()[-1] == (
        f"millraced: cannot write {address_file} (--address-file): No such file or directory"
    )


@pytest.mark.parametrize("field", ["listen", "http_listen"])
def test_serve_when_a_port_is_in_use_says_so_in_a_sentence(tmp_path: Path, field: str) -> None:
    """One line tells which address, which setting and why; the exit code is 1."""
    with listening() as address:
        result = run_millraced("serve", *options(tmp_path / "data", **{field: address}))
    assert result.returncode == EXIT_CANNOT_START
    assert result.stderr == f"millraced: cannot listen on {address} (server.{field}): Address already in use\n"


def test_serve_on_the_port_of_another_server_is_refused(millraced: Millraced, tmp_path: Path) -> None:
    """Two servers never share a port, which would split the callers between them."""
    result = run_millraced("serve", *options(tmp_path / "other", listen=millraced.grpc))
    assert result.returncode == EXIT_CANNOT_START
    assert f"cannot listen on {millraced.grpc} (server.listen): Address already in use" in result.stderr


def test_serve_on_the_data_of_another_server_is_refused(millraced: Millraced) -> None:
    """The second server names the first one's process, and the first goes on."""
    result = run_millraced("serve", *options(millraced.data_dir))
    assert result.returncode == EXIT_CANNOT_START
    assert result.stderr == (
        f"millraced: cannot use {millraced.data_dir} (server.data_dir): another server "
        f"(process {millraced.process.pid}) uses it; stop that one, or give this one a directory of its own\n"
    )
    assert get_json(millraced, "/healthz") == {"status": "serving"}


def test_serve_after_a_kill_starts_on_the_same_data(start_millraced: StartMillraced) -> None:
    """Channels that CreateChannel made, and only those not deleted, are there after a crash."""
    first = start_millraced()
    create(first, "kept", 3)
    create(first, "deleted", 4)
    with admin_of(first) as admin:
        admin.DeleteChannel(admin_service_pb2.DeleteChannelRequest(name="deleted"), timeout=20.0)
    first.send(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    assert capacities(start_millraced(data_dir=first.data_dir)) == {"kept": 3}


def test_serve_when_both_know_a_channel_prefers_the_configuration(start_millraced: StartMillraced) -> None:
    """What an operator wrote counts more than what CreateChannel made, and the log says so."""
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
    """A damaged or newer catalog stops the start and stays as it is."""
    catalog = tmp_path / "catalog.json"
    catalog.write_bytes(content)
    result = run_millraced("serve", *options(tmp_path))
    assert result.returncode == EXIT_CANNOT_START
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert catalog.read_bytes() == content


def test_serve_when_a_file_is_in_the_way_of_its_data_says_so(tmp_path: Path) -> None:
    """A data directory that cannot be made is told at once."""
    (tmp_path / "data").touch()
    result = run_millraced("serve", *options(tmp_path / "data"))
    assert result.returncode == EXIT_CANNOT_START
    assert result.stderr == f"millraced: cannot use {tmp_path / 'data'} (server.data_dir): Not a directory\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_serve_when_its_data_is_read_only_says_so(tmp_path: Path) -> None:
    """A data directory that cannot be written to is told at once."""
    tmp_path.chmod(0o500)
    result = run_millraced("serve", *options(tmp_path))
    assert result.returncode == EXIT_CANNOT_START
    assert "Permission denied" in result.stderr


def test_serve_with_a_bad_configuration_makes_nothing(tmp_path: Path) -> None:
    """All problems are shown, and not even the data directory is made."""
    config = tmp_path / "millrace.toml"
    config.write_text("[server]\nreflection = 1\nport = 7070\n")
    result = run_millraced("serve", "--config", config, *options(tmp_path / "data"))
    assert result.returncode == EXIT_BAD_SETTINGS
    assert [line.rpartition(": ")[0] for line in result.stderr.splitlines()] == [
        f"millraced: {config}: server.reflection",
        f"millraced: {config}: server.port",
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
    """What nobody foresaw ends in the log, as an entry like all others."""
    result = subprocess.run(
        [sys.executable, "-c", BROKEN_SERVER, "serve", *options(tmp_path)],
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=60.0,
    )
    assert result.returncode == EXIT_CANNOT_START
    [entry] = map(json.loads, result.stderr.splitlines())
    assert entry["event"] == "the server failed"
    assert entry["exception"].endswith("RuntimeError: a bug")
