"""Faults, staged on real servers: a real Prometheus raises the alert, and the steps of docs/runbook.md end it."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

import millrace_client as millrace
from millrace_client import Client
from tests.certificates import Authority
from tests.free_ports import free_port
from tests.millrace_program import run_millrace
from tests.millraced import Millraced, run_millraced
from tests.prometheus import Prometheus

_LARGE = b"x" * 200
_TOML = """
[channels]
busy = {{ type = "memory", capacity = 10, transaction_capacity = 10 }}
unread = {{ type = "memory" }}
claimed = {{ type = "file", min_free_bytes = 0 }}
full_disk = {{ type = "file", min_free_bytes = {free_bytes}, keep_alive_seconds = 0.0 }}
small = {{ type = "memory", byte_capacity = 100 }}
rejected = {{ type = "memory" }}
undelivered = {{ type = "memory" }}

[sources.lines]
type = "taildir"
paths = ["{folder}/lines"]
channels = ["small"]
dead_letter_channel = "rejected"

[sinks.web]
type = "http"
channel = "undelivered"
url = "http://127.0.0.1:{port}/"
"""
_DAMAGED_TOML = '[channels.orders]\ntype = "file"\nmin_free_bytes = 0\n'
_DISK_BYTES_MAX = 1 << 50
"""More than the largest disk has, and no more than can be configured."""


class _Accepting(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Writes nothing."""


class Scene(NamedTuple):
    """Servers with faults, and those who watch and mend them."""

    folder: Path
    prometheus: Prometheus
    server: Millraced
    """`mill-1`, where most faults are."""
    client: Client
    web: HTTPServer
    """Where its sink delivers to; it listens once it is activated."""
    authority: Authority
    certified: Millraced
    """`mill-2`, whose certificate expires in 5 days."""
    damaged: Millraced
    """`mill-3`, whose channel is damaged."""

    def run(self, *arguments: str) -> str:
        """Runs `millrace` with `mill-1`; returns what it writes."""
        ran = run_millrace(self.server.grpc, *arguments)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.decode()


def _start(folder: Path, name: str, toml: str, http: str = "127.0.0.1:0") -> Millraced:
    config, data = folder / f"{name}.toml", folder / name
    config.write_text(toml)
    listen = ("--listen", "127.0.0.1:0", "--http-listen", http)
    return Millraced(("--config", str(config), "--data-dir", str(data), *listen), data)


def _start_damaged(folder: Path) -> Millraced:
    http = f"127.0.0.1:{free_port()}"
    server = _start(folder, "mill-3", _DAMAGED_TOML, http)
    with millrace.connect(server.grpc) as client:
        for body in (b"first", b"second", b"third"):
            client.channel("orders").append([body])
    server.kill()
    [segment] = _channel_directory(server).glob("segment-*.log")
    segment.write_bytes(segment.read_bytes().replace(b"second", b"SECOND"))
    return _start(folder, "mill-3", _DAMAGED_TOML, http)


def _channel_directory(server: Millraced) -> Path:
    return server.data_dir / "channels" / "orders"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Three servers that Prometheus watches."""
    folder, authority = tmp_path_factory.mktemp("alerts"), Authority()
    certificate, key = authority.issue(folder, "server", days=5.0)
    with ExitStack() as running:
        # Prometheus does not know the authority.
        prometheus = running.enter_context(Prometheus(folder, tls_config={"insecure_skip_verify": True}))
        web = running.enter_context(HTTPServer(("127.0.0.1", 0), _Accepting, bind_and_activate=False))
        web.server_bind()
        toml = _TOML.format(folder=folder, free_bytes=_DISK_BYTES_MAX, port=web.server_port)
        server = _start(folder, "mill-1", toml)
        running.callback(server.kill)
        certified = _start(folder, "mill-2", f'server.tls = {{ certificate = "{certificate}", private_key = "{key}" }}')
        running.callback(certified.kill)
        damaged = _start_damaged(folder)
        running.callback(damaged.kill)
        for number, (one, scheme) in enumerate([(server, "http"), (certified, "https"), (damaged, "http")], 1):
            prometheus.scrape(one.http, f"mill-{number}", scheme)
        client = running.enter_context(millrace.connect(server.grpc))
        yield Scene(folder, prometheus, server, client, web, authority, certified, damaged)


def test_channel_near_full_gets_more_capacity(scene: Scene) -> None:
    """The alert says how full it is; a higher capacity ends it."""
    scene.client.channel("busy").append([b"event"] * 10)
    alert = scene.prometheus.wait_for_alert("MillraceChannelNearFull", channel="busy", instance="mill-1")
    assert alert.annotations["summary"] == "channel busy on mill-1 is 100% full"
    scene.run("channel", "update", "busy", "--capacity", "1000")
    scene.prometheus.wait_for_end("MillraceChannelNearFull", channel="busy")


def test_stuck_consumer_is_found_and_replaced(scene: Scene) -> None:
    """The alert names the channel and its events, the list of consumers who holds them; the next consumer gets them."""
    unread = scene.client.channel("unread")
    scene.prometheus.wait_for_scrape()
    with unread.consume(max_events=1, prefetch=1) as deliveries:
        unread.append([b"first", b"second"])
        next(deliveries)
        alert = scene.prometheus.wait_for_alert("MillraceConsumerStuck", channel="unread")
        assert "holds 2 events" in alert.annotations["description"]
        assert "127.0.0.1:" in scene.run("consumers", "unread")
    with unread.transaction() as txn:
        assert [len(batch) for batch in txn.take(2)] == [2]
    scene.prometheus.wait_for_end("MillraceConsumerStuck", channel="unread")


def test_dead_sink_goes_on_once_its_destination_is_back(scene: Scene) -> None:
    """The list of components has the reason; the sink retries on request."""
    scene.client.channel("undelivered").append([b"event"])
    alert = scene.prometheus.wait_for_alert("MillraceSinkFailing", component="web")
    assert alert.annotations["summary"] == "sink web on mill-1 cannot deliver"
    assert "Connect" in scene.run("components")
    scene.web.server_activate()
    worker = threading.Thread(target=scene.web.serve_forever)
    worker.start()
    try:
        scene.run("component", "retry", "web")
        scene.prometheus.wait_for_end("MillraceSinkFailing", component="web")
    finally:
        scene.web.shutdown()
        worker.join()


def test_claim_of_a_dead_job_is_released(scene: Scene) -> None:
    """The channel's page names the reader, and others can take once its claim is released."""
    scene.client.channel("claimed").append([b"event"])
    scene.client.channel("claimed").claim("nightly", 3_600)
    alert = scene.prometheus.wait_for_alert("MillraceClaimIdle", channel="claimed")
    assert "1 events wait" in alert.annotations["description"]
    assert "nightly" in scene.run("channel", "show", "claimed")
    scene.run("claim", "release", "claimed")
    scene.prometheus.wait_for_end("MillraceClaimIdle", channel="claimed")
    assert scene.run("take", "claimed") == "event\n"


