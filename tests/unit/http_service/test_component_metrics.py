import json
import time

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from millrace_server.agent.components import ComponentKind, Components, EventOutcome
from millrace_server.http_service.component_metrics import ComponentCollector, describe_components


def made() -> Components:
    components = Components()
    source = components.add(ComponentKind.SOURCE, "access", "taildir", ["orders", "audit"])
    source.dead_letter_channel = "rejected"
    source.record_progress(10, 500)
    source.record_outcome(EventOutcome.MISSED, 3)
    group = components.add(ComponentKind.SINK_GROUP, "out", "failover")
    group.mark_backing_off("cannot reach collector-1:7070")
    return components


def samples_of(components: Components) -> dict[tuple[str, ...], float]:
    registry = CollectorRegistry()
    registry.register(ComponentCollector(components))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name.removeprefix("millrace_component_"), *(sample.labels[key] for key in sorted(sample.labels))): (
            sample.value
        )
        for family in families
        for sample in family.samples
    }


def test_collect_of_components_tells_one_state_of_each() -> None:
    """The current state is 1 and the others are 0, so that alerts need no text."""
    samples = samples_of(made())
    states = {key[3]: value for key, value in samples.items() if key[0] == "state" and "out" in key}
    assert states == {"starting": 0, "running": 0, "backing_off": 1, "failed": 0, "stopped": 0, "standing_by": 0}
    assert samples["state", "access", "source", "running", "taildir"] == 1


def test_collect_of_components_tells_what_they_did() -> None:
    """The metrics are events, batches, bytes, failures, losses, the last progress, and the channels."""
    samples = samples_of(made())
    assert samples["events_total", "access", "source"] == 10
    assert samples["batches_total", "access", "source"] == 1
    assert samples["body_bytes_total", "access", "source"] == 500
    assert samples["failures_total", "out", "sink_group"] == 1
    assert samples["event_fates_total", "access", "missed", "source"] == 3
    assert [key[1] for key in samples if key[0] == "channel_info"] == ["orders", "audit"]
    assert [key for key in samples if key[0] == "dead_letter_channel_info"] == [
        ("dead_letter_channel_info", "rejected", "access", "source")
    ]
    assert samples["last_progress_timestamp_seconds", "access", "source"] == pytest.approx(time.time(), abs=60)
    assert ("last_progress_timestamp_seconds", "out", "sink_group") not in samples


def test_collect_of_components_that_went_tells_nothing_of_them() -> None:
    """After a reload no series of removed components remains."""
    components = made()
    for component in list(components):
        component.mark_stopped()
        components.remove(component)
    assert samples_of(components) == {}


def test_describe_of_components_has_flumes_keys_and_is_json() -> None:
    """The keys have the names and meanings of Flume's JSON."""
    described = json.loads(json.dumps(describe_components(made())))
    assert list(described) == ["SINK_GROUP.out", "SOURCE.access"]
    source, group = described["SOURCE.access"], described["SINK_GROUP.out"]
    assert (source["Type"], source["ComponentType"], source["State"]) == ("SOURCE", "taildir", "running")
    assert (source["EventAcceptedCount"], source["AppendBatchAcceptedCount"], source["BodyBytes"]) == (10, 1, 500)
    assert source["MissedCount"] == 3
    assert (group["State"], group["Reason"]) == ("backing off", "cannot reach collector-1:7070")
    assert (group["EventDrainSuccessCount"], group["FailureCount"]) == (0, 1)
    assert group["SecondsSinceProgress"] is None
