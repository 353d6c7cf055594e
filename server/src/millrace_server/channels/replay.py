"""The replay rule: which records of a log belong together, and where its sequences may continue.

Recovery follows it to restore a channel, the log tools to check a log that may be damaged.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError, Message

from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.format import Kind
from millrace_server.wal.log import LogRecord

MessageT = TypeVar("MessageT", bound=Message)
PutT = TypeVar("PutT")  # What a subclass remembers of a PUT record until the record follows that gives it effect.

_MESSAGES: dict[Kind, type[Message]] = {
    Kind.STATE: pb.State,
    Kind.TAKE: pb.Take,
    Kind.COMMIT: pb.Commit,
    Kind.ROLLBACK: pb.Rollback,
    Kind.CLAIM: pb.Claim,
    Kind.MEMORY_STATE: pb.MemoryState,
}


class ContradictionError(Exception):
    """Raised when a record contradicts itself or those before it. The message follows the record's position."""


class Replay(ABC, Generic[PutT]):
    """Applies a log's records in order.

    Subclasses implement the effect of each record in the `on_` methods. Some of these get `problem`: a contradiction to
    the records before, or an empty string. `apply` raises it afterwards.

    Attributes:
        next_sequence: The sequence of the next event put, according to the records so far.
        reserved_sequence: Events in memory may have sequences below this one, which no record mentions.
        has_state: Whether a STATE or MEMORY_STATE, or a checkpoint, has stated the channel's state.
        lost: First and last sequences whose events, or whose order, damage concerns.
    """

    def __init__(self) -> None:
        self.next_sequence = 1
        self.reserved_sequence = 0
        self.lost: list[tuple[int, int]] = []
        self._puts: list[PutT] = []
        self._takes: list[pb.Take] = []
        self.has_state = False
        self._is_behind_damage = False

    @property
    def is_between_commits(self) -> bool:
        """Whether no PUT or TAKE record waits for the record that gives it effect."""
        return not (self._puts or self._takes)

    def skip_damage(self) -> None:
        """Notes that records are missing before the next one, so it is believed wherever it continues."""
        self._is_behind_damage = True

    def apply(self, record: LogRecord) -> None:
        """Applies the next record.

        Raises:
            ContradictionError: It contradicts itself or earlier records. A caller that continues accepts the record.
        """
        kind = record.kind
        if kind is Kind.PUT:
            self._puts.append(self.on_put(record))
        elif kind is Kind.COMMIT:
            # Before the others: half of the records of many small commits are these.
            self._commit(_parsed(pb.Commit, record))
        elif kind is not Kind.SYNC_POINT:
            self._apply_message(decode_message(record))

    def _apply_message(self, message: Message) -> None:
        match message:
            case pb.Take():
                self._takes.append(message)
            case pb.Rollback():
                self.on_rollback(message)
            case pb.Claim():
                self.on_claim(message)
            case pb.State():
                self._state(message)
            case _:
                assert isinstance(message, pb.MemoryState), "there are no other messages"
                self._memory_state(message)

    def _commit(self, commit: pb.Commit) -> None:
        counts, take_count, first_sequence = commit.put_counts[:], commit.take_records, commit.first_sequence
        puts, takes = self._own_records(len(counts), take_count)
        problem = self.put_mismatch(commit, puts)
        if not problem and len(takes) < take_count:
            problem = f"says that it has {take_count} takes; before it lie {len(takes)}"
        problem = self._continue_at(first_sequence, first_sequence + sum(counts), "its first sequence is", problem)
        self.on_commit(commit, puts, takes, problem)
        _raise_if(problem)

    def _state(self, state: pb.State) -> None:
        # The records before a log's first STATE were removed because nothing needs them: there is nothing to compare.
        is_first = not self.has_state and not self._is_behind_damage
        problem = ""
        if is_first:
            self.next_sequence = state.next_sequence
        else:
            problem = self._continue_at(state.next_sequence, state.next_sequence, "the next sequence is")
        self.reserved_sequence = state.reserved_sequence
        self.on_state(state)
        self.has_state = True
        _raise_if(problem)

    def _memory_state(self, message: pb.MemoryState) -> None:
        puts, _ = self._own_records(len(message.put_counts))
        # Behind damage, its PUT records may be among what is missing.
        mismatch = "" if self._is_behind_damage else self.put_mismatch(message, puts)
        next_sequence = message.state.next_sequence
        problem = self._continue_at(next_sequence, next_sequence, "the next sequence is")
        self.has_state = True
        self.reserved_sequence = message.state.reserved_sequence
        if mismatch and not problem:
            problem = mismatch
            for first, start, stop in zip(message.first_sequences, message.starts, message.stops, strict=False):
                self._lose(first, first + stop - start)
        self.on_memory_state(message, puts, problem)
        _raise_if(problem)

    def _own_records(self, put_count: int, take_count: int = 0) -> tuple[list[PutT], list[pb.Take]]:
        """Returns the PUT and TAKE records that a record gives effect to: those right before it."""
        # Not all since the last one: a crash may leave the beginning of a commit whose COMMIT was never written.
        puts, takes = self._puts, self._takes
        self._puts, self._takes = [], []
        if len(puts) > put_count:
            self.on_lost_puts()
            puts = puts[len(puts) - put_count :]
        return puts, takes[max(0, len(takes) - take_count) :]

    def _continue_at(self, first: int, end: int, what: str, problem: str = "") -> str:
        """Moves on to the sequence `end` behind a record that begins at `first`; returns what contradicts."""
        expected, self.next_sequence = self.next_sequence, end
        is_behind_damage, self._is_behind_damage = self._is_behind_damage, False
        if is_behind_damage:
            self._lose(expected, end if problem else first)
            return ""
        # Events in memory may have been given the sequences between, up to the reserve; see FORMAT.md.
        if first != expected and not expected <= first <= self.reserved_sequence:
            self._lose(expected, end)
            return f"says that {what} {first}; those before it lead to {expected}"
        if problem:
            self._lose(first, end)
        return problem

    def _lose(self, first: int, end: int) -> None:
        if first < end:
            self.lost.append((first, end - 1))

    def put_mismatch(self, message: pb.Commit | pb.MemoryState, puts: Sequence[PutT]) -> str:
        """Returns how the PUT records before a record differ from what it says of them, or an empty string."""
        count = len(message.put_counts)
        return "" if len(puts) == count else f"says that it has {count} puts; before it lie {len(puts)}"

    def on_lost_puts(self) -> None:
        """Notes PUT records without effect, whose commit a crash has cut off; the next commit's own records follow."""

    @abstractmethod
    def on_put(self, record: LogRecord) -> PutT:
        """Returns what to remember of a PUT record."""

    @abstractmethod
    def on_commit(self, commit: pb.Commit, puts: Sequence[PutT], takes: Sequence[pb.Take], problem: str) -> None:
        """Applies a commit with its own records."""

    @abstractmethod
    def on_state(self, state: pb.State) -> None:
        """Applies a segment's STATE; `has_state` is false for the first one."""

    @abstractmethod
    def on_memory_state(self, message: pb.MemoryState, puts: Sequence[PutT], problem: str) -> None:
        """Applies a MEMORY_STATE with its own records."""

    @abstractmethod
    def on_rollback(self, rollback: pb.Rollback) -> None:
        """Applies a rollback."""

    @abstractmethod
    def on_claim(self, claim: pb.Claim) -> None:
        """Applies a claim that began or ended."""


def last_time_of(commit: pb.Commit) -> int:
    """Returns the time of the last event that a COMMIT puts, or of the commit."""
    return commit.commit_time + (commit.commit_offsets[-1] if commit.commit_offsets else 0)


def decode_message(record: LogRecord) -> Message:
    """Decodes a record other than PUT and SYNC_POINT; raises ContradictionError where it is not a message."""
    return _parsed(_MESSAGES[record.kind], record)


def _parsed(message: type[MessageT], record: LogRecord) -> MessageT:
    try:
        return message.FromString(record.payload)  # type: ignore[arg-type] # its stubs know bytes only
    except DecodeError:
        raise ContradictionError(f"does not hold the message of a {record.kind.name}") from None


def _raise_if(problem: str) -> None:
    if problem:
        raise ContradictionError(problem)
