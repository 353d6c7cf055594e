from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Take(_message.Message):
    __slots__ = ("first_sequences", "counts", "body_bytes")
    FIRST_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    first_sequences: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    body_bytes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, first_sequences: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., body_bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class Stamp(_message.Message):
    __slots__ = ("producer_id", "first", "last", "owner")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    producer_id: str
    first: int
    last: int
    owner: str
    def __init__(self, producer_id: _Optional[str] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., owner: _Optional[str] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("txn_ids", "first_sequence", "put_counts", "put_body_bytes", "put_raw_bytes", "take_records", "stamp", "is_deduplicated", "more_stamps", "commit_time", "commit_offsets", "forgotten_producer_id", "empty_from", "empty_to")
    TXN_IDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PUT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    PUT_BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PUT_RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    TAKE_RECORDS_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    IS_DEDUPLICATED_FIELD_NUMBER: _ClassVar[int]
    MORE_STAMPS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIME_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EMPTY_FROM_FIELD_NUMBER: _ClassVar[int]
    EMPTY_TO_FIELD_NUMBER: _ClassVar[int]
    txn_ids: _containers.RepeatedScalarFieldContainer[str]
    first_sequence: int
    put_counts: _containers.RepeatedScalarFieldContainer[int]
    put_body_bytes: _containers.RepeatedScalarFieldContainer[int]
    put_raw_bytes: _containers.RepeatedScalarFieldContainer[int]
    take_records: int
    stamp: Stamp
    is_deduplicated: bool
    more_stamps: _containers.RepeatedCompositeFieldContainer[Stamp]
    commit_time: int
    commit_offsets: _containers.RepeatedScalarFieldContainer[int]
    forgotten_producer_id: str
    empty_from: int
    empty_to: int
    def __init__(self, txn_ids: _Optional[_Iterable[str]] = ..., first_sequence: _Optional[int] = ..., put_counts: _Optional[_Iterable[int]] = ..., put_body_bytes: _Optional[_Iterable[int]] = ..., put_raw_bytes: _Optional[_Iterable[int]] = ..., take_records: _Optional[int] = ..., stamp: _Optional[_Union[Stamp, _Mapping]] = ..., is_deduplicated: bool = ..., more_stamps: _Optional[_Iterable[_Union[Stamp, _Mapping]]] = ..., commit_time: _Optional[int] = ..., commit_offsets: _Optional[_Iterable[int]] = ..., forgotten_producer_id: _Optional[str] = ..., empty_from: _Optional[int] = ..., empty_to: _Optional[int] = ...) -> None: ...

class JoinedCommits(_message.Message):
    __slots__ = ("txn_ids", "first_sequences", "put_counts", "put_body_bytes", "put_raw_bytes", "take_records", "stamps", "more_stamps", "commit_times", "commit_offsets", "forgotten_producer_id")
    TXN_IDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    PUT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    PUT_BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PUT_RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    TAKE_RECORDS_FIELD_NUMBER: _ClassVar[int]
    STAMPS_FIELD_NUMBER: _ClassVar[int]
    MORE_STAMPS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIMES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    txn_ids: _containers.RepeatedScalarFieldContainer[str]
    first_sequences: _containers.RepeatedScalarFieldContainer[int]
    put_counts: _containers.RepeatedScalarFieldContainer[int]
    put_body_bytes: _containers.RepeatedScalarFieldContainer[int]
    put_raw_bytes: _containers.RepeatedScalarFieldContainer[int]
    take_records: int
    stamps: _containers.RepeatedCompositeFieldContainer[Stamp]
    more_stamps: _containers.RepeatedCompositeFieldContainer[Stamp]
    commit_times: _containers.RepeatedScalarFieldContainer[int]
    commit_offsets: _containers.RepeatedScalarFieldContainer[int]
    forgotten_producer_id: str
    def __init__(self, txn_ids: _Optional[_Iterable[str]] = ..., first_sequences: _Optional[_Iterable[int]] = ..., put_counts: _Optional[_Iterable[int]] = ..., put_body_bytes: _Optional[_Iterable[int]] = ..., put_raw_bytes: _Optional[_Iterable[int]] = ..., take_records: _Optional[int] = ..., stamps: _Optional[_Iterable[_Union[Stamp, _Mapping]]] = ..., more_stamps: _Optional[_Iterable[_Union[Stamp, _Mapping]]] = ..., commit_times: _Optional[_Iterable[int]] = ..., commit_offsets: _Optional[_Iterable[int]] = ..., forgotten_producer_id: _Optional[str] = ...) -> None: ...

class Rollback(_message.Message):
    __slots__ = ("txn_id", "has_expired")
    TXN_ID_FIELD_NUMBER: _ClassVar[int]
    HAS_EXPIRED_FIELD_NUMBER: _ClassVar[int]
    txn_id: str
    has_expired: bool
    def __init__(self, txn_id: _Optional[str] = ..., has_expired: bool = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ("reader_id", "epoch", "lease_seconds", "has_ended", "owner")
    READER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HAS_ENDED_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    reader_id: str
    epoch: int
    lease_seconds: float
    has_ended: bool
    owner: str
    def __init__(self, reader_id: _Optional[str] = ..., epoch: _Optional[int] = ..., lease_seconds: _Optional[float] = ..., has_ended: bool = ..., owner: _Optional[str] = ...) -> None: ...

class Producers(_message.Message):
    __slots__ = ("producer_ids", "interval_counts", "firsts", "lasts", "last_seen", "owners")
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_COUNTS_FIELD_NUMBER: _ClassVar[int]
    FIRSTS_FIELD_NUMBER: _ClassVar[int]
    LASTS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    producer_ids: _containers.RepeatedScalarFieldContainer[str]
    interval_counts: _containers.RepeatedScalarFieldContainer[int]
    firsts: _containers.RepeatedScalarFieldContainer[int]
    lasts: _containers.RepeatedScalarFieldContainer[int]
    last_seen: _containers.RepeatedScalarFieldContainer[int]
    owners: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, producer_ids: _Optional[_Iterable[str]] = ..., interval_counts: _Optional[_Iterable[int]] = ..., firsts: _Optional[_Iterable[int]] = ..., lasts: _Optional[_Iterable[int]] = ..., last_seen: _Optional[_Iterable[int]] = ..., owners: _Optional[_Iterable[str]] = ...) -> None: ...

class EndedTxns(_message.Message):
    __slots__ = ("txn_ids", "outcomes", "first_sequences", "last_sequences", "are_deduplicated", "commit_time_steps")
    TXN_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    ARE_DEDUPLICATED_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIME_STEPS_FIELD_NUMBER: _ClassVar[int]
    txn_ids: _containers.RepeatedScalarFieldContainer[str]
    outcomes: _containers.RepeatedScalarFieldContainer[int]
    first_sequences: _containers.RepeatedScalarFieldContainer[int]
    last_sequences: _containers.RepeatedScalarFieldContainer[int]
    are_deduplicated: _containers.RepeatedScalarFieldContainer[bool]
    commit_time_steps: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, txn_ids: _Optional[_Iterable[str]] = ..., outcomes: _Optional[_Iterable[int]] = ..., first_sequences: _Optional[_Iterable[int]] = ..., last_sequences: _Optional[_Iterable[int]] = ..., are_deduplicated: _Optional[_Iterable[bool]] = ..., commit_time_steps: _Optional[_Iterable[int]] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("next_sequence", "producers", "ended_txns", "claim", "reserved_sequence", "last_commit_time", "kept_sequence")
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    ENDED_TXNS_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    RESERVED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMIT_TIME_FIELD_NUMBER: _ClassVar[int]
    KEPT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    next_sequence: int
    producers: Producers
    ended_txns: EndedTxns
    claim: Claim
    reserved_sequence: int
    last_commit_time: int
    kept_sequence: int
    def __init__(self, next_sequence: _Optional[int] = ..., producers: _Optional[_Union[Producers, _Mapping]] = ..., ended_txns: _Optional[_Union[EndedTxns, _Mapping]] = ..., claim: _Optional[_Union[Claim, _Mapping]] = ..., reserved_sequence: _Optional[int] = ..., last_commit_time: _Optional[int] = ..., kept_sequence: _Optional[int] = ...) -> None: ...

class MemoryState(_message.Message):
    __slots__ = ("state", "put_counts", "put_body_bytes", "put_raw_bytes", "first_sequences", "put_indexes", "starts", "stops", "body_bytes", "commit_time_steps")
    STATE_FIELD_NUMBER: _ClassVar[int]
    PUT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    PUT_BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PUT_RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    PUT_INDEXES_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    STOPS_FIELD_NUMBER: _ClassVar[int]
    BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIME_STEPS_FIELD_NUMBER: _ClassVar[int]
    state: State
    put_counts: _containers.RepeatedScalarFieldContainer[int]
    put_body_bytes: _containers.RepeatedScalarFieldContainer[int]
    put_raw_bytes: _containers.RepeatedScalarFieldContainer[int]
    first_sequences: _containers.RepeatedScalarFieldContainer[int]
    put_indexes: _containers.RepeatedScalarFieldContainer[int]
    starts: _containers.RepeatedScalarFieldContainer[int]
    stops: _containers.RepeatedScalarFieldContainer[int]
    body_bytes: _containers.RepeatedScalarFieldContainer[int]
    commit_time_steps: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, state: _Optional[_Union[State, _Mapping]] = ..., put_counts: _Optional[_Iterable[int]] = ..., put_body_bytes: _Optional[_Iterable[int]] = ..., put_raw_bytes: _Optional[_Iterable[int]] = ..., first_sequences: _Optional[_Iterable[int]] = ..., put_indexes: _Optional[_Iterable[int]] = ..., starts: _Optional[_Iterable[int]] = ..., stops: _Optional[_Iterable[int]] = ..., body_bytes: _Optional[_Iterable[int]] = ..., commit_time_steps: _Optional[_Iterable[int]] = ...) -> None: ...

