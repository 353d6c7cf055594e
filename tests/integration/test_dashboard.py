"""The dashboard for Grafana on a real Prometheus, which scrapes a server under load."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

import millrace_client as millrace
from millrace_client import ChannelConfig, ChannelInfo, ChannelType, Client, Producer, Tls
from millrace_server.access.tokens import make_token
from tests.certificates import Authority
from tests.dashboard import panels_of, queries_of
from tests.fenced_blocks import blocks_of
from tests.millraced import Millraced
from tests.prometheus import Prometheus
from tests.unit.repository.checkout import ROOT

_TOML = """
server.tls = {{ certificate = "{folder}/server.pem", private_key = "{folder}/server.key" }}
roles.all.allow = ["*:*"]
[identities.caller]
roles = ["all"]
quota = {{ bytes_per_second = 100_000_000, read_bytes_per_second = 100_000_000, open_transactions = 100 }}

[channels]
filling = {{ type = "file", checkpoint_interval_seconds = 0.1, min_free_bytes = 0 }}
claimed = {{ type = "memory", capacity = 10, transaction_capacity = 10, keep_alive_seconds = 0.0 }}
delivered = {{ type = "memory", capacity = 1_000 }}
stuck = {{ type = "memory" }}

[sinks.fast]
type = "null"
channel = "delivered"
[sinks.broken]
type = "http"
channel = "stuck"
url = "http://127.0.0.1:1/"
"""
"""Nothing listens on port 1."""
_PAUSE_SECONDS = 0.02


class Scene(NamedTuple):
    """A server under load, and who watches it."""

    client: Client
    prometheus: Prometheus
    stop_load: Callable[[], None]


def _prepare(client: Client) -> None:
    # Made only now, since the server forecasts by comparison with the start.
    client.admin.create_channel(
        "draining", ChannelConfig(type=ChannelType.SPILLABLE, capacity=10_000, memory_capacity=100, min_free_bytes=0)
    )
    client.channel("draining").append([b"draining"] * 10_000)
    client.channel("filling").append([b"filling"] * 100)
    client.channel("filling").transaction(lease_seconds=3_600).begin().take(7, wait_seconds=0)
    client.channel("stuck").append([b"stuck"])
    client.channel("claimed").append([b"claimed"] * 10)
    client.channel("claimed").claim("reader", 3_600)


def _work(client: Client, producer: Producer) -> None:
    """One round: every counter goes on, one channel fills and another drains."""
    client.channel("filling").append([b"filling"] * 10)
    producer.send(b"delivered")
    for name in ("filling", "draining"):
        with client.channel(name).transaction() as txn:
            txn.take(5, wait_seconds=0)
    with suppress(millrace.ChannelFullError):
        client.channel("claimed").append([b"refused"])


@contextmanager
def _load(client: Client, producer: Producer) -> Iterator[Callable[[], None]]:
    """Works on a thread until the function that it yields is called, or the block ends."""
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(_PAUSE_SECONDS):
            _work(client, producer)

    def stop() -> None:
        is_over.set()
        worker.join()
        producer.flush()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield stop
    finally:
        stop()


def _start(folder: Path) -> Millraced:
    """Starts a server whose monitor has the rights that the documentation gives it."""
    [monitor] = blocks_of(ROOT / "docs" / "monitoring.md", "check")
    config, data = folder / "millrace.toml", folder / "data"
    config.write_text(_TOML.format(folder=folder) + monitor.replace('"tokens"', f'"{folder}/tokens"'))
    ports = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
    return Millraced(("--config", str(config), "--data-dir", str(data), *ports), data)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A server with TLS, tokens and quotas, whose channels, sinks and limits are all in use."""
    folder, authority = tmp_path_factory.mktemp("dashboard"), Authority()
    ca, token_file = folder / "ca.pem", folder / "prometheus.token"
    ca.write_bytes(authority.certificate)
    authority.issue(folder, "server")
    token = make_token(folder / "tokens", "caller")
    token_file.write_text(make_token(folder / "tokens", "prometheus"))
    job = {"tls_config": {"ca_file": str(ca)}, "authorization": {"credentials_file": str(token_file)}}
    with ExitStack() as running:
        prometheus = running.enter_context(Prometheus(folder, **job))
        server = _start(folder)
        running.callback(server.kill)
        tls = Tls(ca=ca)
        client = running.enter_context(millrace.connect(server.grpc, tls=tls, token=token))
        producer = running.enter_context(Producer(server.grpc, "delivered", tls=tls, token=token))
        _prepare(client)
        prometheus.scrape(server.http, "mill-1", "https")
        yield Scene(client, prometheus, running.enter_context(_load(client, producer)))


