"""Checks that a log's records agree with each other, and which sequences damage affects."""

from collections.abc import Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from millrace.columns import ColumnsError, check_columns
from millrace.v1 import event_pb2
from millrace_server.channels.replay import ContradictionError, Replay
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.log import LogRecord
from millrace_server.wal.payload_codec import Payload

PutSizes = tuple[int, int, int]
"""A PUT record's events, bytes of their bodies, and bytes of its columns."""


class Totals(NamedTuple):
    """The number of some commits, and of the events that they put."""

    commit_count: int = 0
    event_count: int = 0


class ContentsCheck(Replay[PutSizes]):
    """Replays a log without building a channel, and compares the PUT records with what their commits say of them.

    Attributes:
        totals: All commits so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.totals = Totals()

    def on_put(self, record: LogRecord) -> PutSizes:
        payload = record.payload
        try:
            columns = columns_of(payload)
        except ContradictionError:
            # Remembered, so that its own commit is reported, not the one before.
            self._puts.append((-1, -1, -1))
            raise
        return columns.count, len(columns.bodies), len(payload)

    def put_mismatch(self, message: pb.Commit | pb.MemoryState, puts: Sequence[PutSizes]) -> str:
        stated = list(zip(message.put_counts, message.put_body_bytes, message.put_raw_bytes, strict=False))
        if list(puts) == stated:
            return ""
        return f"says that it has puts of {stated} (events, bytes of bodies, bytes); before it lie puts of {puts}"

    def on_commit(self, commit: pb.Commit, _puts: Sequence[PutSizes], _takes: Sequence[pb.Take], _problem: str) -> None:
        self.totals = Totals(self.totals.commit_count + 1, self.totals.event_count + sum(commit.put_counts))

    def on_state(self, state: pb.State) -> None:
        """Does nothing: its sequences are compared before this call."""

    def on_memory_state(self, message: pb.MemoryState, _puts: Sequence[PutSizes], _problem: str) -> None:
        """Does nothing, for the same reason."""

    def on_claim(self, claim: pb.Claim) -> None:
        """Does nothing: any claim may follow any other."""

    def on_rollback(self, rollback: pb.Rollback) -> None:
        """Does nothing: the puts and takes of a transaction enter the log with its commit only."""


def columns_of(payload: Payload) -> event_pb2.EventColumns:
    """Returns the events of a PUT record's payload; raises ContradictionError if it does not hold any."""
    try:
        columns = event_pb2.EventColumns.FromString(bytes(payload))
        check_columns(columns)
    except (DecodeError, ColumnsError) as error:
        raise ContradictionError(f"does not hold events: {error}") from None
    return columns
