from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from millrace import span_export
from millrace.span_export import ExporterError, exported_spans
from millrace.tracing import TRACING
from tests.recorded_spans import recording


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Without a collector, and without what the tests' own environment says."""
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    yield monkeypatch
    assert TRACING.spans is None


def started_span() -> Span:
    assert TRACING.spans is not None
    span = TRACING.spans.message("append", "orders")
    assert isinstance(span, Span)
    return span


@pytest.mark.parametrize(
    ("variable", "value", "service"),
    [
        ("OTEL_SERVICE_NAME", "mill", "mill"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=site,host.name=one", "site"),
        ("OTEL_TRACES_EXPORTER", "", "millraced"),
    ],
)
def test_exported_spans_have_the_service_of_the_environment(
    environment: pytest.MonkeyPatch, variable: str, value: str, service: str
) -> None:
    """By default the program's own."""
    environment.setenv(variable, value)
    with exported_spans("millraced", event_context=False):
        assert started_span().resource.attributes["service.name"] == service


def test_exported_spans_go_to_the_provider_that_the_program_has_set(environment: pytest.MonkeyPatch) -> None:
    """An embedding program has its own, which is not shut down with the agent."""
    provider = TracerProvider()
    environment.setattr(trace, "get_tracer_provider", lambda: provider)
    with exported_spans("millraced", event_context=True):
        assert started_span().resource is provider.resource
    assert isinstance(provider.get_tracer("test").start_span("later"), Span)


def test_exported_spans_of_a_program_that_traces_itself_leave_its_tracing_alone() -> None:
    """An embedded agent must not end it."""
    with recording() as recorded:
        with exported_spans("millraced", event_context=True):
            started_span().end()
        started_span().end()
    assert recorded.names() == ["append orders"] * 2


class Installed(NamedTuple):
    """The entry point of an exporter."""

    exporter: InMemorySpanExporter

    def load(self) -> Callable[[], InMemorySpanExporter]:
        return lambda: self.exporter


def test_exported_spans_are_all_sent_by_the_end(environment: pytest.MonkeyPatch) -> None:
    """The last ones when the program stops."""
    exporter = InMemorySpanExporter()
    environment.setattr(span_export, "entry_points", lambda **_asked: [Installed(exporter)])
    environment.setenv("OTEL_TRACES_EXPORTER", "memory, none")
    with exported_spans("millraced", event_context=False):
        started_span().end()
    assert [span.name for span in exporter.get_finished_spans()] == ["append orders"]


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        (
            "OTEL_TRACES_EXPORTER",
            "zipkin",
            "zipkin needs an exporter that is not installed, such as opentelemetry-exporter-",
        ),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "otlp needs .* opentelemetry-exporter-otlp-proto-http"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip", "otlp cannot be used"),
    ],
)
def test_exported_spans_that_cannot_be_exported_says_why(
    environment: pytest.MonkeyPatch, variable: str, value: str, sentence: str
) -> None:
    """The server does not start then, rather than to trace nothing."""
    environment.delenv("OTEL_TRACES_EXPORTER")
    environment.setenv(variable, value)
    with pytest.raises(ExporterError, match=sentence), exported_spans("millraced", event_context=False):
        pass
