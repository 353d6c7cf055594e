import asyncio
import gzip
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families

from millrace.columns import columns_from_events
from millrace_server.agent.components import ComponentKind, Components
from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.config import MemoryChannelConfig
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.http_service import channel_table
from millrace_server.http_service.channel_metrics import COUNTERS, GAUGES
from millrace_server.http_service.occasional_gauges import OCCASIONAL_GAUGES
from millrace_server.http_service.service import HttpService
from millrace_server.network import Address, open_socket
from millrace_server.network.http_server import SECURITY_HEADERS
from tests.http_response import Response

pytestmark = pytest.mark.usefixtures("prompt_http_stop")

FLUMES_KEYS = {
    "Type",
    "ChannelSize",
    "ChannelCapacity",
    "ChannelFillPercentage",
    "EventPutAttemptCount",
    "EventPutSuccessCount",
    "EventTakeAttemptCount",
    "EventTakeSuccessCount",
    "StartTime",
    "StopTime",
}


class Served:
    """An HTTP service with its registry, and a client for it."""

    def __init__(self, registry: ChannelRegistry, service: HttpService, address: tuple[str, int]) -> None:
        self.registry = registry
        self.service = service
        self.address = address

    async def get(self, path: str, *, method: str = "GET", accept: str = "*/*", **others: str) -> Response:
        headers = {"Host": "localhost", "Accept": accept, "Connection": "close"} | others
        lines = [f"{method} {path} HTTP/1.0", *(f"{key}: {value}" for key, value in headers.items()), "", ""]
        return await self.send("\r\n".join(lines).encode("latin-1"))

    async def send(self, request: bytes) -> Response:
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(request)
        response = await reader.read()
        writer.close()
        await writer.wait_closed()
        return Response.parsed(response)

    async def samples(self) -> dict[tuple[str, str], float]:
        """The samples of /metrics by name and channel."""
        text = (await self.get("/metrics")).body.decode()
        return {
            (sample.name, sample.labels.get("channel", "")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=100)
    service = HttpService(registry)
    bound = await open_socket(Address("127.0.0.1", 0), "test")
    address = bound.getsockname()
    await service.start(bound)
    yield Served(registry, service, address)
    await service.stop()


async def use(registry: ChannelRegistry) -> None:
    """Creates a channel `orders` and puts 5 events, takes 2 of them in a commit and 1 more in an open transaction."""
    channel = registry.create("orders", MemoryChannelConfig(type="memory", capacity=10, byte_capacity=1_000)).channel
    [columns] = columns_from_events([({}, b"body")] * 5)
    await channel.appends.append([StoredColumns.of(columns)], None)
    for txn_id, count in (("first", 2), ("second", 1)):
        channel.transactions.begin(txn_id, None)
        await channel.transactions.take(txn_id, TakeLimits(events_max=count), 0.0, None)
    await channel.transactions.commit(["first"], None)


async def test_healthz_while_serving_says_so(served: Served) -> None:
    """A probe gets 200."""
    response = await served.get("/healthz")
    assert (response.status, response.json()) == (200, {"status": "serving"})


async def test_healthz_while_draining_sends_probes_away(served: Served) -> None:
    """A probe gets 503 from a stopping server, and everything else is still served."""
    served.service.drain()
    response = await served.get("/healthz")
    assert (response.status, response.json()) == (503, {"status": "draining"})
    assert (await served.get("/metrics")).status == 200


async def test_responses_have_headers_that_protect_browsers(served: Served) -> None:
    """All of them, and none says which program responses."""
    responses = [
        await served.get("/healthz"),
        await served.get("/nowhere"),
        await served.get("/channels", method="POST"),
        await served.get("/channels", Host="evil.example"),
        await served.send(b"nonsense\r\n\r\n"),
    ]
    assert [response.status for response in responses] == [200, 404, 405, 421, 400]
    for response in responses:
        assert {key: response.headers[key] for key in SECURITY_HEADERS} == SECURITY_HEADERS
        assert response.headers["server"] is None


async def test_requests_of_strangers_pages_get_nothing(served: Served) -> None:
    """Probes may use any name."""
    assert (await served.get("/channels", Host="evil.example")).status == 421
    assert (await served.get("/channels", Origin="http://evil.example")).status == 403
    assert (await served.get("/healthz", Origin="http://evil.example")).status == 403
    assert (await served.get("/healthz", Host="10.1.2.3:7071")).json() == {"status": "serving"}
    assert (await served.send(b"GET /healthz HTTP/1.0\r\n\r\n")).json() == {"status": "serving"}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "NONSENSE"])
async def test_methods_that_would_change_something_are_refused(served: Served, method: str) -> None:
    """On every path."""
    for path in ("/healthz", "/channels", "/nowhere"):
        response = await served.get(path, method=method)
        assert (response.status, response.headers["allow"]) == (405, "GET, HEAD")


