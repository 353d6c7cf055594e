"""The table of gRPC methods: their paths, requests and responds."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from millrace.v1 import admin_service_pb2 as admin_pb
from millrace.v1 import channel_service_pb2 as pb

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


@dataclass(frozen=True, slots=True, eq=False)
class Method(Generic[RequestT, ResponseT]):
    """One method."""

    service: str
    name: str
    request: type[RequestT]
    response: type[ResponseT]

    @property
    def path(self) -> str:
        return f"/{self.service}/{self.name}"

    def serialize(self, request: RequestT | bytes) -> bytes:
        """Returns the encoded request; an encoded request is returned unchanged."""
        return request if isinstance(request, bytes) else request.SerializeToString()

    def parse(self, encoded: bytes) -> ResponseT:
        return self.response.FromString(encoded)

    @property
    def is_repeatable(self) -> bool:
        """Whether gRPC may repeat it: not if the client or the server sends a stream."""
        method = _DESCRIPTORS[self.name]
        return not (method.client_streaming or method.server_streaming)


_DESCRIPTORS: dict[str, MethodDescriptor] = {
    method.name: method
    for file in (pb, admin_pb)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def _method(request: type[RequestT], response: type[ResponseT]) -> Method[RequestT, ResponseT]:
    # Messages are named after their method.
    name = request.DESCRIPTOR.name.removesuffix("Request")
    return Method(_DESCRIPTORS[name].containing_service.full_name, name, request, response)


BEGIN_TXN = _method(pb.BeginTxnRequest, pb.BeginTxnResponse)
PUT = _method(pb.PutRequest, pb.PutResponse)
TAKE = _method(pb.TakeRequest, pb.TakeResponse)
COMMIT = _method(pb.CommitRequest, pb.CommitResponse)
ROLLBACK = _method(pb.RollbackRequest, pb.RollbackResponse)
RENEW_TXN = _method(pb.RenewTxnRequest, pb.RenewTxnResponse)
APPEND = _method(pb.AppendRequest, pb.AppendResponse)
APPEND_STREAM = _method(pb.AppendStreamRequest, pb.AppendStreamResponse)
CONSUME = _method(pb.ConsumeRequest, pb.ConsumeResponse)
CLAIM = _method(pb.ClaimRequest, pb.ClaimResponse)
READ = _method(pb.ReadRequest, pb.ReadResponse)
ACKNOWLEDGE = _method(pb.AcknowledgeRequest, pb.AcknowledgeResponse)
RELEASE = _method(pb.ReleaseRequest, pb.ReleaseResponse)
FIND_SEQUENCE = _method(pb.FindSequenceRequest, pb.FindSequenceResponse)

CREATE_CHANNEL = _method(admin_pb.CreateChannelRequest, admin_pb.CreateChannelResponse)
UPDATE_CHANNEL = _method(admin_pb.UpdateChannelRequest, admin_pb.UpdateChannelResponse)
DELETE_CHANNEL = _method(admin_pb.DeleteChannelRequest, admin_pb.DeleteChannelResponse)
LIST_CHANNELS = _method(admin_pb.ListChannelsRequest, admin_pb.ListChannelsResponse)
GET_CHANNEL = _method(admin_pb.GetChannelRequest, admin_pb.GetChannelResponse)
WATCH_CHANNELS = _method(admin_pb.WatchChannelsRequest, admin_pb.WatchChannelsResponse)
PEEK_EVENTS = _method(admin_pb.PeekEventsRequest, admin_pb.PeekEventsResponse)
PURGE_CHANNEL = _method(admin_pb.PurgeChannelRequest, admin_pb.PurgeChannelResponse)
LIST_COMPONENTS = _method(admin_pb.ListComponentsRequest, admin_pb.ListComponentsResponse)
WATCH_COMPONENTS = _method(admin_pb.WatchComponentsRequest, admin_pb.WatchComponentsResponse)
RETRY_COMPONENT = _method(admin_pb.RetryComponentRequest, admin_pb.RetryComponentResponse)
LIST_TRANSACTIONS = _method(admin_pb.ListTransactionsRequest, admin_pb.ListTransactionsResponse)
END_TRANSACTION = _method(admin_pb.EndTransactionRequest, admin_pb.EndTransactionResponse)
RELEASE_CLAIM = _method(admin_pb.ReleaseClaimRequest, admin_pb.ReleaseClaimResponse)
LIST_PRODUCERS = _method(admin_pb.ListProducersRequest, admin_pb.ListProducersResponse)
FORGET_PRODUCER = _method(admin_pb.ForgetProducerRequest, admin_pb.ForgetProducerResponse)
LIST_CONSUMERS = _method(admin_pb.ListConsumersRequest, admin_pb.ListConsumersResponse)
MOVE_CHANNEL = _method(admin_pb.MoveChannelRequest, admin_pb.MoveChannelResponse)

OF_ONE_SERVER = frozenset({CREATE_CHANNEL})
"""Methods that name a channel but concern the server that is called, not the channel's owner."""

METHODS: tuple[Method[Any, Any], ...] = tuple(value for value in list(globals().values()) if isinstance(value, Method))
"""All methods."""
