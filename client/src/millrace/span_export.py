"""The export of spans from Millrace's own programs, as OpenTelemetry's environment variables configure it.

Needs `opentelemetry-sdk` and an exporter, such as `opentelemetry-exporter-otlp-proto-grpc`.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from millrace.tracing import TRACING, start_tracing, stop_tracing

_EXPORTERS = "opentelemetry_traces_exporter"
"""The entry points of exporters, by the names that `OTEL_TRACES_EXPORTER` has."""

_LAST_SPANS_SECONDS = 3.0
"""How long the last spans may take to be sent when the program stops."""


class ExporterError(Exception):
    """Raised if spans cannot be exported as the environment says; the message names the variable."""


@contextmanager
def exported_spans(service_name: str, *, event_context: bool) -> Iterator[None]:
    """Traces the block and exports its spans; at its end sends the last ones.

    If the program has turned tracing on itself, nothing changes; if it has set a tracer provider of the SDK, that one
    gets the spans.

    Raises:
        ExporterError: The environment names an exporter that is not installed, or that cannot be created.
    """
    if TRACING.spans is not None:
        yield
        return
    provider, is_own = tracer_provider(service_name)
    start_tracing(provider, event_context=event_context)
    try:
        yield
    finally:
        stop_tracing()
        if is_own:
            # A collector that does not respond must not keep the program from stopping.
            ending = threading.Thread(target=provider.shutdown, name="millrace-last-spans", daemon=True)
            ending.start()
            ending.join(_LAST_SPANS_SECONDS)


def tracer_provider(service_name: str) -> tuple[TracerProvider, bool]:
    """Returns the tracer provider, and whether it was created here; raises ExporterError as `exported_spans`."""
    given = trace.get_tracer_provider()
    if isinstance(given, TracerProvider):
        return given, False
    exporters = [_exporter(name) for name in _exporter_names()]
    provider = TracerProvider(resource=_resource(service_name), shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider, True


def _resource(service_name: str) -> Resource:
    resource = Resource.create()
    is_named = not str(resource.attributes[SERVICE_NAME]).startswith("unknown_service")
    return resource if is_named else resource.merge(Resource({SERVICE_NAME: service_name}))


def _exporter_names() -> list[str]:
    names = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    return [name for name in map(str.strip, names.split(",")) if name and name != "none"]


def _exporter(name: str) -> SpanExporter:
    wanted = name
    if name == "otlp":
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        wanted = "otlp_proto_http" if (protocol or "grpc").startswith("http") else "otlp_proto_grpc"
    found = next(iter(entry_points(group=_EXPORTERS, name=wanted)), None)
    if found is None:
        package = f"opentelemetry-exporter-{wanted.replace('_', '-')}"
        raise ExporterError(f"OTEL_TRACES_EXPORTER: {name} needs an exporter that is not installed, such as {package}")
    try:
        exporter: SpanExporter = found.load()()
    except Exception as error:
        raise ExporterError(f"OTEL_TRACES_EXPORTER: {name} cannot be used: {error}") from error
    return exporter