async def test_channels_tells_flumes_keys_with_numbers(served: Served) -> None:
    """The keys have the names and meanings of Flume's JSON, with numbers where Flume has strings."""
    await use(served.registry)
    response = await served.get("/channels")
    assert response.headers["content-type"] == "application/json"
    assert list(response.json()) == ["CHANNEL.orders"]
    orders = response.json()["CHANNEL.orders"]
    assert set(orders) >= FLUMES_KEYS
    start_time_ms = served.registry.get("orders").start_time * 1000
    assert orders.pop("StartTime") == int(start_time_ms)
    assert orders.pop("ChannelId") == served.registry.get("orders").channel_id
    for key in ("OldestEventTime", "LastPutTime", "LastTakeTime"):
        assert orders.pop(key) == pytest.approx(time.time(), abs=60)
    assert orders == {
        "Type": "CHANNEL",
        "ChannelType": "memory",
        "State": "open",
        "Fault": "",
        "ReplayedPercentage": 100.0,
        "ChannelCapacity": 10,
        "ChannelSize": 2,
        "ChannelFillPercentage": 20.0,
        "TakenEvents": 1,
        "MemoryEvents": 3,
        "BodyBytes": 12,
        "BodyBytesMax": 800,
        "OpenTransactions": 1,
        "WaitingTakes": 0,
        "WaitingCommits": 0,
        "Producers": 0,
        "Claims": 0,
        "FirstSequence": 4,
        "NextSequence": 6,
        "EventPutAttemptCount": 5,
        "EventPutSuccessCount": 5,
        "EventTakeAttemptCount": 3,
        "EventTakeSuccessCount": 2,
        "CommitCount": 2,
        "RollbackCount": 0,
        "LeaseExpiredCount": 0,
        "DeduplicatedCount": 0,
        "EventExpiredCount": 0,
        "ClaimStartTime": None,
        "CheckpointTime": None,
        "SecondsToFull": None,
        "SecondsToEmpty": None,
        "RefusedCounts": {},
        "StopTime": 0,
    }


async def test_channels_without_any_is_empty(served: Served) -> None:
    """A server without channels has an empty object."""
    assert (await served.get("/channels")).json() == {}


async def test_metrics_tells_each_channel_as_it_stands(served: Served) -> None:
    """Values are read at the scrape, without deleted channels."""
    await use(served.registry)
    samples = await served.samples()
    assert samples["millrace_channel_queued_events", "orders"] == 2
    assert samples["millrace_channel_taken_events", "orders"] == 1
    assert samples["millrace_channel_put_successes_total", "orders"] == 5
    assert samples["millrace_channel_take_successes_total", "orders"] == 2
    assert samples["millrace_channel_info", "orders"] == 1
    assert samples["millrace_open_transactions", ""] == 1
    assert samples["process_resident_memory_bytes", ""] > 0
    await served.registry.delete("orders")
    assert not any(channel for _, channel in await served.samples())


@pytest.mark.parametrize(
    ("accept", "parsed"),
    [("text/plain", text_string_to_metric_families), ("application/openmetrics-text", open_families)],
)
async def test_metrics_of_channels_are_what_their_json_tells(
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    accept: str,
    parsed: Callable[[str], Iterable[Metric]],
) -> None:
    """The parsers of Prometheus' library read the same, where channels have the same values and where they do not."""
    monkeypatch.setattr(channel_table, "SLICE_CHANNELS", 2)
    await use(served.registry)
    memory = MemoryChannelConfig(type="memory")
    for name in ("alerts", "idle.1", "idle-2", "idle_3", "zoo"):
        served.registry.create(name, memory)
    await served.registry.get("alerts").claim("reader", None, takeover=False)
    text = (await served.get("/metrics", accept=accept)).body.decode()
    claims = {"alerts": 1, "idle-2": 0, "idle.1": 0, "idle_3": 0, "orders": 0, "zoo": 0}
    assert "".join(f'millrace_channel_claims{{channel="{name}"}} {count}\n' for name, count in claims.items()) in text
    names = {f"millrace_channel_{one.name}": one.key for one in GAUGES}
    names |= {f"millrace_channel_{one.name}_total": one.key for one in COUNTERS}
    names |= {one.name: one.key for one in OCCASIONAL_GAUGES}
    samples = [sample for family in parsed(text) for sample in family.samples]
    described = (await served.get("/channels")).json()
    assert {
        (sample.labels["channel"], names[sample.name]): sample.value for sample in samples if sample.name in names
    } == {
        (name, key): value
        for name in claims
        for key in names.values()
        if (value := described[f"CHANNEL.{name}"][key]) is not None
    }
    states = [sample.labels for sample in samples if sample.name == "millrace_channel_state" and sample.value]
    assert states == [{"channel": name, "state": "open"} for name in claims]


