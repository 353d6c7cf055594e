from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PackedColumns(_message.Message):
    __slots__ = ("count", "body_sizes", "headers")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BODY_SIZES_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    count: int
    body_sizes: bytes
    headers: _containers.RepeatedCompositeFieldContainer[PackedHeader]
    def __init__(self, count: _Optional[int] = ..., body_sizes: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[PackedHeader, _Mapping]]] = ...) -> None: ...

class JoinedColumns(_message.Message):
    __slots__ = ("counts", "body_sizes", "bodies", "headers")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    BODY_SIZES_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    body_sizes: _containers.RepeatedScalarFieldContainer[bytes]
    bodies: _containers.RepeatedScalarFieldContainer[bytes]
    headers: _containers.RepeatedCompositeFieldContainer[PackedHeader]
    def __init__(self, counts: _Optional[_Iterable[int]] = ..., body_sizes: _Optional[_Iterable[bytes]] = ..., bodies: _Optional[_Iterable[bytes]] = ..., headers: _Optional[_Iterable[_Union[PackedHeader, _Mapping]]] = ...) -> None: ...

class PackedHeader(_message.Message):
    __slots__ = ("key", "sizes", "values")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    key: str
    sizes: bytes
    values: bytes
    def __init__(self, key: _Optional[str] = ..., sizes: _Optional[bytes] = ..., values: _Optional[bytes] = ...) -> None: ...
