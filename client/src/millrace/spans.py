"""Spans by OpenTelemetry's conventions for messaging and for RPCs; needs the extra `opentelemetry`.

Only `millrace.tracing` imports this, and only when tracing is on.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

from opentelemetry import trace
from opentelemetry.context import attach
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from millrace.event_context import TRACEPARENT, context_fields, headers_with_context
from millrace.v1 import event_pb2

LINKS_MAX = 32
"""The most links of a batch's span to the producers of its events."""

_SCANNED_MAX = 256
"""The maximum number of events, or batches whose events share their context, that are looked at for these links."""

_TRACEPARENT_LENGTH = 55

_OPERATION_TYPES = {
    "append": ("send", SpanKind.CLIENT),
    "put": ("send", SpanKind.CLIENT),
    "take": ("receive", SpanKind.CLIENT),
    "read": ("receive", SpanKind.CLIENT),
    "process": ("process", SpanKind.CONSUMER),
    "commit": ("settle", SpanKind.CLIENT),
    "rollback": ("settle", SpanKind.CLIENT),
}
"""The operation's type and the kind of its span, by its name."""

_W3C = TraceContextTextMapPropagator()


class Spans:
    """Starts spans. For any thread and task.

    Attributes:
        event_context: Whether events get the context of their producer.
    """

    def __init__(self, tracer_provider: TracerProvider | None, *, event_context: bool) -> None:
        self._tracer = trace.get_tracer("millrace", tracer_provider=tracer_provider)
        self.event_context = event_context

    # The current context.

    @staticmethod
    def current() -> Span:
        """Returns the current span, or one that records nothing."""
        return trace.get_current_span()

    @staticmethod
    def current_trace_id() -> str | None:
        context = trace.get_current_span().get_span_context()
        return trace.format_trace_id(context.trace_id) if context.trace_flags.sampled else None

    @staticmethod
    def context_of(span: Span | None = None) -> dict[str, str]:
        """Returns the context of a span, by default the current one, as W3C headers; empty if there is none."""
        headers: dict[str, str] = {}
        _W3C.inject(headers, None if span is None else trace.set_span_in_context(span))
        return headers

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the same as metadata of a gRPC call."""
        return tuple(self.context_of().items())

    def context_fields(self, columns: event_pb2.EventColumns) -> bytes:
        """Returns what to append to encoded columns so that their events have the current context."""
        return context_fields(columns, self.context_of()) if self.event_context else b""

    def event_headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Returns an event's headers with the current context, if events get one."""
        return headers_with_context(headers, self.context_of()) if self.event_context else headers

    # Spans.

    def message(  # noqa: PLR0913 - all but the first two have defaults
        self,
        operation: str,
        channel: str,
        event_count: int | None = None,
        traceparents: Iterable[str] = (),
        *,
        endpoint: str = "",
        component: str = "",
        parent: str = "",
        is_served: bool = False,
    ) -> Span:
        """Starts the span of an operation on a channel, which the caller ends, or passes to `running`.

        It is a child of the current span. Without one, it is a child of what produced the events, if all of them have
        the same context, and otherwise the root of a trace.

        Args:
            operation: A name in the table above.
            channel: The channel. Empty: several, or not known.
            event_count: The number of events. None: not known yet.
            traceparents: The contexts that the events carry. The span is linked to the first ones.
            endpoint: The server that executes it for this client: `host:port`.
            component: The source or sink that does it.
            parent: The context of its parent. Empty: as above.
            is_served: Whether a server executes the operation for its caller.
        """
        kind_of_operation, kind = _OPERATION_TYPES[operation]
        described: dict[str, Any] = {
            "messaging.system": "millrace",
            "messaging.operation.name": operation,
            "messaging.operation.type": kind_of_operation,
            **_server_attributes(endpoint),
        }
        if channel:
            described["messaging.destination.name"] = channel
        if component:
            described["millrace.component"] = component
        if event_count is not None:
            described["messaging.batch.message_count"] = event_count
        producers = _producers(traceparents)
        if is_served:
            kind = SpanKind.SERVER
        elif operation == "append" and self.event_context and not producers:
            # The events get the context of this span.
            kind = SpanKind.PRODUCER
        if not parent and len(producers) == 1 and not trace.get_current_span().get_span_context().is_valid:
            parent = producers[0]
        span = self._tracer.start_span(
            f"{operation} {channel}".rstrip(),
            context=_parent(parent) if parent else None,
            kind=kind,
            attributes=described,
        )
        if span.is_recording():
            _link(span, producers)
        return span

    def rpc(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> Span:
        """Starts the span of an RPC that is served, whose caller's context is in the metadata."""
        headers = {key: value for key, value in metadata if isinstance(value, str)}
        return self._tracer.start_span(
            method,
            context=_W3C.extract(headers),
            kind=SpanKind.SERVER,
            attributes={"rpc.system.name": "grpc", "rpc.method": method},
        )

    @staticmethod
    @contextmanager
    def running(span: Span) -> Iterator[Span]:
        """Makes a span the current one, and ends it with the block, with the block's error if it raises."""
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield span
            except (Exception, asyncio.CancelledError) as error:
                describe_error(span, error)
                raise

    @staticmethod
    def attach(span: Span) -> None:
        """Makes a span the current one for the rest of the task or thread."""
        attach(trace.set_span_in_context(span))

    @staticmethod
    @contextmanager
    def within(span: Span) -> Iterator[None]:
        """Makes a span the current one during the block; does not end it."""
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield


def link_producers(span: Span, traceparents: Iterable[str]) -> None:
    """Links a span, if it is sampled, to the first of the spans with these contexts."""
    if span.is_recording():
        _link(span, _producers(traceparents))


def _link(span: Span, producers: Iterable[str]) -> None:
    for traceparent in producers:
        producer = trace.get_current_span(_parent(traceparent)).get_span_context()
        if producer.is_valid:
            span.add_link(producer)


def describe_error(span: Span, error: BaseException, *, is_fault: bool = True) -> None:
    """Sets the error of a span: the reason, if it is one of Millrace's own, or else its type.

    `is_fault`: whether the status of the span is an error, too.
    """
    span.set_attribute("error.type", getattr(error, "reason", "") or type(error).__qualname__)
    if is_fault:
        span.set_status(Status(StatusCode.ERROR, str(error)))


def _server_attributes(endpoint: str) -> dict[str, str | int]:
    host, _, port = endpoint.rpartition(":")
    if port.isdecimal():
        return {"server.address": host, "server.port": int(port)}
    return {"server.address": endpoint} if endpoint else {}


def _parent(traceparent: str) -> Any:
    return _W3C.extract({TRACEPARENT: traceparent})


def _producers(traceparents: Iterable[str]) -> list[str]:
    """Returns the different contexts among the first ones."""
    found: dict[str, None] = {}
    for traceparent in islice(traceparents, _SCANNED_MAX):
        # Anything may be in an event's header.
        if len(traceparent) == _TRACEPARENT_LENGTH:
            found[traceparent] = None
        if len(found) == LINKS_MAX:
            break
    return list(found)
