"""Spans of tasks and of the driver's commits, by the options `tracing` and `tracing.*`."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Self

from millrace_spark.errors import MillraceSparkError
from millrace_spark.option_values import OptionValues, parse_flag

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

TRACING_OPTIONS: Mapping[str, str] = {
    "tracing": (
        "true: tasks and commits record spans, which OpenTelemetry exports as the environment variables OTEL_* of the "
        "driver and the executors say; default: false"
    ),
    "tracing.parent": "the W3C traceparent of the span that they are children of; default: none",
}
"""The options of tracing, for reading and writing, with their descriptions."""

WRITE_TRACING_OPTIONS: Mapping[str, str] = {
    **TRACING_OPTIONS,
    "tracing.eventContext": (
        "true: events without a header traceparent get the W3C context of the task that writes them; default: false"
    ),
}
"""The same for writing."""

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_LAST_SPANS_MILLISECONDS = 2_000


@dataclass(frozen=True, kw_only=True)
class JobTracing:
    """How a job is traced."""

    parent: str
    """The context of the parent of its spans; empty if there is none."""
    event_context: bool
    """Whether events get the context of their task."""

    @classmethod
    def of(cls, values: OptionValues) -> Self | None:
        """Returns how to trace, as the options say; None: not at all."""
        parent = values.value("tracing.parent", _parse_traceparent, "")
        event_context = values.value("tracing.eventContext", parse_flag, default=False)
        is_on = values.value("tracing", parse_flag, default=False)
        return cls(parent=parent, event_context=event_context) if is_on else None

    @contextmanager
    def span(self, operation: str, channel: str) -> "Iterator[Span]":
        """Traces the block in its own span; sends its spans at the end, for Spark may end the process at any time.

        Raises:
            MillraceSparkError: OpenTelemetry is not installed here, or its environment variables are not valid.
        """
        from millrace.tracing import TRACING, start_tracing, stop_tracing

        # The program may have turned it on itself.
        is_own = TRACING.spans is None
        provider = _provider() if is_own else None
        if provider is not None:
            start_tracing(provider, event_context=self.event_context)
        spans = TRACING.spans
        assert spans is not None, "tracing is on"
        try:
            with spans.running(spans.message(operation, channel, parent=self.parent)) as span:
                yield span
        finally:
            if provider is not None:
                stop_tracing()
                provider.force_flush(_LAST_SPANS_MILLISECONDS)


@contextmanager
def traced(tracing: JobTracing | None, operation: str, channel: str) -> "Iterator[Span | None]":
    """Traces the block as `JobTracing.span` does, if at all."""
    if tracing is None:
        yield None
        return
    with tracing.span(operation, channel) as span:
        yield span


@cache
def _provider() -> "TracerProvider":
    try:
        from millrace.span_export import ExporterError, tracer_provider
    except ImportError as error:
        raise MillraceSparkError(
            f"option tracing: {error}; run: pip install 'millrace-spark[opentelemetry]', also for the executors"
        ) from None
    try:
        return tracer_provider("millrace-spark")[0]
    except ExporterError as error:
        raise MillraceSparkError(f"option tracing: {error}") from None


def _parse_traceparent(text: str) -> str:
    if not _TRACEPARENT.fullmatch(text):
        raise ValueError("a W3C traceparent, such as 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    return text