def test_full_disk_accepts_puts_from_its_reserve(scene: Scene) -> None:
    """The channel's page has the figures; less reserve lets puts in, without a restart."""
    with suppress(millrace.DiskFullError):
        scene.client.channel("full_disk").append([b"event"])
    scene.prometheus.wait_for_alert("MillraceDiskFull", channel="full_disk")
    assert str(_DISK_BYTES_MAX) in scene.run("channel", "show", "full_disk").replace(",", "")
    scene.run("channel", "update", "full_disk", "--min-free-bytes", "0")
    scene.client.channel("full_disk").append([b"event"])
    scene.prometheus.wait_for_end("MillraceDiskFull", channel="full_disk")


def test_poisoned_event_is_found_among_the_dead_letters(scene: Scene) -> None:
    """The alert names the component, the list of dead letters the reason."""
    scene.prometheus.wait_for_values('millrace_component_event_fates_total{component="lines"}')
    (scene.folder / "lines").write_bytes(_LARGE + b"\n")
    alert = scene.prometheus.wait_for_alert("MillraceDeadLetters", component="lines")
    assert "source lines on mill-1" in alert.annotations["summary"]
    assert "(1)" in alert.annotations["description"]
    assert "small" in scene.run("dead-letter", "list", "rejected")


def test_expiring_certificate_is_replaced_without_a_restart(scene: Scene) -> None:
    """The alert names the file and the time that is left; the server reads the new one by itself."""
    alert = scene.prometheus.wait_for_alert("MillraceCertificateExpiring", instance="mill-2")
    assert alert.labels["file"] == str(scene.folder / "server.pem")
    assert "expires in 5.0 days" in alert.annotations["description"]
    scene.authority.issue(scene.folder, "server")
    scene.prometheus.wait_for_end("MillraceCertificateExpiring", instance="mill-2")


def test_server_that_is_down_is_missed(scene: Scene) -> None:
    """The alert names the server."""
    scene.certified.kill()
    alert = scene.prometheus.wait_for_alert("MillraceServerDown", instance="mill-2")
    assert alert.annotations["summary"] == "mill-2 does not respond"


def test_damaged_segment_is_repaired_while_the_server_is_stopped(scene: Scene) -> None:
    """The tools find the damage and keep the rest; after the repair the channel opens again."""
    scene.prometheus.wait_for_alert("MillraceChannelCorrupt", channel="orders", instance="mill-3")
    directory = _channel_directory(scene.damaged)
    assert run_millraced("log", "verify", directory).returncode == 1
    scene.damaged.stop()
    assert run_millraced("log", "repair", directory, "--yes").returncode == 0
    repaired = _start(scene.folder, "mill-3", _DAMAGED_TOML, scene.damaged.http)
    try:
        scene.prometheus.wait_for_values('millrace_channel_state{instance="mill-3", state="open"} == 1')
        scene.prometheus.wait_for_end("MillraceChannelCorrupt", instance="mill-3")
        with millrace.connect(repaired.grpc) as client:
            assert [event.body for batch in client.channel("orders").peek() for event in batch] == [b"first", b"third"]
    finally:
        repaired.kill()
