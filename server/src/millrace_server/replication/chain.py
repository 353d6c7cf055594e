"""The end of a channel's stream, to which its one owner appends."""

import json
import secrets
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import Self

from millrace_server.replication.engine import Engine
from millrace_server.replication.messages import HEAD_BYTES, Message, MessageKind
from millrace_server.replication.stream import HEADER_BYTES_MAX, Stream
from millrace_server.replication.stream_reading import CHECKPOINT, LOG, StreamState
from millrace_server.wal.disk import Piece
from millrace_server.wal.records import LogTakenOverError

_FENCES_MAX = 100

_READS_AT_ONCE = 3
_READ_BYTES = 4 << 20
_READ_MESSAGES_MAX = 1000


class Chain:
    """Appends to a stream, one message at a time, from any thread. Its methods block.

    Attributes:
        state: The stream as it was when it was opened.
        epoch: The sequence of this owner's FENCE; 0 until `fence`.
    """

    def __init__(self, engine: Engine, stream: Stream, state: StreamState) -> None:
        self._engine = engine
        self.stream = stream
        self.state = state
        self.epoch = 0
        self._last_sequence = self.state.last_sequence
        self._byte_count = self.state.byte_count
        self._appending: Future[None] | None = None
        self._is_abandoned = False
        # Held while messages that belong together are appended, so that nothing comes between them.
        self._lock = threading.RLock()

    @classmethod
    def opened(cls, engine: Engine, stream: Stream, *, may_create: bool = True) -> Self:
        """Opens a stream; see `Stream.open`."""
        return cls(engine, stream, engine.call(stream.open(may_create=may_create)).result())

    @property
    def last_sequence(self) -> int:
        """The sequence of the last message."""
        return self._last_sequence

    @property
    def byte_count(self) -> int:
        """The size of the stream, as far as it is known without asking."""
        return self._byte_count

    @property
    def body_bytes_max(self) -> int:
        """The largest body that one message has."""
        return self._engine.message_bytes_max - HEADER_BYTES_MAX - HEAD_BYTES

    def fence(self, address: str, sequence_known: int = 0) -> None:
        """Makes this server the owner: nothing that an earlier one appends from now on is stored.

        Args:
            address: Where clients reach this server; operators find it in the stream.
            sequence_known: The last message that the stream is known to have had; 0 without any.

        Raises:
            EngineError: The engine does not answer.
            LogCorruptError: The stream ends before that message.
        """
        body = json.dumps({"address": address, "nonce": secrets.token_hex(8)}).encode()
        for _ in range(_FENCES_MAX):
            if self._last_sequence < sequence_known:
                self._last_sequence = self._engine.call(self.stream.ending_behind(sequence_known)).result()
            try:
                self.epoch = self.append(LOG, self.message(MessageKind.FENCE, [body]))
            except LogTakenOverError:
                # Another server appends still, or is faster.
                self._last_sequence = self._engine.call(self.stream.state()).result().last_sequence
            else:
                return
        raise LogTakenOverError(f"stream {self.stream.name}: other servers have appended all the time")

    def message(self, kind: MessageKind, pieces: Sequence[Piece]) -> Message:
        """Returns a message of this owner, whose body has these pieces."""
        return Message(kind=kind, channel_id=self.state.channel_id, epoch=self.epoch, pieces=pieces)

    def append(self, subject: str, message: Message) -> int:
        """Appends one message and returns its sequence; raises what `Stream.append` raises."""
        with self._lock:
            sequence = self._last_sequence + 1
            encoded = message.encode(sequence)
            self._await_append(self._engine.call(self.stream.append(subject, encoded, sequence)))
            self._last_sequence = sequence
            self._byte_count += sum(map(len, encoded))
            return sequence

    def _await_append(self, appending: "Future[None]") -> None:
        self._appending = appending
        # Whichever of this thread and that of `abandon` comes later sees what the other has set.
        if self._is_abandoned:
            appending.cancel()
        try:
            appending.result()
        except CancelledError:
            raise LogTakenOverError(f"stream {self.stream.name}: other servers may append to it now") from None

    def abandon(self) -> None:
        """Ends the append that is under way, whose outcome may stay unknown, and refuses later ones. Does not block."""
        self._is_abandoned = True
        if self._appending is not None:
            self._appending.cancel()

    def append_parts(self, subject: str, whole: Message) -> int:
        """Appends a message in as many parts as the engine needs; returns the sequence of the first.

        Parts without the last one have no effect: a crash, or a refusal, leaves none or all.
        """
        parts = _parts(whole.pieces, self.body_bytes_max)
        with self._lock:
            first = self._last_sequence + 1
            for part, pieces in enumerate(parts):
                self.append(subject, replace(whole, pieces=pieces, part=part, part_count=len(parts)))
            return first

    def hold(self) -> threading.RLock:
        """Returns the lock that keeps others from appending; with it the next sequence is known."""
        return self._lock

    def get(self, sequence: int) -> Message | None:
        """Returns the message at a sequence; None if there is none."""
        [message] = self.fetch([sequence])
        return message

    def fetch(self, sequences: Sequence[int]) -> list[Message | None]:
        """Returns the messages at some sequences; raises EngineError, LogCorruptError or UnknownVersionError."""
        found = self._engine.call(self.stream.fetch(sequences)).result()
        return [
            None if encoded is None else Message.decode(encoded, sequence, self.state.channel_id)
            for sequence, encoded in zip(sequences, found, strict=True)
        ]

    def messages_from(self, first: int) -> Iterator[tuple[int, Message]]:
        """Yields the messages from a sequence up to the last one, with their sequences."""
        for sequence, encoded in self.encoded_from(first):
            yield sequence, Message.decode(encoded, sequence, self.state.channel_id)

    def encoded_from(self, first: int) -> Iterator[tuple[int, bytes]]:
        """Yields the same as they are stored; some requests overlap."""
        end, count = self._last_sequence + 1, self._messages_at_once()
        starts = iter(range(first, end, count))
        reading: deque[Future[list[tuple[int, bytes]]]] = deque()

        def read_more() -> None:
            if (start := next(starts, None)) is not None:
                reading.append(self._engine.call(self.stream.read(start, min(start + count, end))))

        for _ in range(_READS_AT_ONCE):
            read_more()
        while reading:
            found = reading.popleft().result()
            read_more()
            yield from found

    def _messages_at_once(self) -> int:
        message_count = self.state.last_sequence + 1 - self.state.first_sequence
        average_bytes = self.state.byte_count // max(message_count, 1) + 1
        return min(max(_READ_BYTES // average_bytes, 1), _READ_MESSAGES_MAX)

    def last_checkpoint(self) -> int:
        """Returns the sequence of the last message of a checkpoint; 0 if there is none."""
        return self._engine.call(self.stream.last_checkpoint()).result()

    def purge_before(self, sequence: int) -> None:
        """Removes all messages before a sequence."""
        self._byte_count = self._engine.call(self.stream.purge_before(sequence)).result().byte_count

    def purge_checkpoints_before(self, sequence: int) -> None:
        """Removes the checkpoints' messages before a sequence."""
        purging = self.stream.purge_before(sequence, CHECKPOINT)
        self._byte_count = self._engine.call(purging).result().byte_count

    def delete(self) -> None:
        """Deletes the stream."""
        self._engine.call(self.stream.delete()).result()


def _parts(pieces: Sequence[Piece], bytes_max: int) -> Sequence[Sequence[Piece]]:
    """Returns a body's pieces in parts of limited size; most bodies are one part, which is not copied."""
    if sum(map(len, pieces)) <= bytes_max:
        return [pieces]
    whole = memoryview(b"".join(pieces))
    return [[whole[start : start + bytes_max]] for start in range(0, len(whole), bytes_max)]
