"""Spans that a test records, and a collector that receives spans over OTLP."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import Tracer, format_span_id, format_trace_id

from millrace.tracing import start_tracing, stop_tracing


class RecordedSpans:
    """The spans of a process, while tracing is on.

    Attributes:
        tracer: Starts spans as the user's program would.
    """

    def __init__(self, sampler: Sampler) -> None:
        provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self._exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.provider = provider
        self.tracer: Tracer = provider.get_tracer("test")

    def all(self) -> list[ReadableSpan]:
        """The spans that have ended, in that order."""
        return list(self._exporter.get_finished_spans())

    def names(self) -> list[str]:
        return [span.name for span in self.all()]

    def named(self, name: str) -> ReadableSpan:
        """The only span of this name."""
        [found] = [span for span in self.all() if span.name == name]
        return found


@contextmanager
def recording(sampler: Sampler | None = None, *, event_context: bool = False) -> Iterator[RecordedSpans]:
    """Records all spans of the block."""
    recorded = RecordedSpans(sampler or ParentBased(ALWAYS_ON))
    start_tracing(recorded.provider, event_context=event_context)
    try:
        yield recorded
    finally:
        stop_tracing()


def attributes_of(span: ReadableSpan) -> Mapping[str, Any]:
    return dict(span.attributes or {})


def traceparent_of(span: ReadableSpan) -> str:
    """The context of a span as events carry it."""
    context = span.get_span_context()
    assert context is not None
    return f"00-{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}-{context.trace_flags:02x}"


def span_id_of(span: ReadableSpan) -> str:
    """The id of a span, in hexadecimal digits."""
    return traceparent_of(span).split("-")[2]


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    """Whether a span is a child of another."""
    return span.parent is not None and format_span_id(span.parent.span_id) == span_id_of(parent)


def linked(span: ReadableSpan) -> set[str]:
    """The spans that a span is linked to, by their ids."""
    return {format_span_id(link.context.span_id) for link in span.links}
