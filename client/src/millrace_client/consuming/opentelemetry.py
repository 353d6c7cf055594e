"""Consumers' figures for OpenTelemetry; needs the extra `opentelemetry`.

from opentelemetry.metrics import get_meter
from millrace_client.consuming.opentelemetry import observe

observe(consumer, get_meter("my-program"), {"consumer": "orders"})
"""

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from millrace_client._units import unit_name
from millrace_client.consuming.measures import MEASURES, Measure, Measured

_PREFIX = "millrace.consumer."


def observe(consumer: Measured, meter: Meter, attributes: Mapping[str, str] | None = None) -> None:
    """Has a meter observe a consumer's figures for as long as the meter lives.

    Args:
        consumer: Whose figures.
        meter: Observes them.
        attributes: What the observations bear, such as the consumer's name where there are several.
    """
    for measure in MEASURES:
        create = meter.create_observable_counter if measure.is_counter else meter.create_observable_up_down_counter
        create(
            _PREFIX + measure.name,
            callbacks=[_observation(consumer, measure, dict(attributes or {}))],
            # A name's last word is what it counts.
            unit=unit_name(measure.name.rpartition("_")[2]),
            description=measure.help,
        )


def _observation(
    consumer: Measured, measure: Measure, attributes: dict[str, str]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: [Observation(measure.read(consumer.metrics()), attributes)]
