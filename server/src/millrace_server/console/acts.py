"""The acts of operators in the console: RPCs that they confirm by typing the name of what they change."""

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from google.protobuf.message import Message
from pydantic import BaseModel, Field
from starlette.requests import Request

from millrace.units import counted
from millrace.v1 import admin_service_pb2 as pb
from millrace_server.access.permissions import Permission
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.console.calls import Calls, RefusedError
from millrace_server.grpc_services.admin_messages import config_of
from millrace_server.grpc_services.guard import Rule

Name = Annotated[str, Field(min_length=1, max_length=128)]


class Operator(NamedTuple):
    """The request of an operator, and the parts of the server that acts need."""

    request: Request
    calls: Calls
    registry: ChannelRegistry

    async def call(self, message: Message) -> Any:
        """Returns the response to a request of AdminService; raises RefusedError."""
        return await self.calls.call(self.request, message)


class Act(ABC, BaseModel, frozen=True, extra="forbid"):
    """A request to change something."""

    NAMED: ClassVar[str] = "channel"
    """The field with the name that must be typed."""

    confirm: str
    """The typed name."""

    def check_confirmed(self) -> None:
        """Raises RefusedError unless the typed name matches."""
        name = getattr(self, self.NAMED)
        if self.confirm != name:
            raise RefusedError(409, "CONFIRM_MISMATCH", f"confirm: is {self.confirm[:128]!a}; it must be {name!a}")

    @abstractmethod
    async def carry_out(self, operator: Operator) -> dict[str, Any]:
        """Carries out the act and returns the result: a `message` for people, and values for programs.

        Raises:
            RefusedError, MillraceError: It was not done.
        """


class CreateChannel(Act):
    """Creates a channel."""

    channel: Name
    settings: dict[str, Any]

    async def carry_out(self, operator: Operator) -> dict[str, Any]:
        await operator.call(pb.CreateChannelRequest(name=self.channel, config=config_of(self.settings)))
        return {"message": f"{self.channel}: created"}


class UpdateChannel(Act):
    """Changes settings of a channel."""

    channel: Name
    settings: dict[str, Any]

    async def carry_out(self, operator: Operator) -> dict[str, Any]:
        done = await operator.call(pb.UpdateChannelRequest(name=self.channel, config=config_of(self.settings)))
        outcome = "changed" if done.applied else f"nothing was changed: {done.message}"
        return {"message": f"{self.channel}: {outcome}", "is_applied": done.applied}


class PurgeChannel(Act):
    """Removes all queued events of a channel."""

    channel: Name

    async def carry_out(self, operator: Operator) -> dict[str, Any]:
        count = (await operator.call(pb.PurgeChannelRequest(name=self.channel))).purged_count
        return {"message": f"{self.channel}: {counted(count, 'event')} removed", "purged_count": count}


class DeleteChannel(Act):
    """Deletes a channel."""

    channel: Name
    is_forced: bool = False

    async def carry_out(self, operator: Operator) -> dict[str, Any]:
        await operator.call(pb.DeleteChannelRequest(name=self.channel, force=self.is_forced))
        return {"message": f"{self.channel}: deleted"}


class EndTransaction(Act):
    """Rolls back a transaction or a delivery."""

    NAMED: ClassVar[str] = "txn_id"

    channel: Name
    txn_id: Name

    async def carry_out(self, operator: Operator) -> dict[str, Any]:
        await operator.call(pb.EndTransactionRequest(txn_id=self.txn_id))
        return {"message": f"{self.channel}: transaction {self.txn_id} rolled back"}


class ReleaseClaim(Act):
    """Ends a reader's claim."""

    channel: Name
    epoch: Annotated[int, Field(ge=0, lt=1 << 64)] | None = None

    async def carry_out(self, operator: Operator) -> dict[str, Any]:
        await operator.call(pb.ReleaseClaimRequest(channel=self.channel, epoch=self.epoch))
        return {"message": f"{self.channel}: claim released"}


class ForgetProducer(Act):
    """Forgets the stamps of a producer."""

    NAMED: ClassVar[str] = "producer_id"

    channel: Name
    producer_id: Name

    async def carry_out(self, operator: Operator) -> dict[str, Any]:
        await operator.call(pb.ForgetProducerRequest(channel=self.channel, producer_id=self.producer_id))
        return {"message": f"{self.channel}: producer {self.producer_id} forgotten"}


class RetryComponent(Act):
    """Makes a component try again at once."""

    NAMED: ClassVar[str] = "name"

    kind: Literal["source", "sink", "sink_group"]
    name: Name

    async def carry_out(self, operator: Operator) -> dict[str, Any]:
        await operator.call(pb.RetryComponentRequest(kind=f"COMPONENT_KIND_{self.kind.upper()}", name=self.name))
        return {"message": f"{self.name}: tries again"}


class ReplayDeadLetters(Act):
    """Returns selected dead letters to the channels that they came from, or to another one."""

    channel: Name
    sequences: Annotated[list[Annotated[int, Field(ge=1, lt=1 << 63)]], Field(min_length=1, max_length=1_000)]
    target: Name | None = None

    async def carry_out(self, operator: Operator) -> dict[str, Any]:
        # It imports the client, which a server without dead letters does not need.
        from millrace_server.console.replay import Replay

        with operator.calls.admitted(operator.request, _REPLAY, self) as call:
            channel = operator.registry.get(self.channel)
            done = await Replay(operator.registry, channel, self.target, call).run(self.sequences)
        where = ", ".join(f"{count:,} to {target}" for target, count in sorted(done["replayed"].items()))
        stays = f"; {len(done['left']):,} stay" if done["left"] else ""
        return {"message": f"{self.channel}: replayed {where or 'nothing'}{stays}"} | done


_REPLAY = Rule(lambda call, act: call.require((Permission.TAKE,), act.channel), administers=True)

ACTS: dict[str, type[Act]] = {
    "create_channel": CreateChannel,
    "update_channel": UpdateChannel,
    "purge_channel": PurgeChannel,
    "delete_channel": DeleteChannel,
    "end_transaction": EndTransaction,
    "release_claim": ReleaseClaim,
    "forget_producer": ForgetProducer,
    "retry_component": RetryComponent,
    "replay_dead_letters": ReplayDeadLetters,
}
"""The acts, by the last part of their paths."""
