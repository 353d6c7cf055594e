"""Traces of real servers, and the configuration and program of docs/tracing.md, executed."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import millrace_client as millrace
from millrace_client import aio
from tests.conftest import StartMillraced
from tests.fenced_blocks import blocks_of
from tests.integration.span_collector import Collector, collecting
from tests.millraced import Millraced
from tests.recorded_spans import attributes_of, is_child, linked, recording, span_id_of, traceparent_of

PAGE = Path(__file__).parents[2] / "docs" / "tracing.md"


def block(kind: str) -> str:
    """The page's only block of a kind."""
    [found] = blocks_of(PAGE, kind)
    return found


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def traced_server(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Millraced]:
    """A server with the page's configurations."""
    folder = tmp_path_factory.mktemp("traced")
    (folder / "millrace.toml").write_text(block("server") + block("http").replace(":8080", ":0"))
    addresses = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
    arguments = ("--config", str(folder / "millrace.toml"), "--data-dir", str(folder / "data"), *addresses)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in collector.environment.items():
            patch.setenv(name, value)
        server = Millraced(arguments, folder / "data")
    yield server
    assert server.stop() == 0
    assert server.other_output == []


def test_page_makes_one_trace_from_client_to_sink(collector: Collector, traced_server: Millraced) -> None:
    """Its spans arrive at a collector over OTLP, those of the client and those of the server."""
    program = block("client").replace("localhost:7070", traced_server.grpc)
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, **collector.environment}, timeout=60)
    checkout = collector.find("checkout")
    append = collector.find("append orders", checkout.span_id)
    served = collector.find("millrace.v1.ChannelService/Append", append.span_id)
    processed = collector.find("process orders", append.span_id)
    assert (checkout.service, append.service) == ("shop", "shop")
    assert (served.service, processed.service) == ("millraced", "millraced")
    assert {span.trace_id for span in (append, served, processed)} == {checkout.trace_id}
    assert processed.attributes["millrace.component"] == "printer"


def test_page_continues_the_trace_of_an_http_request(collector: Collector, traced_server: Millraced) -> None:
    """The source's batch is a child of the span in the request's header, and so is the sink's delivery."""
    trace_id, span_id = f"{5:032x}", f"{6:016x}"
    address = traced_server.wait_for("listening")["address"]
    headers = {"Content-Type": "text/plain", "traceparent": f"00-{trace_id}-{span_id}-01"}
    asked = urllib.request.Request(address, b"one\ntwo", headers)  # noqa: S310 - the server's address
    with urllib.request.urlopen(asked, timeout=30):  # noqa: S310 - the same
        pass
    batch = collector.find("append orders", span_id)
    assert (batch.service, batch.trace_id, batch.attributes["millrace.component"]) == ("millraced", trace_id, "web")
    assert collector.find("process orders", span_id).trace_id == trace_id


def test_page_processes_what_was_taken_in_a_span(traced_server: Millraced, capsys: pytest.CaptureFixture[str]) -> None:
    """The program runs as it is written."""
    program = compile(block("process").replace("localhost:7070", traced_server.grpc), PAGE, "exec")
    with recording() as recorded:
        exec(program, {})  # noqa: S102 - the page's own
    assert "process orders" in recorded.names()
    assert capsys.readouterr().out == ""


def test_transaction_has_a_span_for_each_of_its_operations(collector: Collector, traced_server: Millraced) -> None:
    """What is taken is linked to what produced it. The server's spans are children of the client's."""
    with recording(event_context=True) as recorded, millrace.connect(traced_server.grpc, token="t" * 8) as client:
        client.admin.create_channel("work")
        channel = client.channel("work")
        with recorded.tracer.start_as_current_span("produce"), channel.transaction() as txn:
            txn.put([b"1", b"2"])
        with recorded.tracer.start_as_current_span("consume"), channel.transaction() as txn:
            txn.take()
            txn.rollback()
    produce, consume, take = (recorded.named(name) for name in ("produce", "consume", "take work"))
    for name, outer in {"put": produce, "commit": produce, "take": consume, "rollback": consume}.items():
        inner = recorded.named(f"{name} work")
        assert is_child(inner, outer)
        assert collector.find(f"millrace.v1.ChannelService/{name.capitalize()}", span_id_of(inner))
    assert linked(take) == {span_id_of(produce)}
    assert attributes_of(take)["messaging.batch.message_count"] == 2


async def test_append_in_asyncio_that_is_refused_has_the_reason(collector: Collector, traced_server: Millraced) -> None:
    """In the client's span and in the server's, which is its child."""
    with recording() as recorded:
        async with aio.connect(traced_server.grpc) as client:
            with pytest.raises(millrace.ChannelNotFoundError):
                await client.channel("nowhere").append([b"1"])
    span = recorded.named("append nowhere")
    assert attributes_of(span)["error.type"] == "CHANNEL_NOT_FOUND"
    served = collector.find("millrace.v1.ChannelService/Append", span_id_of(span))
    assert served.attributes["rpc.response.status_code"] == "NOT_FOUND"


def test_metrics_name_the_trace_of_a_call(traced_server: Millraced) -> None:
    """The histogram of durations has an example, by which a slow call is found among the traces."""
    with recording() as recorded, millrace.connect(traced_server.grpc) as client:
        client.admin.create_channel("measured")
        client.channel("measured").append([b"1"])
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    asked = urllib.request.Request(f"http://{traced_server.http}/metrics", headers=accept)
    with urllib.request.urlopen(asked, timeout=30) as response:  # noqa: S310 - the same
        metrics = response.read().decode()
    trace_id = traceparent_of(recorded.named("append measured")).split("-")[1]
    [example] = [line for line in metrics.splitlines() if trace_id in line]
    assert example.startswith("millrace_rpc_duration_seconds_bucket{")
    assert 'method="Append"' in example


def test_producer_and_consumer_make_one_trace(collector: Collector, traced_server: Millraced) -> None:
    """The stream's appends have no metadata: their events tell the server the context."""
    with recording(event_context=True) as recorded, millrace.connect(traced_server.grpc) as client:
        client.admin.create_channel("stream")
        producer = millrace.Producer(traced_server.grpc, "stream")
        with recorded.tracer.start_as_current_span("request"), producer:
            producer.send(b"1").result(30)
        with millrace.Consumer(traced_server.grpc, "stream") as consumer:
            consumer.run(lambda _delivery: consumer.stop())
    request, append, process = (recorded.named(name) for name in ("request", "append stream", "process stream"))
    assert is_child(append, request)
    assert is_child(process, request)
    assert collector.find("append stream", span_id_of(request)).service == "millraced"


def test_server_whose_collector_is_down_serves_and_stops(start_millraced: StartMillraced) -> None:
    """Spans that cannot be sent are dropped, and hold up nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
        patch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
        server = start_millraced("[server.tracing]\n")
    with millrace.connect(server.grpc) as client:
        assert client.admin.list_channels() == []
    assert server.stop() == 0