def test_queries_of_the_dashboard_on_a_loaded_server_give_data(scene: Scene) -> None:
    """No panel stays empty."""
    for panel in panels_of("stat", "timeseries", "table"):
        for query in queries_of(panel):
            values = scene.prometheus.wait_for_values(query)
            assert any(not math.isnan(one.value) for one in values), (panel["title"], query)


COUNTERS: Sequence[Callable[[ChannelInfo], float]] = (
    lambda channel: channel.counters.event_put_success_count,
    lambda channel: channel.counters.event_take_success_count,
    lambda channel: channel.counters.commit_count,
    lambda channel: channel.counters.rollback_count,
    lambda channel: channel.counters.lease_expired_count,
    lambda channel: channel.counters.deduplicated_count,
    lambda channel: channel.counters.event_expired_count,
)
"""The columns of the table of counts."""


GAUGES: dict[str, Callable[[ChannelInfo], float]] = {
    "Events held": lambda channel: channel.gauges.queued_events + channel.gauges.taken_events,
    "Bytes of bodies": lambda channel: channel.gauges.body_bytes,
    "Events taken by open transactions": lambda channel: channel.gauges.taken_events,
    "Open transactions": lambda channel: channel.gauges.open_transactions,
    "Claims": lambda channel: int(channel.claim is not None),
    "Events that a crash loses": lambda channel: channel.gauges.memory_events,
    "Producers with numbered events": lambda channel: channel.gauges.producers,
}
"""Panels with one query for each channel."""


def _queries(title: str) -> list[str]:
    return next(queries_of(panel) for panel in panels_of("table", "timeseries") if panel["title"] == title)


def _shown(scene: Scene, query: str, at: float, label: str = "channel") -> dict[str, float]:
    return {sample.labels[label]: sample.value for sample in scene.prometheus.query(query, at)}


def _account(scene: Scene, figure: Callable[[ChannelInfo], float]) -> dict[str, float]:
    return {channel.name: figure(channel) for channel in scene.client.admin.list_channels()}


def test_figures_on_the_dashboard_equal_those_of_the_client(scene: Scene) -> None:
    """Under load, counts lie between those that the client reads before and after; later all figures are the same."""
    columns = list(zip(_queries("Counted since the start"), COUNTERS, strict=True))
    before = [_account(scene, count) for _, count in columns]
    at = scene.prometheus.wait_for_scrape()
    shown = [_shown(scene, query, at) for query, _ in columns]
    after = [_account(scene, count) for _, count in columns]
    for low, value, high in zip(before, shown, after, strict=True):
        assert low.keys() == value.keys()
        assert all(low[name] <= value[name] <= high[name] for name in value), (low, value, high)

    scene.stop_load()
    held = GAUGES["Events held"]
    while _account(scene, held)["delivered"] or _account(scene, held)["stuck"]:
        # The broken sink takes and returns its event again and again, which is counted.
        scene.client.admin.purge_channel("stuck")
    at = scene.prometheus.wait_for_scrape()
    for query, count in columns:
        assert _shown(scene, query, at) == _account(scene, count), query
    for title, gauge in GAUGES.items():
        [query] = _queries(title)
        assert _shown(scene, query, at) == _account(scene, gauge), title
    delivered = {one.name: one.counters.event_count for one in scene.client.admin.list_components()}
    assert _shown(scene, _queries("Components")[1], at, "component") == delivered
