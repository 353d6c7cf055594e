"""Metrics of producers for OpenTelemetry; needs the extra `opentelemetry`.

from opentelemetry.metrics import get_meter
from millrace_client.producing.opentelemetry import observe

observe(producer, get_meter("my-program"), {"producer": "orders"})
"""

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from millrace_client._metrics import Metric
from millrace_client.producing.metrics import METRICS, ReportsMetrics

_PREFIX = "millrace.producer."


def observe(producer: ReportsMetrics, meter: Meter, attributes: Mapping[str, str] | None = None) -> None:
    """Registers a producer's metrics with a meter, for as long as the meter lives."""
    for metric in METRICS:
        create = meter.create_observable_counter if metric.is_counter else meter.create_observable_up_down_counter
        create(
            _PREFIX + metric.name,
            callbacks=[_observation(producer, metric, dict(attributes or {}))],
            unit=metric.unit,
            description=metric.help,
        )


def _observation(
    producer: ReportsMetrics, metric: Metric, attributes: dict[str, str]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: [Observation(metric.read(producer.metrics()), attributes)]
