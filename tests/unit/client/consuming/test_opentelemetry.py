"""OpenTelemetry's own package is not needed here: what is used of it is two names and a meter."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.unit.client.consuming.parts import World, answer_of


class FakeMeter:
    """Keeps how its instruments were made.

    Attributes:
        made: For each instrument its kind, and what reads it.
    """

    def __init__(self) -> None:
        self.made: dict[str, tuple[str, Callable[[Any], Any]]] = {}

    def create_observable_counter(self, name: str, callbacks: list[Any], description: str) -> None:
        self.made[name] = "counter", callbacks[0]

    def create_observable_up_down_counter(self, name: str, callbacks: list[Any], description: str) -> None:
        self.made[name] = "gauge", callbacks[0]


async def test_figures_are_observed_by_a_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each figure is read when the meter asks, with the attributes that were given."""
    package, metrics = ModuleType("opentelemetry"), ModuleType("opentelemetry.metrics")
    for name in ("CallbackOptions", "Meter"):
        setattr(metrics, name, object)
    metrics.Observation = lambda value, attributes: SimpleNamespace(value=value, attributes=attributes)  # type: ignore[attr-defined]  # a stand-in
    monkeypatch.setitem(sys.modules, "opentelemetry", package)
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", metrics)
    monkeypatch.delitem(sys.modules, "millrace_client.consuming.opentelemetry", raising=False)
    from millrace_client.consuming.opentelemetry import observe

    world, meter = World(), FakeMeter()
    observe(world.engine, meter, {"consumer": "orders"})
    assert await world.engine.take(0.1) is None
    world.streams[0].deliver(answer_of(1, b"a", b"b"))
    assert await (await world.take()).ack()
    kind, read = meter.made["millrace.consumer.acked_events"]
    [observation] = read(None)
    assert (kind, observation.value, observation.attributes) == ("counter", 2, {"consumer": "orders"})
    assert meter.made["millrace.consumer.queued_bytes"][0] == "gauge"
    await world.engine.close(1.0)
    # It knows the stand-in.
    sys.modules.pop("millrace_client.consuming.opentelemetry")
