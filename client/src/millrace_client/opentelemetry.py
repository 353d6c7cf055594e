"""Traces and metrics for OpenTelemetry; needs the extra `opentelemetry`.

from opentelemetry.metrics import get_meter
from millrace_client.opentelemetry import observe_producer, start_tracing

start_tracing(event_context=True)
observe_producer(producer, get_meter("my-program"), {"producer": "orders"})
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.trace import Span

from millrace.tracing import current_trace_id, operation_span, start_tracing, stop_tracing
from millrace_client._metrics import Metric
from millrace_client.consuming import metrics as consumer_metrics
from millrace_client.events import Batch
from millrace_client.producing import metrics as producer_metrics


@contextmanager
def process_span(channel: str, batches: Sequence[Batch]) -> Iterator[Span | None]:
    """Returns a context with the span of processing events, which is linked to what produced them.

    For what `Client` has taken or read; a `Consumer` starts such spans itself. None while tracing is off.

    Args:
        channel: The channel that they came from.
        batches: The events: those of a take, of a read, or `delivery.batches`.
    """
    with operation_span("process", channel, [batch.columns for batch in batches]) as span:
        yield span


def observe_producer(
    producer: producer_metrics.ReportsMetrics, meter: Meter, attributes: Mapping[str, str] | None = None
) -> None:
    """Registers a producer's metrics with a meter, for as long as the meter lives."""
    _observe("millrace.producer.", producer_metrics.METRICS, producer.metrics, meter, attributes)


def observe_consumer(
    consumer: consumer_metrics.ReportsMetrics, meter: Meter, attributes: Mapping[str, str] | None = None
) -> None:
    """Registers a consumer's metrics with a meter, for as long as the meter lives."""
    _observe("millrace.consumer.", consumer_metrics.METRICS, consumer.metrics, meter, attributes)


def _observe(
    prefix: str,
    metrics: Iterable[Metric],
    measure: Callable[[], object],
    meter: Meter,
    attributes: Mapping[str, str] | None,
) -> None:
    for metric in metrics:
        create = meter.create_observable_counter if metric.is_counter else meter.create_observable_up_down_counter
        create(
            prefix + metric.name,
            callbacks=[_observation(metric, measure, dict(attributes or {}))],
            unit=metric.unit,
            description=metric.help,
        )


def _observation(
    metric: Metric, measure: Callable[[], object], attributes: dict[str, str]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: [Observation(metric.read(measure()), attributes)]


__all__ = [
    "current_trace_id",
    "observe_consumer",
    "observe_producer",
    "process_span",
    "start_tracing",
    "stop_tracing",
]
