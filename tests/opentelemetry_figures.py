"""The values that a meter of OpenTelemetry has observed."""

from typing import NamedTuple

from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Sum


class Observed(NamedTuple):
    """One instrument, with its only point."""

    unit: str
    is_monotonic: bool
    value: float
    attributes: dict[str, object]


def observed(reader: InMemoryMetricReader) -> dict[str, Observed]:
    """All instruments of a reader's provider, read now, by their names."""
    data = reader.get_metrics_data()
    assert data is not None
    told = {}
    for resource in data.resource_metrics:
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            assert isinstance(metric.data, Sum)
            [point] = metric.data.data_points
            told[metric.name] = Observed(
                metric.unit or "", metric.data.is_monotonic, point.value, dict(point.attributes or {})
            )
    return told
