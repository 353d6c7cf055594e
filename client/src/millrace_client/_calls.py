"""The calls of the client: their requests, how long a response may take, and how responses are decoded.

Nothing here does I/O; both APIs execute the same calls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from operator import attrgetter
from typing import Any, Generic, ParamSpec, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from millrace.v1 import admin_service_pb2 as admin_pb
from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from millrace.wire_format import field_head
from millrace_client import _decoding, _methods
from millrace_client._decoding import ClaimGrant, Taken
from millrace_client._methods import Method
from millrace_client.activity_info import ConsumerInfo, OpenTransaction, ProducerInfo
from millrace_client.channel_info import ChannelConfig, ChannelInfo, ChannelType, ChannelUpdate, ClaimStatus
from millrace_client.component_info import ComponentInfo, ComponentKind
from millrace_client.errors import BadArgumentError, NotOwnerError
from millrace_client.events import Batch, FoundSequence, Receipt, Stamp

KEEP_ALIVE_SECONDS = 60.0
"""How long the server may wait if the channel decides: the longest keep-alive that needs no longer timeout."""
SERVER_WAIT_SECONDS_MAX = 3_600.0
"""The longest wait at the server."""

_UINT32_MAX = (1 << 32) - 1
_UINT64_MAX = (1 << 64) - 1

_WORDS: Mapping[str, Mapping[Any, str]] = {
    "type": _decoding.CHANNEL_TYPES,
    "fsync": _decoding.FSYNC_POLICIES,
    "compression": _decoding.COMPRESSIONS,
}
"""The words of ChannelConfig by their numbers on the wire, by field."""

T = TypeVar("T")
_MessageT = TypeVar("_MessageT", bound=Message)
_Fields = ParamSpec("_Fields")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One call with one request."""

    method: Method[Any, Any]
    request: Any
    decode: Callable[[Any], T]
    """Returns the result for a response."""
    wait_seconds: float | None = 0.0
    """How long the server may wait before it responds, beyond the client's timeout; on a stream before each response.
    None: without a limit."""
    channel: str = ""
    txn_id: str = ""

    @property
    def owned_channel(self) -> str:
        """The channel whose owner responds; empty if that is the server that the client was given."""
        return "" if self.method in _methods.OF_ONE_SERVER else self.channel


def begin_txn(channel: str, txn_id: str, lease_seconds: float | None) -> Call[float]:
    """Begins a transaction; the result is its lease."""
    request = _message(
        pb.BeginTxnRequest, channel=channel, txn_id=txn_id, lease=_duration("lease_seconds", lease_seconds)
    )
    return Call(_methods.BEGIN_TXN, request, _lease_seconds, channel=channel, txn_id=txn_id)


def put(channel: str, txn_id: str, columns: bytes, put_offset: int) -> Call[int]:
    """Puts encoded columns; the result is the number of events put so far."""
    head = _message(pb.PutRequest, txn_id=txn_id, put_offset=put_offset, channel=channel)
    request = _with_columns(head, pb.PutRequest.COLUMNS_FIELD_NUMBER, columns)
    return Call(_methods.PUT, request, attrgetter("put_count"), channel=channel, txn_id=txn_id)


@dataclass(frozen=True, slots=True)
class TakeLimits:
    """The limits of a take; see `Transaction.take`."""

    max_events: int = 0
    max_bytes: int = 0
    wait_seconds: float | None = None


def take(channel: str, txn_id: str, limits: TakeLimits, take_offset: int) -> Call[Taken]:
    request = _message(
        pb.TakeRequest,
        txn_id=txn_id,
        max_events=_within("max_events", limits.max_events, _UINT32_MAX),
        max_bytes=_within("max_bytes", limits.max_bytes, _UINT64_MAX),
        wait=_duration("wait_seconds", _capped(limits.wait_seconds)),
        take_offset=take_offset,
        columns=True,
        channel=channel,
    )
    wait_seconds = KEEP_ALIVE_SECONDS if limits.wait_seconds is None else max(_capped(limits.wait_seconds) or 0.0, 0.0)
    return Call(_methods.TAKE, request, _decoding.taken, wait_seconds, channel, txn_id)