class Batches(_message.Message):
    __slots__ = ("first_sequences", "starts", "stops", "body_bytes", "segment_ids", "positions", "payload_lengths", "record_counts", "record_body_bytes", "record_raw_bytes", "put_counts", "commit_time_steps", "commit_offsets")
    FIRST_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    STOPS_FIELD_NUMBER: _ClassVar[int]
    BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_IDS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNTS_FIELD_NUMBER: _ClassVar[int]
    RECORD_BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECORD_RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    PUT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIME_STEPS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    first_sequences: _containers.RepeatedScalarFieldContainer[int]
    starts: _containers.RepeatedScalarFieldContainer[int]
    stops: _containers.RepeatedScalarFieldContainer[int]
    body_bytes: _containers.RepeatedScalarFieldContainer[int]
    segment_ids: _containers.RepeatedScalarFieldContainer[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    payload_lengths: _containers.RepeatedScalarFieldContainer[int]
    record_counts: _containers.RepeatedScalarFieldContainer[int]
    record_body_bytes: _containers.RepeatedScalarFieldContainer[int]
    record_raw_bytes: _containers.RepeatedScalarFieldContainer[int]
    put_counts: _containers.RepeatedScalarFieldContainer[int]
    commit_time_steps: _containers.RepeatedScalarFieldContainer[int]
    commit_offsets: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, first_sequences: _Optional[_Iterable[int]] = ..., starts: _Optional[_Iterable[int]] = ..., stops: _Optional[_Iterable[int]] = ..., body_bytes: _Optional[_Iterable[int]] = ..., segment_ids: _Optional[_Iterable[int]] = ..., positions: _Optional[_Iterable[int]] = ..., payload_lengths: _Optional[_Iterable[int]] = ..., record_counts: _Optional[_Iterable[int]] = ..., record_body_bytes: _Optional[_Iterable[int]] = ..., record_raw_bytes: _Optional[_Iterable[int]] = ..., put_counts: _Optional[_Iterable[int]] = ..., commit_time_steps: _Optional[_Iterable[int]] = ..., commit_offsets: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("state", "batches")
    STATE_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    state: State
    batches: Batches
    def __init__(self, state: _Optional[_Union[State, _Mapping]] = ..., batches: _Optional[_Union[Batches, _Mapping]] = ...) -> None: ...
