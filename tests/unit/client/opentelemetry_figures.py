"""The values of OpenTelemetry instruments."""

from typing import NamedTuple

from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Sum


class Observed(NamedTuple):
    """One instrument, with its only point."""

    unit: str
    is_monotonic: bool
    value: float
    attributes: dict[str, object]


def observed(reader: InMemoryMetricReader) -> dict[str, Observed]:
    """Collects all instruments of a reader's provider now; returns them by name."""
    data = reader.get_metrics_data()
    assert data is not None
    reported = {}
    for resource in data.resource_metrics:
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            assert isinstance(metric.data, Sum)
            [point] = metric.data.data_points
            reported[metric.name] = Observed(
                metric.unit or "", metric.data.is_monotonic, point.value, dict(point.attributes or {})
            )
    return reported