def commit(channel: str, txn_ids: Sequence[str], stamp: Stamp | None) -> Call[Receipt]:
    """Commits transactions, all or none."""
    request = _message(pb.CommitRequest, txn_ids=txn_ids, stamp=_stamp(stamp), channel=channel)
    # For several transactions, the server's error names the one that it concerns.
    txn_id = txn_ids[0] if len(txn_ids) == 1 else ""
    return Call(_methods.COMMIT, request, _decoding.receipt, KEEP_ALIVE_SECONDS, channel, txn_id)


def rollback(channel: str, txn_id: str) -> Call[None]:
    request = _message(pb.RollbackRequest, txn_id=txn_id, channel=channel)
    return Call(_methods.ROLLBACK, request, _decoding.nothing, channel=channel, txn_id=txn_id)


def renew_txn(channel: str, txn_id: str) -> Call[float]:
    request = _message(pb.RenewTxnRequest, txn_id=txn_id, channel=channel)
    return Call(_methods.RENEW_TXN, request, _lease_seconds, channel=channel, txn_id=txn_id)


def append(channel: str, columns: bytes, stamp: Stamp) -> Call[Receipt]:
    head = _message(pb.AppendRequest, channel=channel, stamp=_stamp(stamp))
    request = _with_columns(head, pb.AppendRequest.COLUMNS_FIELD_NUMBER, columns)
    return Call(_methods.APPEND, request, _decoding.receipt, KEEP_ALIVE_SECONDS, channel)


@dataclass(frozen=True, slots=True)
class ConsumeLimits:
    """The limits of deliveries; see `Channel.consume`."""

    max_events: int = 0
    max_bytes: int = 0
    prefetch: int = 0
    idle_seconds: float | None = None


def consume_start(channel: str, limits: ConsumeLimits) -> pb.ConsumeRequest:
    """The first message of a Consume stream."""
    start = _message(
        pb.ConsumeRequest.Start,
        channel=channel,
        max_events=_within("max_events", limits.max_events, _UINT32_MAX),
        max_bytes=_within("max_bytes", limits.max_bytes, _UINT64_MAX),
        prefetch=_within("prefetch", limits.prefetch, _UINT32_MAX),
        columns=True,
    )
    return pb.ConsumeRequest(start=start)


def claim(channel: str, reader_id: str, lease_seconds: float | None, *, takeover: bool) -> Call[ClaimGrant]:
    """Claims a channel, or renews the claim."""
    request = _message(
        pb.ClaimRequest,
        channel=channel,
        reader_id=reader_id,
        lease=_duration("lease_seconds", lease_seconds),
        takeover=takeover,
    )
    return Call(_methods.CLAIM, request, _decoding.claim_grant, channel=channel)


def renew_claim(
    channel: str, grant: ClaimGrant, reader_id: str, lease_seconds: float | None, wait_seconds: float
) -> Call[ClaimGrant]:
    """Renews an active claim, and waits for events after those of its grant."""
    request = _message(
        pb.ClaimRequest,
        channel=channel,
        reader_id=reader_id,
        lease=_duration("lease_seconds", lease_seconds),
        epoch=grant.epoch,
        wait=_duration("wait_seconds", _capped(wait_seconds)),
        after_sequence=grant.next_sequence - 1,
    )
    return Call(_methods.CLAIM, request, _decoding.claim_grant, max(_capped(wait_seconds) or 0.0, 0.0), channel)


