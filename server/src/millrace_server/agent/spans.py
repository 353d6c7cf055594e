"""The agent's spans while tracing is on: of a source's batch, and of a sink's delivery."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millrace.event_context import TRACEPARENT, encoded_traceparents
from millrace.tracing import TRACING
from millrace_server.agent.events import EventTable
from millrace_server.channels.batches import StoredBatch

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from millrace.spans import Spans

_BATCHES_MAX = 32
"""How many batches of a delivery are searched for the spans of their producers, since each must be parsed for that."""


@contextmanager
def source_span(source: str, channels: Sequence[str], table: EventTable) -> Iterator[EventTable]:
    """Returns a context with the span of a source's batch; yields the events, with the span's context if configured."""
    if (spans := TRACING.spans) is None:
        yield table
        return
    traceparents = filter(None, table.values(TRACEPARENT)) if TRACEPARENT in table.headers else ()
    span = spans.message("append", ",".join(channels), table.count, traceparents, component=source)
    with spans.running(span):
        yield _with_context(table, spans.context_of(span)) if spans.event_context else table


def _with_context(table: EventTable, context: dict[str, str]) -> EventTable:
    given = EventTable(table.bodies, table.headers)
    for key, value in context.items():
        given.fill(key, value)
    return given


def delivery_span(spans: "Spans", channel: str, sink: str, batches: Sequence[StoredBatch]) -> "Span":
    """Starts the span of a sink's delivery, which ends when the delivery is settled or nacked."""
    looked_at = batches[:_BATCHES_MAX]
    traceparents = (one for batch in looked_at for one in encoded_traceparents(batch.window.columns()))
    return spans.message("process", channel, sum(batch.count for batch in batches), traceparents, component=sink)


def end_delivery_span(span: "Span", *, is_settled: bool) -> None:
    """Ends the span of a delivery, with its outcome."""
    span.set_attribute("millrace.outcome", "acked" if is_settled else "nacked")
    span.end()


def context_headers(span: "Span | None") -> list[tuple[str, str]]:
    """Returns the W3C headers of a request in a span; none if there is no span."""
    if span is None:
        return []
    from millrace.spans import Spans

    return list(Spans.context_of(span).items())
