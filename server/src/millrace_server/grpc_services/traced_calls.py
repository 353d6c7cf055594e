"""Spans of calls, while tracing is on: one for each RPC but the streams, and one for each append in a stream."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc
from grpc import aio

from millrace.event_context import encoded_traceparents
from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.commit import Receipt
from millrace_server.errors import MillraceError
from millrace_server.grpc_services.call import Call
from millrace_server.grpc_services.status import code_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from millrace.spans import Spans

_FAULTS = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DATA_LOSS,
}
"""The codes that OpenTelemetry's conventions count as errors of a server; the others are its caller's."""


class TracedCall:
    """A call as a context, with a span that is a child of its caller's. Unauthenticated calls get none."""

    def __init__(self, spans: "Spans", method: str, call: Call, context: aio.ServicerContext[Any, Any]) -> None:
        self._spans = spans
        self._method = method
        self._call = call
        self._context = context

    def __enter__(self) -> Call:
        call = self._call.__enter__()
        self._span = self._spans.rpc(self._method, self._context.invocation_metadata() or ())
        # Never detached: the task ends with the call, whose duration is observed after this context.
        self._spans.attach(self._span)
        return call

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._call.__exit__(kind, error, trace)
        except MillraceError as ended:
            # What ended the call, instead of the cancellation by which that was done.
            error = ended
            raise
        finally:
            end_span(self._span, error)


def append_span(spans: "Spans", channel: str, batches: Sequence[StoredColumns]) -> "Span":
    """Starts the span of an append in a stream, whose context its events carry."""
    traceparents = (traceparent for batch in batches for traceparent in encoded_traceparents(batch.raw))
    return spans.message("append", channel, sum(batch.count for batch in batches), traceparents, is_served=True)


def note_commit(span: "Span", channel: str, receipt: Receipt) -> None:
    """Notes in a call's span that its commit has become durable now."""
    span.set_attribute("messaging.destination.name", channel)
    sequences = {"millrace.first_sequence": receipt.first_sequence, "millrace.last_sequence": receipt.last_sequence}
    span.add_event("committed", sequences)


def sampled_trace_id(span: "Span") -> str | None:
    """Returns the trace id of a span, as 32 hex digits; None if it is not sampled."""
    context = span.get_span_context()
    return f"{context.trace_id:032x}" if context.trace_flags.sampled else None


def end_span(span: "Span", error: BaseException | None) -> None:
    """Ends a span as its call ended."""
    from millrace.spans import describe_error

    code = _code_of(error)
    span.set_attribute("rpc.response.status_code", code.name)
    if error is not None:
        describe_error(span, error, is_fault=code in _FAULTS)
    span.end()


def _code_of(error: BaseException | None) -> grpc.StatusCode:
    match error:
        case None:
            return grpc.StatusCode.OK
        case MillraceError():
            return code_of(error)
        case asyncio.CancelledError():
            return grpc.StatusCode.CANCELLED
        case _:
            return grpc.StatusCode.INTERNAL
