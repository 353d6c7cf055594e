"""Whether what a log's records say fits together, and which sequences damage concerns."""

from dataclasses import dataclass, field
from typing import NamedTuple

from google.protobuf.message import DecodeError, Message

from millrace.columns import ColumnsError, check_columns
from millrace.v1 import event_pb2
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.format import Kind
from millrace_server.wal.payload_codec import Payload

_MESSAGES: dict[Kind, type[Message]] = {
    Kind.STATE: pb.State,
    Kind.TAKE: pb.Take,
    Kind.COMMIT: pb.Commit,
    Kind.ROLLBACK: pb.Rollback,
    Kind.CLAIM: pb.Claim,
    Kind.KEEP: pb.Keep,
}

_Put = tuple[int, int, int]
"""Of a PUT record the events, the bytes of their bodies, and all bytes."""


class ContradictionError(Exception):
    """Returned when a record does not say what it must; a phrase that goes behind the record's place."""


class Totals(NamedTuple):
    """What some commits hold."""

    commit_count: int = 0
    event_count: int = 0
    """Events that they put."""
    taken_count: int = 0
    """Events that they took."""


@dataclass(slots=True)
class ContentsCheck:
    """Follows a log's records from one to the next."""

    next_sequence: int = 1
    """The sequence that the next event put gets, as the records so far tell."""
    reserved_sequence: int = 0
    """Sequences below it may have been given to events in memory, of which no record tells."""
    next_sequence_seen: int = 1
    """The furthest one that any record tells of."""
    reserved_sequence_seen: int = 0
    """The furthest one that any record reserves up to."""
    claim_seen: pb.Claim | None = None
    """The claim with the highest epoch that any record tells of."""
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Sequences, first and last, whose events or whose order damage concerns."""
    totals: Totals = field(default_factory=Totals)
    """All commits so far."""
    _puts: list[_Put] = field(default_factory=list)
    _takes: list[pb.Take] = field(default_factory=list)
    _is_known: bool = False
    """Whether nothing is missing before the next record."""
    _has_begun: bool = False

    def skip(self) -> None:
        """Something is damaged or missing before the next record."""
        self._has_begun = True
        self._is_known = False

    def apply(self, kind: Kind, payload: Payload) -> None:
        """Takes the next record in.

        Raises:
            ContradictionError: It contradicts itself or those before it.
        """
        if kind is Kind.PUT:
            self._put(bytes(payload))
        elif kind is not Kind.MARK:
            message = decoded(kind, payload)
            match message:
                case pb.Take():
                    self._takes.append(message)
                case pb.Commit():
                    self._commit(message)
                case pb.Claim():
                    self.see_claim(message)
                case pb.State():
                    self._state(message)
                case pb.Keep():
                    self._keep(message)
                case _:
                    # A rollback: its puts and takes never came into the log.
                    pass

    def _put(self, payload: bytes) -> None:
        try:
            columns = event_pb2.EventColumns.FromString(payload)
            check_columns(columns)
        except (DecodeError, ColumnsError) as error:
            self._puts.append((-1, -1, -1))
            raise ContradictionError(f"does not hold events: {error}") from None
        self._puts.append((columns.count, len(columns.bodies), len(payload)))

    def _commit(self, commit: pb.Commit) -> None:
        count = sum(commit.put_counts)
        first, end = commit.first_sequence, commit.first_sequence + count
        told, puts = self._told_and_found(commit)
        takes = self._takes[max(0, len(self._takes) - commit.take_records) :]
        self._puts, self._takes = [], []
        expected, was_known = self.next_sequence, self._is_known
        self.next_sequence, self._is_known = end, True
        self.next_sequence_seen = max(self.next_sequence_seen, end)
        taken_count = sum(sum(take.counts) for take in takes)
        self.totals = Totals(*map(sum, zip(self.totals, (1, count, taken_count), strict=True)))
        is_whole = puts == told and len(takes) == commit.take_records
        if not was_known:
            self._lose_between(expected, first if is_whole else end)
            return
        if not self._goes_on(expected, first):
            self._lose_between(expected, end)
            raise ContradictionError(f"says that its first sequence is {first}; those before it lead to {expected}")
        if not is_whole:
            self._lose_between(first, end)
            raise ContradictionError(
                f"says that it has puts of {told} (events, bytes of bodies, bytes) and {commit.take_records} takes; "
                f"before it lie puts of {puts} and {len(takes)} takes"
            )

    def _told_and_found(self, message: pb.Commit | pb.Keep) -> tuple[list[_Put], list[_Put]]:
        """What a record says of the PUT records before it, and what they are."""
        told = list(zip(message.put_counts, message.put_body_bytes, message.put_raw_bytes, strict=False))
        # What a commit did not reach before a crash may stand before its own records.
        return told, self._puts[max(0, len(self._puts) - len(told)) :]

    def _goes_on(self, expected: int, next_sequence: int) -> bool:
        """Whether sequences go on where they were, or behind some that were reserved for events in memory."""
        return expected <= next_sequence <= max(expected, self.reserved_sequence)

    def _keep(self, keep: pb.Keep) -> None:
        told, puts = self._told_and_found(keep)
        self._puts, self._takes = [], []
        was_known = self._is_known
        self._state(keep.state)
        if was_known and told != puts:
            for first, start, stop in zip(keep.first_sequences, keep.starts, keep.stops, strict=False):
                self._lose_between(first, first + stop - start)
            raise ContradictionError(
                f"says that it keeps puts of {told} (events, bytes of bodies, bytes); before it lie puts of {puts}"
            )

    def see_claim(self, claim: pb.Claim) -> None:
        """Learns of a claim."""
        if self.claim_seen is None or claim.epoch >= self.claim_seen.epoch:
            self.claim_seen = claim

    def _state(self, state: pb.State) -> None:
        if state.HasField("claim"):
            self.see_claim(state.claim)
        expected, was_known = self.next_sequence, self._is_known
        goes_on = self._goes_on(expected, state.next_sequence)
        self.next_sequence, self._is_known = state.next_sequence, True
        self.reserved_sequence = state.reserved_sequence
        self.next_sequence_seen = max(self.next_sequence_seen, state.next_sequence)
        self.reserved_sequence_seen = max(self.reserved_sequence_seen, state.reserved_sequence)
        if not was_known:
            # Where a log begins, what was before it went because nothing needed it.
            if self._has_begun:
                self._lose_between(expected, state.next_sequence)
            self._has_begun = True
            return
        if not goes_on:
            self._lose_between(expected, state.next_sequence)
            raise ContradictionError(
                f"says that the next sequence is {state.next_sequence}; those before it lead to {expected}"
            )

    def _lose_between(self, first: int, end: int) -> None:
        if first < end:
            self.lost.append((first, end - 1))


def decoded(kind: Kind, payload: Payload) -> Message:
    """The message of a record that is neither PUT nor MARK.

    Raises:
        ContradictionError: It is none.
    """
    try:
        return _MESSAGES[kind].FromString(bytes(payload))
    except DecodeError:
        raise ContradictionError(f"does not hold what a {kind.name} says") from None
