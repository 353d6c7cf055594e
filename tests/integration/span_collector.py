"""A collector that receives spans over OTLP and gRPC."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

_WAIT_SECONDS = 60.0


class CollectedSpan(NamedTuple):
    """One span as it arrived."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty for the root of a trace."""
    attributes: dict[str, str | int]
    links: tuple[str, ...]
    """The spans that it is linked to, by their ids."""


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """The spans that have arrived.

    Attributes:
        environment: Makes a program export to here, soon after each span has ended.
    """

    def __init__(self, port: int) -> None:
        self.environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_BSP_SCHEDULE_DELAY": "50"}
        self._spans: list[CollectedSpan] = []
        self._arrived = threading.Condition()

    def Export(self, request: Any, context: Any) -> trace_service_pb2.ExportTraceServiceResponse:  # noqa: N802 - as generated
        with self._arrived:
            for resource in request.resource_spans:
                service = str(_attributes(resource.resource.attributes)["service.name"])
                self._spans += [_collected(service, span) for scope in resource.scope_spans for span in scope.spans]
            self._arrived.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def find(self, name: str, parent_id: str | None = None) -> CollectedSpan:
        """Waits for a span of this name, a child of this one if it is given; there must be one only."""
        give_up = time.monotonic() + _WAIT_SECONDS
        with self._arrived:
            while not (found := [span for span in self._spans if _is(span, name, parent_id)]):
                assert self._arrived.wait(give_up - time.monotonic()), [span.name for span in self._spans]
        [only] = found
        return only


@contextmanager
def collecting() -> Iterator[Collector]:
    """Runs a collector."""
    server = grpc.server(ThreadPoolExecutor(1))
    collector = Collector(server.add_insecure_port("127.0.0.1:0"))
    register: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    register(collector, server)
    server.start()
    try:
        yield collector
    finally:
        server.stop(None)


def _is(span: CollectedSpan, name: str, parent_id: str | None) -> bool:
    return span.name == name and parent_id in {None, span.parent_id}


def _collected(service: str, span: Span) -> CollectedSpan:
    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
    links = tuple(link.span_id.hex() for link in span.links)
    return CollectedSpan(service, span.name, *ids, _attributes(span.attributes), links)


def _attributes(pairs: Any) -> dict[str, str | int]:
    return {pair.key: _value(pair) for pair in pairs}


def _value(pair: KeyValue) -> str | int:
    return pair.value.string_value if pair.value.HasField("string_value") else pair.value.int_value
