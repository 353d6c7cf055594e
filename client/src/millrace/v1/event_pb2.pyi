import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Event(_message.Message):
    __slots__ = ("headers", "body")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    headers: _containers.ScalarMap[str, str]
    body: bytes
    def __init__(self, headers: _Optional[_Mapping[str, str]] = ..., body: _Optional[bytes] = ...) -> None: ...

class EventBatch(_message.Message):
    __slots__ = ("first_sequence", "events", "columns", "commit_time", "commit_offsets")
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIME_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    events: _containers.RepeatedCompositeFieldContainer[Event]
    columns: EventColumns
    commit_time: _timestamp_pb2.Timestamp
    commit_offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, first_sequence: _Optional[int] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., columns: _Optional[_Union[EventColumns, _Mapping]] = ..., commit_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., commit_offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class EventColumns(_message.Message):
    __slots__ = ("count", "body_sizes", "bodies", "headers")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BODY_SIZES_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    count: int
    body_sizes: _containers.RepeatedScalarFieldContainer[int]
    bodies: bytes
    headers: _containers.RepeatedCompositeFieldContainer[HeaderColumn]
    def __init__(self, count: _Optional[int] = ..., body_sizes: _Optional[_Iterable[int]] = ..., bodies: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[HeaderColumn, _Mapping]]] = ...) -> None: ...

class HeaderColumn(_message.Message):
    __slots__ = ("key", "sizes", "values")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    key: str
    sizes: _containers.RepeatedScalarFieldContainer[int]
    values: bytes
    def __init__(self, key: _Optional[str] = ..., sizes: _Optional[_Iterable[int]] = ..., values: _Optional[bytes] = ...) -> None: ...

class ProducerStamp(_message.Message):
    __slots__ = ("producer_id", "first_sequence", "last_sequence", "after_sequence", "oldest_open_sequence")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_OPEN_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    producer_id: str
    first_sequence: int
    last_sequence: int
    after_sequence: int
    oldest_open_sequence: int
    def __init__(self, producer_id: _Optional[str] = ..., first_sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ..., after_sequence: _Optional[int] = ..., oldest_open_sequence: _Optional[int] = ...) -> None: ...
