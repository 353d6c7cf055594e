"""The switch of tracing, which client, server and Spark connector share.

It imports nothing of OpenTelemetry before tracing is on. Code that can be traced asks the switch, and does nothing else
while tracing is off:

    if (spans := TRACING.spans) is not None:
        ...
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from millrace.event_context import traceparents
from millrace.v1.event_pb2 import EventColumns

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

    from millrace.spans import Spans


class Tracing:
    """Whether spans are recorded.

    Attributes:
        spans: What starts spans; None while tracing is off.
    """

    # Each event that is sent passes here: an attribute with a slot is read in a tenth of the time.
    __slots__ = ("spans",)

    def __init__(self) -> None:
        self.spans: Spans | None = None


TRACING = Tracing()
"""The switch of this process."""


def start_tracing(tracer_provider: "TracerProvider | None" = None, *, event_context: bool = False) -> None:
    """Records spans in this process from now on; needs the extra `opentelemetry`.

    Args:
        tracer_provider: Where spans go. None: OpenTelemetry's global tracer provider.
        event_context: Whether events get the W3C headers `traceparent` and, if there is one, `tracestate`, so that
            what consumes them is linked to what produced them. Events that have a `traceparent` keep theirs.
    """
    from millrace.spans import Spans

    TRACING.spans = Spans(tracer_provider, event_context=event_context)


def stop_tracing() -> None:
    """Records no further spans. Those that have begun end as usual."""
    TRACING.spans = None


def current_trace_id() -> str | None:
    """Returns the trace id, as 32 hex digits, of the span that this code runs in; None if it is not sampled."""
    spans = TRACING.spans
    return None if spans is None else spans.current_trace_id()


def trace_metadata() -> tuple[tuple[str, str], ...] | None:
    """Returns the current context as metadata of a gRPC call; None while tracing is off."""
    spans = TRACING.spans
    return None if spans is None else spans.metadata()


def operation_span(
    operation: str, channel: str, batches: Sequence[EventColumns] | None = None
) -> "AbstractContextManager[Span | None]":
    """Returns a context with the span of an operation on a channel, as `Spans.message` starts it.

    `batches`: its events. None: they are not known yet. The context yields None while tracing is off.
    """
    if (spans := TRACING.spans) is None:
        return _NO_SPAN
    if batches is None:
        return spans.running(spans.message(operation, channel))
    return spans.running(spans.message(operation, channel, count_of(batches), traceparents_of(batches)))


def note_received(span: "Span", batches: Sequence[EventColumns]) -> None:
    """Adds to a span what was received: the number of events, and links to what produced them."""
    from millrace.spans import link_producers

    span.set_attribute("messaging.batch.message_count", count_of(batches))
    link_producers(span, traceparents_of(batches))


def count_of(batches: Sequence[EventColumns]) -> int:
    """Returns the number of events."""
    return sum(columns.count for columns in batches)


def traceparents_of(batches: Sequence[EventColumns]) -> Iterator[str]:
    """Yields the contexts that events carry; see `traceparents`."""
    return (traceparent for columns in batches for traceparent in traceparents(columns))


_NO_SPAN: AbstractContextManager[None] = nullcontext()