def read(channel: str, reader_id: str, from_sequence: int, to_sequence: int, epoch: int | None) -> Call[Batch]:
    """Reads a range; each response is a batch."""
    request = _message(
        pb.ReadRequest,
        channel=channel,
        reader_id=reader_id,
        from_sequence=_within("from_sequence", from_sequence, _UINT64_MAX),
        to_sequence=_within("to_sequence", to_sequence, _UINT64_MAX),
        epoch=_epoch(epoch),
        columns=True,
    )
    return Call(_methods.READ, request, _decoding.read_batch, channel=channel)


def acknowledge(channel: str, reader_id: str, through_sequence: int, epoch: int | None) -> Call[int]:
    """Removes events; the result is the oldest sequence that is left."""
    request = _message(
        pb.AcknowledgeRequest,
        channel=channel,
        reader_id=reader_id,
        through_sequence=_within("through_sequence", through_sequence, _UINT64_MAX),
        epoch=_epoch(epoch),
    )
    return Call(_methods.ACKNOWLEDGE, request, attrgetter("first_sequence"), channel=channel)


def release(channel: str, reader_id: str, epoch: int | None) -> Call[None]:
    request = _message(pb.ReleaseRequest, channel=channel, reader_id=reader_id, epoch=_epoch(epoch))
    return Call(_methods.RELEASE, request, _decoding.nothing, channel=channel)


def find_sequence(channel: str, time: datetime) -> Call[FoundSequence]:
    """Finds the first event since a time."""
    request = _message(pb.FindSequenceRequest, channel=channel, time=_timestamp("time", time))
    return Call(_methods.FIND_SEQUENCE, request, _decoding.found_sequence, channel=channel)


def create_channel(name: str, config: ChannelConfig) -> Call[ChannelInfo]:
    request = _message(admin_pb.CreateChannelRequest, name=name, config=_config(config, ChannelType.MEMORY))
    return Call(_methods.CREATE_CHANNEL, request, _channel, channel=name)


def update_channel(name: str, config: ChannelConfig) -> Call[ChannelUpdate]:
    request = _message(admin_pb.UpdateChannelRequest, name=name, config=_config(config))
    return Call(_methods.UPDATE_CHANNEL, request, _decoding.channel_update, KEEP_ALIVE_SECONDS, name)


def delete_channel(name: str, *, force: bool) -> Call[None]:
    request = _message(admin_pb.DeleteChannelRequest, name=name, force=force)
    return Call(_methods.DELETE_CHANNEL, request, _decoding.nothing, channel=name)


def list_channels() -> Call[list[ChannelInfo]]:
    return Call(_methods.LIST_CHANNELS, admin_pb.ListChannelsRequest(), _decoding.channel_infos)


def get_channel(name: str) -> Call[ChannelInfo]:
    """Gets one channel as its owner sees it."""
    return Call(_methods.GET_CHANNEL, _message(admin_pb.GetChannelRequest, name=name), _found_channel, channel=name)


def watch_channels(names: Sequence[str], interval_seconds: float) -> Call[list[ChannelInfo]]:
    """Watches channels; each response has the states of all of them."""
    request = _message(
        admin_pb.WatchChannelsRequest, names=names, interval=_duration("interval_seconds", interval_seconds)
    )
    return Call(_methods.WATCH_CHANNELS, request, _decoding.channel_infos, interval_seconds)


def peek(
    channel: str, from_sequence: int, max_events: int, *, follow: bool, since: datetime | None = None
) -> Call[Batch]:
    """Peeks at events; each response is a batch. With `follow` responds may take long."""
    request = _message(
        admin_pb.PeekEventsRequest,
        channel=channel,
        from_sequence=_within("from_sequence", from_sequence, _UINT64_MAX),
        max_events=_within("max_events", max_events, _UINT64_MAX),
        from_time=None if since is None else _timestamp("since", since),
        follow=follow,
        columns=True,
    )
    return Call(_methods.PEEK_EVENTS, request, _decoding.peeked_batch, None if follow else 0.0, channel)


def purge_channel(name: str) -> Call[int]:
    """Empties a channel; the result is the number of removed events."""
    return Call(
        _methods.PURGE_CHANNEL,
        _message(admin_pb.PurgeChannelRequest, name=name),
        attrgetter("purged_count"),
        channel=name,
    )


