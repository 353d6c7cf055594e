from dataclasses import fields, replace

from millrace.v1 import admin_service_pb2 as pb
from millrace_client import ComponentCounters, ComponentKind, ComponentState
from millrace_client._decoding import component_info
from tests.unit.cli.fake_channel import ACCESS


def test_component_info_of_an_response_tells_every_field() -> None:
    """Every field of the message is converted."""
    message = pb.Component(
        kind=pb.COMPONENT_KIND_SINK_GROUP,
        name="out",
        type="failover",
        state=pb.COMPONENT_STATE_BACKING_OFF,
        reason="all sinks have failed",
        counters={field.name: number for number, field in enumerate(fields(ComponentCounters), start=1)},
        progress_age={"seconds": 2, "nanos": 500_000_000},
    )
    info = component_info(message)
    assert (info.kind, info.name, info.type) == (ComponentKind.SINK_GROUP, "out", "failover")
    assert (info.state, info.reason) == (ComponentState.BACKING_OFF, "all sinks have failed")
    assert (info.counters.event_count, info.counters.missed_count) == (1, 9)
    assert info.progress_age_seconds == 2.5


def test_component_info_of_a_newer_server_is_unknown_where_it_must() -> None:
    """An unknown state is not an error."""
    info = component_info(pb.Component(kind=99, state=99))  # type: ignore[arg-type] # what a later release may send
    assert (info.kind, info.state) == (ComponentKind.UNKNOWN, ComponentState.UNKNOWN)
    assert info.progress_age_seconds is None


def test_lost_count_of_counters_adds_what_is_not_where_it_was_meant_to_be() -> None:
    """Events that an interceptor filters or that are in a dead-letter channel are not lost."""
    counters = replace(
        ACCESS.counters,
        filtered_count=1,
        unrouted_count=10,
        dead_lettered_count=100,
        dropped_count=1000,
        missed_count=5,
    )
    assert counters.lost_count == 1015
