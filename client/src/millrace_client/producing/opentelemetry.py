"""Producers' figures for OpenTelemetry; needs the extra `opentelemetry`.

from opentelemetry.metrics import get_meter
from millrace_client.producing.opentelemetry import observe

observe(producer, get_meter("my-program"), {"producer": "orders"})
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from millrace_client._units import unit_name
from millrace_client.producing.figures import FIGURES, Figure, FigureKind
from millrace_client.producing.metrics import ProducerMetrics

_PREFIX = "millrace.producer."


class Measured(Protocol):
    """A producer of either face."""

    def metrics(self) -> ProducerMetrics:
        """How it stands."""


def observe(producer: Measured, meter: Meter, attributes: Mapping[str, str] | None = None) -> None:
    """Has a meter observe a producer's figures for as long as the meter lives.

    Args:
        producer: Whose figures.
        meter: Observes them.
        attributes: What the observations bear, such as the producer's name where there are several.
    """
    for figure in FIGURES:
        is_counter = figure.kind is FigureKind.COUNTER
        create = meter.create_observable_counter if is_counter else meter.create_observable_up_down_counter
        create(
            _PREFIX + figure.name,
            callbacks=[_observation(producer, figure, dict(attributes or {}))],
            unit=unit_name(figure.unit),
            description=figure.text,
        )


def _observation(
    producer: Measured, figure: Figure, attributes: dict[str, str]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: [Observation(figure.value(producer.metrics()), attributes)]