def list_components() -> Call[list[ComponentInfo]]:
    return Call(_methods.LIST_COMPONENTS, admin_pb.ListComponentsRequest(), _decoding.component_infos)


def watch_components(interval_seconds: float) -> Call[list[ComponentInfo]]:
    """Watches components; each response has the states of all of them."""
    request = _message(admin_pb.WatchComponentsRequest, interval=_duration("interval_seconds", interval_seconds))
    return Call(_methods.WATCH_COMPONENTS, request, _decoding.component_infos, interval_seconds)


def retry_component(name: str, kind: ComponentKind | None) -> Call[ComponentInfo]:
    """Makes a component try again at once; the result is its state before the retry."""
    number = _number_of("kind", kind, _decoding.COMPONENT_KINDS)
    request = _message(admin_pb.RetryComponentRequest, name=name, kind=number)
    return Call(_methods.RETRY_COMPONENT, request, _decoding.retried_component)


def list_transactions(channel: str) -> Call[list[OpenTransaction]]:
    """Lists the open transactions of a channel, or of all without a name."""
    request = _message(admin_pb.ListTransactionsRequest, channel=channel)
    return Call(_methods.LIST_TRANSACTIONS, request, _decoding.open_transactions, channel=channel)


def end_transaction(txn_id: str) -> Call[None]:
    """Rolls back anybody's transaction or delivery."""
    request = _message(admin_pb.EndTransactionRequest, txn_id=txn_id)
    return Call(_methods.END_TRANSACTION, request, _decoding.nothing, txn_id=txn_id)


def release_claim(channel: str, epoch: int | None) -> Call[ClaimStatus]:
    """Ends anybody's claim; the result is the claim as it was."""
    request = _message(admin_pb.ReleaseClaimRequest, channel=channel, epoch=_epoch(epoch))
    return Call(_methods.RELEASE_CLAIM, request, _decoding.released_claim, channel=channel)


def list_producers(channel: str) -> Call[list[ProducerInfo]]:
    request = _message(admin_pb.ListProducersRequest, channel=channel)
    return Call(_methods.LIST_PRODUCERS, request, _decoding.producer_infos, channel=channel)


def forget_producer(channel: str, producer_id: str) -> Call[None]:
    request = _message(admin_pb.ForgetProducerRequest, channel=channel, producer_id=producer_id)
    return Call(_methods.FORGET_PRODUCER, request, _decoding.nothing, channel=channel)


def list_consumers(channel: str) -> Call[list[ConsumerInfo]]:
    """Lists the consumers of a channel, or of all without a name."""
    request = _message(admin_pb.ListConsumersRequest, channel=channel)
    return Call(_methods.LIST_CONSUMERS, request, _decoding.consumer_infos, channel=channel)


def move_channel(name: str, server: str) -> Call[None]:
    """Hands a replicated channel over to another server."""
    request = _message(admin_pb.MoveChannelRequest, name=name, server=server)
    return Call(_methods.MOVE_CHANNEL, request, _decoding.nothing, channel=name)


def _lease_seconds(response: pb.BeginTxnResponse | pb.RenewTxnResponse) -> float:
    return _decoding.seconds_of(response.lease)


def _channel(response: admin_pb.CreateChannelResponse | admin_pb.GetChannelResponse) -> ChannelInfo:
    return _decoding.channel_info(response.channel)


def _found_channel(response: admin_pb.GetChannelResponse) -> ChannelInfo:
    if response.channel.owner:
        error = NotOwnerError(f"channel {response.channel.name} is owned by {response.channel.owner}")
        error.address = response.channel.owner
        raise error
    return _channel(response)


def _with_columns(head: pb.PutRequest | pb.AppendRequest, field_number: int, columns: bytes) -> bytes:
    """Returns the encoded request: its other fields, then the columns."""
    return b"".join((head.SerializeToString(), field_head(field_number, len(columns)), columns))


