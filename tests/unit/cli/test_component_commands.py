import json
from dataclasses import replace

import pytest

from millrace_client import ComponentKind, ComponentState
from millrace_client.cli.component_view import component_document, components_table
from millrace_client.cli.top_rates import ComponentRateMeter
from tests.unit.cli.conftest import RunMillrace
from tests.unit.cli.fake_client import ACCESS, FakeClient

COLLECTOR = replace(
    ACCESS,
    kind=ComponentKind.SINK,
    name="collector",
    type="millrace",
    state=ComponentState.BACKING_OFF,
    reason="cannot reach collector-1:7070",
    counters=replace(ACCESS.counters, event_count=0, failure_count=7, missed_count=3),
    progress_age_seconds=None,
)


def test_components_in_a_pipe_writes_a_plain_table(client: FakeClient, millrace: RunMillrace) -> None:
    """One line a component, with why it does not work in the end."""
    client.admin.components = [COLLECTOR, ACCESS]
    heading, sink, source = millrace("components").stdout.splitlines()
    assert heading.split() == ["COMPONENT", "TYPE", "STATE", "EVENTS", "BYTES", "LOST", "FAILURES", "LAST", "WHY"]
    assert sink.split() == [
        *["sinks/collector", "millrace", "backing_off", "0", "2.0", "KiB", "3", "7", "-"],
        *["cannot", "reach", "collector-1:7070"],
    ]
    assert source.split() == ["sources/access", "taildir", "running", "1,234", "2.0", "KiB", "0", "0", "2", "min", "-"]


def test_components_as_json_tells_everything(client: FakeClient, millrace: RunMillrace) -> None:
    """The fields of the wire, for programs."""
    client.admin.components = [COLLECTOR]
    [document] = json.loads(millrace("components", "--json").stdout)
    assert document == component_document(COLLECTOR)
    assert (document["kind"], document["state"]) == ("sink", "backing_off")
    assert document["counters"]["failure_count"] == 7
    assert document["since"] == "2026-01-02T03:04:05+00:00"
    assert document["progress_age_seconds"] is None


def test_components_of_a_server_without_any_writes_an_empty_list(millrace: RunMillrace) -> None:
    """A server without an agent is none that fails."""
    result = millrace("components", "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, [])


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.2, "0 s"), (59.0, "59 s"), (61.0, "1 min"), (7_200.0, "2 h"), (200_000.0, "2 d")]
)
def test_components_table_tells_ages_as_people_do(seconds: float, shown: str) -> None:
    """The largest unit that fits."""
    table = components_table([replace(ACCESS, progress_age_seconds=seconds)])
    assert list(table.columns[-2].cells) == [shown]


def test_measure_of_components_gives_events_a_second_between_two_looks() -> None:
    """One that is new, or counts from 0 again, has none."""
    times = iter([10.0, 12.0, 14.0])
    meter = ComponentRateMeter(lambda: next(times))
    assert meter.measure([ACCESS]) == {}
    more = replace(ACCESS, counters=replace(ACCESS.counters, event_count=1_334))
    assert meter.measure([more, COLLECTOR]) == {"sources/access": 50.0}
    assert meter.measure([ACCESS, COLLECTOR]) == {"sinks/collector": 0.0}


def test_top_with_components_shows_them_below_the_channels(client: FakeClient, millrace: RunMillrace) -> None:
    """A second table: what moves the events, and what keeps it from that."""
    client.admin.components = [COLLECTOR, ACCESS]
    lines = millrace("top", "--interval", "0.1").stdout.splitlines()
    assert lines[0].startswith("CHANNEL")
    assert lines[1].startswith("orders")
    assert lines[2] == ""
    assert lines[3].split()[:4] == ["COMPONENT", "TYPE", "STATE", "EVENTS/S"]
    assert lines[4].split()[:4] == ["sinks/collector", "millrace", "backing_off", "0"]
    assert lines[5].split()[:4] == ["sources/access", "taildir", "running", "0"]


def test_top_of_named_channels_leaves_components_out(client: FakeClient, millrace: RunMillrace) -> None:
    """Whoever names channels wants to see those."""
    client.admin.components = [ACCESS]
    assert "sources/access" not in millrace("top", "orders", "--interval", "0.1").stdout