async def test_metrics_help_leads_from_flumes_names_to_ours(served: Served) -> None:
    """The help text of each series contains Flume's name for it."""
    text = (await served.get("/metrics")).body.decode()
    assert "# HELP millrace_channel_put_attempts_total Events offered. Flume: EventPutAttemptCount." in text
    for key in FLUMES_KEYS & {measure.key for measure in (*GAUGES, *COUNTERS)}:
        assert f"Flume: {key}." in text


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text; version=1.0.0"),
        ("application/openmetrics-text; version=x; escaping=\xff", "application/openmetrics-text; version=1.0.0"),
        ("text/plain; version=x.y", "text/plain"),
        (",;=", "text/plain"),
    ],
)
async def test_metrics_speaks_the_format_that_is_asked_for(served: Served, accept: str, content_type: str) -> None:
    """The format is Prometheus' text or OpenMetrics; an invalid header is harmless."""
    await use(served.registry)
    response = await served.get("/metrics", accept=accept)
    assert response.status == 200
    assert response.headers["content-type"].startswith(content_type)
    assert response.body.endswith(b"# EOF\n") is ("openmetrics" in content_type)


async def test_metrics_of_many_channels_are_compressed_for_who_accepts_gzip(served: Served) -> None:
    """Those of few channels are not worth it, and a client without gzip, or with a weight of it, gets plain text."""
    accepting = {"Accept-Encoding": "deflate, gzip"}
    await use(served.registry)
    assert "content-encoding" not in (await served.get("/metrics", **accepting)).headers
    for number in range(400):
        served.registry.create(f"channel-{number}", MemoryChannelConfig(type="memory"))
    compressed = await served.get("/metrics", **accepting)
    assert compressed.headers["content-encoding"] == "gzip"
    text = gzip.decompress(compressed.body)
    assert text.count(b"millrace_channel_info{") == 401
    assert len(text) > 10 * len(compressed.body)
    for others in ({}, {"Accept-Encoding": "gzip;q=0"}):
        plain = await served.get("/metrics", **others)
        assert "content-encoding" not in plain.headers
        assert plain.body.count(b"millrace_channel_info{") == 401


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 405), ("DELETE", 405), ("TRACE", 405)])
async def test_request_with_another_method_changes_nothing(served: Served, method: str, status: int) -> None:
    """All pages are read-only."""
    assert (await served.get("/channels", method=method)).status == status


@pytest.mark.parametrize("path", ["/", "/channels/", "/../etc/passwd", "/%2e%2e/", "/docs", "/healthz/x"])
async def test_request_for_another_path_is_not_found(served: Served, path: str) -> None:
    """There are only four pages; the response says so in JSON, as all refusals do."""
    response = await served.get(path)
    assert response.status == 307 or response.reason == "NOT_FOUND"


async def test_request_with_a_huge_header_is_refused(served: Served) -> None:
    """A header without end needs no memory."""
    reader, writer = await asyncio.open_connection(*served.address)
    writer.write(b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 20_000)
    assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_stop_with_a_connection_open_closes_it_and_the_port(served: Served) -> None:
    """An open connection does not keep the server from stopping."""
    reader, writer = await asyncio.open_connection(*served.address)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"serving" in await reader.readuntil(b"}")
    await asyncio.wait_for(served.service.stop(), 10.0)
    assert await reader.read() == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(served.address):
        pytest.fail("the port is still open")


@pytest.fixture
async def served_components() -> AsyncIterator[tuple[Components, Served]]:
    registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=100)
    components = Components()
    service = HttpService(registry, components)
    bound = await open_socket(Address("127.0.0.1", 0), "test")
    address = bound.getsockname()
    await service.start(bound)
    yield components, Served(registry, service, address)
    await service.stop()


async def test_components_tells_each_part_as_it_stands(served_components: tuple[Components, Served]) -> None:
    """Components have a page of their own and metrics, which are read on request."""
    components, served = served_components
    assert (await served.get("/components")).json() == {}
    source = components.add(ComponentKind.SOURCE, "access", "taildir")
    source.record_progress(2, 20)
    [(name, reported)] = (await served.get("/components")).json().items()
    assert (name, reported["State"], reported["EventAcceptedCount"]) == ("SOURCE.access", "running", 2)
    assert (
        b'millrace_component_events_total{component="access",kind="source"} 2.0' in (await served.get("/metrics")).body
    )


async def test_healthz_with_a_component_in_trouble_names_it_and_serves(
    served_components: tuple[Components, Served],
) -> None:
    """A probe that restarts the server would not help a sink whose target is away."""
    components, served = served_components
    components.add(ComponentKind.SINK, "well", "null").mark_running()
    components.add(ComponentKind.SINK, "collector", "millrace").mark_backing_off("cannot reach it")
    response = await served.get("/healthz")
    assert response.status == 200
    assert response.json() == {"status": "serving", "components": {"sinks/collector": "backing off"}}
    assert (await served.get("/healthz", Host="evil.example")).json() == {"status": "serving"}