def _stamp(stamp: Stamp | None) -> event_pb2.ProducerStamp | None:
    if stamp is None:
        return None
    return _message(
        event_pb2.ProducerStamp,
        producer_id=stamp.producer_id,
        first_sequence=_within("stamp.first_sequence", stamp.first_sequence, _UINT64_MAX),
        last_sequence=_within("stamp.last_sequence", stamp.last_sequence, _UINT64_MAX),
        oldest_open_sequence=_within_or_none("stamp.oldest_open_sequence", stamp.oldest_open_sequence, _UINT64_MAX),
    )


def _config(config: ChannelConfig, default_type: ChannelType | None = None) -> admin_pb.ChannelConfig:
    if not isinstance(config, ChannelConfig):
        raise TypeError(
            f"config: is a {type(config).__name__}; give a ChannelConfig, such as ChannelConfig(type=ChannelType.FILE)"
        )
    given = {field.name: getattr(config, field.name) for field in fields(ChannelConfig)}
    given["type"] = config.type or default_type
    return admin_pb.ChannelConfig(**{name.removesuffix("_seconds"): _limit(name, given[name]) for name in given})


def _limit(name: str, value: Any) -> Any:
    if name.endswith("_seconds"):
        return _duration(name, value)
    if name in _WORDS:
        return _number_of(name, value, _WORDS[name])
    if name == "backup_checkpoint":
        return value
    return _within_or_none(name, value, _UINT32_MAX if name == "byte_capacity_buffer_percentage" else _UINT64_MAX)


def _number_of(field: str, word: str | None, words: Mapping[Any, str]) -> Any:
    """Returns the wire's number for a word; None for None."""
    if word is None:
        return None
    numbers = {other: number for number, other in words.items()}
    if word not in numbers:
        raise BadArgumentError(f"{field}: is {word!r}; it must be {' or '.join(numbers)}")
    return numbers[word]


def _message(create: Callable[_Fields, _MessageT], /, *args: _Fields.args, **fields: _Fields.kwargs) -> _MessageT:
    """Creates a message; raises BadArgumentError if a string is not UTF-8."""
    try:
        return create(*args, **fields)
    except UnicodeEncodeError as error:
        field = next((name for name, value in fields.items() if value is error.object), "argument")
        raise BadArgumentError(f"{field}: is {error.object!r}; it must be UTF-8") from None


def _epoch(epoch: int | None) -> int | None:
    return _within_or_none("epoch", epoch, _UINT64_MAX)


def _within_or_none(field: str, value: int | None, maximum: int) -> int | None:
    return None if value is None else _within(field, value, maximum)


def _within(field: str, value: int, maximum: int) -> int:
    """Returns a value that fits into the wire's type; the server checks all other limits."""
    if not 0 <= value <= maximum:
        raise BadArgumentError(f"{field}: is {value}; 0 to {maximum} are allowed")
    return value


def _capped(seconds: float | None) -> float | None:
    return None if seconds is None else min(seconds, SERVER_WAIT_SECONDS_MAX)


def _duration(field: str, seconds: float | None) -> Duration | None:
    if seconds is None:
        return None
    duration = Duration()
    try:
        duration.FromNanoseconds(round(seconds * 1e9))
    except (ValueError, OverflowError):
        raise BadArgumentError(f"{field}: is {seconds}; it must be a finite number of seconds") from None
    return duration


def _timestamp(field: str, time: datetime) -> Timestamp:
    if time.utcoffset() is None:
        raise BadArgumentError(f"{field}: is {time}, without a time zone; give one with it, such as datetime.now(UTC)")
    timestamp = Timestamp()
    try:
        timestamp.FromDatetime(time)
    except OverflowError:
        raise BadArgumentError(f"{field}: is {time}; it must be within the years 1 to 9999 in UTC") from None
    return timestamp
