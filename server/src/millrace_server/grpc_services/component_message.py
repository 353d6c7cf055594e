"""A component of the agent as AdminService tells of it."""

from datetime import UTC, datetime

from millrace.v1 import admin_service_pb2 as pb
from millrace_server.agent.components import Component, ComponentKind, ComponentState, EventOutcome
from millrace_server.grpc_services.durations import duration

_KIND_NUMBERS = {
    ComponentKind.SOURCE: pb.COMPONENT_KIND_SOURCE,
    ComponentKind.SINK: pb.COMPONENT_KIND_SINK,
    ComponentKind.SINK_GROUP: pb.COMPONENT_KIND_SINK_GROUP,
}
_STATE_NUMBERS = {
    ComponentState.STARTING: pb.COMPONENT_STATE_STARTING,
    ComponentState.RUNNING: pb.COMPONENT_STATE_RUNNING,
    ComponentState.BACKING_OFF: pb.COMPONENT_STATE_BACKING_OFF,
    ComponentState.FAILED: pb.COMPONENT_STATE_FAILED,
    ComponentState.STOPPED: pb.COMPONENT_STATE_STOPPED,
    ComponentState.STANDING_BY: pb.COMPONENT_STATE_STANDING_BY,
}


def component_message(component: Component) -> pb.Component:
    """The component as it stands at this moment."""
    message = pb.Component(
        kind=_KIND_NUMBERS[component.kind],
        name=component.name,
        type=component.type_name,
        state=_STATE_NUMBERS[component.state],
        # What a reason quotes may come from anywhere; protobuf takes only what UTF-8 can say.
        reason=component.reason.encode(errors="replace").decode(),
        counters=_counters_message(component),
    )
    message.since.FromDatetime(datetime.fromtimestamp(component.since, UTC))
    if (seconds := component.progress_age_seconds) is not None:
        message.progress_age.CopyFrom(duration(seconds))
    return message


def _counters_message(component: Component) -> pb.ComponentCounters:
    return pb.ComponentCounters(
        event_count=component.event_count,
        batch_count=component.batch_count,
        body_bytes=component.byte_count,
        failure_count=component.failure_count,
        filtered_count=component.fates[EventOutcome.FILTERED],
        unrouted_count=component.fates[EventOutcome.UNROUTED],
        dead_lettered_count=component.fates[EventOutcome.DEAD_LETTERED],
        dropped_count=component.fates[EventOutcome.DROPPED],
        missed_count=component.fates[EventOutcome.MISSED],
    )
