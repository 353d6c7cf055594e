"""Spans of a producer's batches, while tracing is on: from the sealing of a batch until it is settled."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millrace.event_context import TRACEPARENT
from millrace_client.errors import MillraceError
from millrace_client.producing.pages import Page
from millrace_client.producing.servers import ServerChannel

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from millrace.spans import Spans


def batch_span(spans: "Spans", channel: ServerChannel, pages: Sequence[Page]) -> "Span":
    """Starts the span of a batch, linked to the contexts in which its events were sent.

    If no event has a context, and events get one, all of them get that of this span.
    """
    traceparents = (value for page in pages for value in page.columns.get(TRACEPARENT, ()) if value is not None)
    event_count = sum(len(page.bodies) for page in pages)
    span = spans.message("append", channel.name, event_count, traceparents, endpoint=channel.address)
    context = spans.context_of(span) if spans.event_context else {}
    if context and not any(TRACEPARENT in page.columns for page in pages):
        for page in pages:
            page.columns[TRACEPARENT] = [context[TRACEPARENT]] * len(page.bodies)
    return span


def end_batch_span(span: "Span", attempt_count: int, error: MillraceError | None) -> None:
    """Ends the span of a batch that was stored, or failed with an error."""
    from millrace.spans import describe_error

    span.set_attribute("millrace.attempt_count", attempt_count)
    if error is not None:
        describe_error(span, error)
    span.end()
