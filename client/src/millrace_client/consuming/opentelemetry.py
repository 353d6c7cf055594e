"""Metrics of consumers for OpenTelemetry; needs the extra `opentelemetry`.

from opentelemetry.metrics import get_meter
from millrace_client.consuming.opentelemetry import observe

observe(consumer, get_meter("my-program"), {"consumer": "orders"})
"""

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from millrace_client._metrics import Metric
from millrace_client.consuming.metrics import METRICS, ReportsMetrics

_PREFIX = "millrace.consumer."


def observe(consumer: ReportsMetrics, meter: Meter, attributes: Mapping[str, str] | None = None) -> None:
    """Registers a consumer's metrics with a meter, for as long as the meter lives."""
    for metric in METRICS:
        create = meter.create_observable_counter if metric.is_counter else meter.create_observable_up_down_counter
        create(
            _PREFIX + metric.name,
            callbacks=[_observation(consumer, metric, dict(attributes or {}))],
            unit=metric.unit,
            description=metric.help,
        )


def _observation(
    consumer: ReportsMetrics, metric: Metric, attributes: dict[str, str]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: [Observation(metric.read(consumer.metrics()), attributes)]
