"""How a daemon or an embedded agent exports its spans."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from millrace_server.configuration.settings import TracingSettings
from millrace_server.errors import StartError

_SERVICE_NAME = "millraced"
"""The service's name, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` says another."""


@contextmanager
def traced(settings: TracingSettings | None) -> Iterator[None]:
    """Exports the spans of the block, if the settings say so; raises StartError if that is not possible."""
    with ExitStack() as stack:
        if settings is not None:
            from millrace.span_export import ExporterError, exported_spans

            try:
                stack.enter_context(exported_spans(_SERVICE_NAME, event_context=settings.event_context))
            except ExporterError as error:
                raise StartError(f"server.tracing: {error}") from None
        yield
