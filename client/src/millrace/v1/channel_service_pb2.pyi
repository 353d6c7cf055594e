import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from millrace.googleapis import status_pb2 as _status_pb2
from millrace.v1 import event_pb2 as _event_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BeginTxnRequest(_message.Message):
    __slots__ = ("channel", "txn_id", "lease")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    TXN_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    channel: str
    txn_id: str
    lease: _duration_pb2.Duration
    def __init__(self, channel: _Optional[str] = ..., txn_id: _Optional[str] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class BeginTxnResponse(_message.Message):
    __slots__ = ("txn_id", "lease")
    TXN_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    txn_id: str
    lease: _duration_pb2.Duration
    def __init__(self, txn_id: _Optional[str] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("txn_id", "events", "put_offset", "columns", "channel")
    TXN_ID_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    PUT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    txn_id: str
    events: _containers.RepeatedCompositeFieldContainer[_event_pb2.Event]
    put_offset: int
    columns: _event_pb2.EventColumns
    channel: str
    def __init__(self, txn_id: _Optional[str] = ..., events: _Optional[_Iterable[_Union[_event_pb2.Event, _Mapping]]] = ..., put_offset: _Optional[int] = ..., columns: _Optional[_Union[_event_pb2.EventColumns, _Mapping]] = ..., channel: _Optional[str] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("put_count",)
    PUT_COUNT_FIELD_NUMBER: _ClassVar[int]
    put_count: int
    def __init__(self, put_count: _Optional[int] = ...) -> None: ...

class TakeRequest(_message.Message):
    __slots__ = ("txn_id", "max_events", "max_bytes", "wait", "take_offset", "columns", "channel")
    TXN_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_EVENTS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    TAKE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    txn_id: str
    max_events: int
    max_bytes: int
    wait: _duration_pb2.Duration
    take_offset: int
    columns: bool
    channel: str
    def __init__(self, txn_id: _Optional[str] = ..., max_events: _Optional[int] = ..., max_bytes: _Optional[int] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., take_offset: _Optional[int] = ..., columns: bool = ..., channel: _Optional[str] = ...) -> None: ...

class TakeResponse(_message.Message):
    __slots__ = ("batches", "take_count")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    TAKE_COUNT_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[_event_pb2.EventBatch]
    take_count: int
    def __init__(self, batches: _Optional[_Iterable[_Union[_event_pb2.EventBatch, _Mapping]]] = ..., take_count: _Optional[int] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("txn_ids", "stamp", "channel")
    TXN_IDS_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    txn_ids: _containers.RepeatedScalarFieldContainer[str]
    stamp: _event_pb2.ProducerStamp
    channel: str
    def __init__(self, txn_ids: _Optional[_Iterable[str]] = ..., stamp: _Optional[_Union[_event_pb2.ProducerStamp, _Mapping]] = ..., channel: _Optional[str] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("first_sequence", "last_sequence", "deduplicated", "commit_time")
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DEDUPLICATED_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIME_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    last_sequence: int
    deduplicated: bool
    commit_time: _timestamp_pb2.Timestamp
    def __init__(self, first_sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ..., deduplicated: bool = ..., commit_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("txn_id", "channel")
    TXN_ID_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    txn_id: str
    channel: str
    def __init__(self, txn_id: _Optional[str] = ..., channel: _Optional[str] = ...) -> None: ...

class RollbackResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RenewTxnRequest(_message.Message):
    __slots__ = ("txn_id", "channel")
    TXN_ID_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    txn_id: str
    channel: str
    def __init__(self, txn_id: _Optional[str] = ..., channel: _Optional[str] = ...) -> None: ...

class RenewTxnResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: _duration_pb2.Duration
    def __init__(self, lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("channel", "events", "stamp", "columns")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    channel: str
    events: _containers.RepeatedCompositeFieldContainer[_event_pb2.Event]
    stamp: _event_pb2.ProducerStamp
    columns: _event_pb2.EventColumns
    def __init__(self, channel: _Optional[str] = ..., events: _Optional[_Iterable[_Union[_event_pb2.Event, _Mapping]]] = ..., stamp: _Optional[_Union[_event_pb2.ProducerStamp, _Mapping]] = ..., columns: _Optional[_Union[_event_pb2.EventColumns, _Mapping]] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("first_sequence", "last_sequence", "deduplicated", "commit_time")
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DEDUPLICATED_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIME_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    last_sequence: int
    deduplicated: bool
    commit_time: _timestamp_pb2.Timestamp
    def __init__(self, first_sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ..., deduplicated: bool = ..., commit_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class AppendStreamRequest(_message.Message):
    __slots__ = ("channel", "events", "stamp", "columns")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    channel: str
    events: _containers.RepeatedCompositeFieldContainer[_event_pb2.Event]
    stamp: _event_pb2.ProducerStamp
    columns: _event_pb2.EventColumns
    def __init__(self, channel: _Optional[str] = ..., events: _Optional[_Iterable[_Union[_event_pb2.Event, _Mapping]]] = ..., stamp: _Optional[_Union[_event_pb2.ProducerStamp, _Mapping]] = ..., columns: _Optional[_Union[_event_pb2.EventColumns, _Mapping]] = ...) -> None: ...

class AppendStreamResponse(_message.Message):
    __slots__ = ("first_sequence", "last_sequence", "deduplicated", "error", "commit_time")
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DEDUPLICATED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIME_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    last_sequence: int
    deduplicated: bool
    error: _status_pb2.Status
    commit_time: _timestamp_pb2.Timestamp
    def __init__(self, first_sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ..., deduplicated: bool = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., commit_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ConsumeRequest(_message.Message):
    __slots__ = ("start", "ack", "nack")
    class Start(_message.Message):
        __slots__ = ("channel", "max_events", "max_bytes", "prefetch", "columns")
        CHANNEL_FIELD_NUMBER: _ClassVar[int]
        MAX_EVENTS_FIELD_NUMBER: _ClassVar[int]
        MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
        PREFETCH_FIELD_NUMBER: _ClassVar[int]
        COLUMNS_FIELD_NUMBER: _ClassVar[int]
        channel: str
        max_events: int
        max_bytes: int
        prefetch: int
        columns: bool
        def __init__(self, channel: _Optional[str] = ..., max_events: _Optional[int] = ..., max_bytes: _Optional[int] = ..., prefetch: _Optional[int] = ..., columns: bool = ...) -> None: ...
    class Ack(_message.Message):
        __slots__ = ("delivery_ids",)
        DELIVERY_IDS_FIELD_NUMBER: _ClassVar[int]
        delivery_ids: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, delivery_ids: _Optional[_Iterable[int]] = ...) -> None: ...
    class Nack(_message.Message):
        __slots__ = ("delivery_ids",)
        DELIVERY_IDS_FIELD_NUMBER: _ClassVar[int]
        delivery_ids: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, delivery_ids: _Optional[_Iterable[int]] = ...) -> None: ...
    START_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    start: ConsumeRequest.Start
    ack: ConsumeRequest.Ack
    nack: ConsumeRequest.Nack
    def __init__(self, start: _Optional[_Union[ConsumeRequest.Start, _Mapping]] = ..., ack: _Optional[_Union[ConsumeRequest.Ack, _Mapping]] = ..., nack: _Optional[_Union[ConsumeRequest.Nack, _Mapping]] = ...) -> None: ...

class ConsumeResponse(_message.Message):
    __slots__ = ("delivery_id", "batches")
    DELIVERY_ID_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    delivery_id: int
    batches: _containers.RepeatedCompositeFieldContainer[_event_pb2.EventBatch]
    def __init__(self, delivery_id: _Optional[int] = ..., batches: _Optional[_Iterable[_Union[_event_pb2.EventBatch, _Mapping]]] = ...) -> None: ...

class ClaimRequest(_message.Message):
    __slots__ = ("channel", "reader_id", "lease", "takeover", "epoch", "wait", "after_sequence")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    READER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    TAKEOVER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    channel: str
    reader_id: str
    lease: _duration_pb2.Duration
    takeover: bool
    epoch: int
    wait: _duration_pb2.Duration
    after_sequence: int
    def __init__(self, channel: _Optional[str] = ..., reader_id: _Optional[str] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., takeover: bool = ..., epoch: _Optional[int] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., after_sequence: _Optional[int] = ...) -> None: ...

class ClaimResponse(_message.Message):
    __slots__ = ("lease", "first_sequence", "next_sequence", "epoch", "channel_id")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    lease: _duration_pb2.Duration
    first_sequence: int
    next_sequence: int
    epoch: int
    channel_id: str
    def __init__(self, lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., first_sequence: _Optional[int] = ..., next_sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., channel_id: _Optional[str] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("channel", "reader_id", "from_sequence", "to_sequence", "epoch", "columns")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    READER_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TO_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    channel: str
    reader_id: str
    from_sequence: int
    to_sequence: int
    epoch: int
    columns: bool
    def __init__(self, channel: _Optional[str] = ..., reader_id: _Optional[str] = ..., from_sequence: _Optional[int] = ..., to_sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., columns: bool = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: _event_pb2.EventBatch
    def __init__(self, batch: _Optional[_Union[_event_pb2.EventBatch, _Mapping]] = ...) -> None: ...

class AcknowledgeRequest(_message.Message):
    __slots__ = ("channel", "reader_id", "through_sequence", "epoch")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    READER_ID_FIELD_NUMBER: _ClassVar[int]
    THROUGH_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    channel: str
    reader_id: str
    through_sequence: int
    epoch: int
    def __init__(self, channel: _Optional[str] = ..., reader_id: _Optional[str] = ..., through_sequence: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class AcknowledgeResponse(_message.Message):
    __slots__ = ("first_sequence",)
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    def __init__(self, first_sequence: _Optional[int] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("channel", "reader_id", "epoch")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    READER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    channel: str
    reader_id: str
    epoch: int
    def __init__(self, channel: _Optional[str] = ..., reader_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FindSequenceRequest(_message.Message):
    __slots__ = ("channel", "time")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    channel: str
    time: _timestamp_pb2.Timestamp
    def __init__(self, channel: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class FindSequenceResponse(_message.Message):
    __slots__ = ("sequence", "commit_time")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIME_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    commit_time: _timestamp_pb2.Timestamp
    def __init__(self, sequence: _Optional[int] = ..., commit_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
