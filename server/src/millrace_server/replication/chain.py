"""The end of a channel's stream, to which its one owner appends."""

import asyncio
import json
import secrets
import threading
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import Any, Self, TypeVar

from nats.errors import MaxPayloadError
from nats.js.errors import APIError

from millrace_server.replication.engine import CALL_SECONDS, Done, Engine
from millrace_server.replication.messages import HEAD_BYTES, NOWHERE, Message, MessageKind
from millrace_server.replication.stream import HEADER_BYTES_MAX, Stream, refuse_unless_stored
from millrace_server.replication.stream_reading import CHECKPOINT, LOG, SetBackError, StreamState
from millrace_server.wal.disk import Piece
from millrace_server.wal.records import LogPosition, LogTakenOverError

_FENCES_MAX = 100

_READS_AT_ONCE = 3
_READ_BYTES = 4 << 20
_READ_MESSAGES_MAX = 1000

ResultT = TypeVar("ResultT")


class Chain:
    """Appends to a stream, one message at a time, from any thread. Its methods block.

    Attributes:
        state: The stream as it was when it was opened.
        epoch: The sequence of this owner's FENCE; 0 until `fence`.
        turn: Held while something is appended: with it the next sequence is known. Any thread may release it.
    """

    def __init__(self, engine: Engine, stream: Stream, state: StreamState) -> None:
        self._engine = engine
        self.stream = stream
        self.state = state
        self.epoch = 0
        self.turn = threading.Lock()
        # An empty stream may begin with 0, which is no message.
        self._first_sequence = max(self.state.first_sequence, 1)
        self._last_sequence = self.state.last_sequence
        self._byte_count = self.state.byte_count
        # The append that began last; for the engine's event loop.
        self._appending: asyncio.Task[Any] | None = None
        # The lone append that began last; for the event loop on which these begin.
        self._sending: asyncio.Future[bytes] | None = None
        self._is_abandoned = False

    @classmethod
    def opened(cls, engine: Engine, stream: Stream, *, may_create: bool = True) -> Self:
        """Opens a stream; see `Stream.open`."""
        return cls(engine, stream, engine.call(stream.open(may_create=may_create)).result())

    @property
    def last_sequence(self) -> int:
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
            EngineError: The engine does not respond.
            LogCorruptError: The stream ends before that message.
        """
        body = json.dumps({"address": address, "nonce": secrets.token_hex(8)}).encode()
        for _ in range(_FENCES_MAX):
            if self._last_sequence < sequence_known:
                self._last_sequence = self._engine.call(self.stream.ending_behind(sequence_known)).result()
            try:
                with self.turn:
                    self.epoch = self.append(LOG, self.message(MessageKind.FENCE, [body]))
            except LogTakenOverError:
                # Another server appends still, or is faster.
                self._last_sequence = self._engine.call(self.stream.state()).result().last_sequence
            else:
                return
        raise LogTakenOverError(f"stream {self.stream.name}: other servers kept appending")

    def message(self, kind: MessageKind, pieces: Sequence[Piece], position: LogPosition = NOWHERE) -> Message:
        """Returns a message of this owner, whose body has these pieces."""
        channel_id = self.state.channel_id
        return Message(kind=kind, channel_id=channel_id, epoch=self.epoch, pieces=pieces, position=position)

    def append(self, subject: str, whole: Message) -> int:
        """Appends a message, in as many parts as the engine needs, and waits until it is stored; needs the `turn`.

        Parts without the last one have no effect: a crash, or a refusal, leaves none or all.

        Returns:
            The sequence of the first part.

        Raises:
            LogTakenOverError: The chain was abandoned, or for what `Stream.append` raises it.
            LogFullError, LogFailedError: See there.
        """
        return self.outcome(self._engine.call(self._append_parts(subject, self._parts(whole))))

    def begin(self, subject: str, whole: Message, done: Done[Any]) -> None:
        """Begins to append a message and does not wait; see `append`, `outcome`.

        Calls back on the running event loop where the engine has its lone connection there, or else on the engine's.
        """
        if not self._begins_here(subject, whole, done):
            self._engine.start(self._append_parts(subject, self._parts(whole)), done)

    def _begins_here(self, subject: str, message: Message, done: Done[Any]) -> bool:
        """Sends a message over the lone connection; returns False where there is none now, or it takes some parts."""
        lone = self._engine.lone
        if lone is None or self._is_abandoned:
            return False
        sequence = self._last_sequence + 1
        encoded = message.encode(sequence)

        def end(sending: "asyncio.Future[bytes]") -> None:
            try:
                refuse_unless_stored(sending.result())
            except asyncio.CancelledError:
                done(sending)
            except Exception as error:  # noqa: BLE001 - whatever it is, another attempt meets it too, or finds out more
                may_arrive_later = not isinstance(error, APIError)
                appending = self._append_parts(subject, [message], may_arrive_later=may_arrive_later)
                self._engine.start(appending, done)
            else:
                self._note(encoded)
                done(sending)

        try:
            self._sending = lone.send(*self.stream.place(subject, sequence), encoded, CALL_SECONDS)
        except (ConnectionError, MaxPayloadError):
            return False
        self._sending.add_done_callback(end)
        return True

    def outcome(self, appending: "Future[ResultT] | asyncio.Future[ResultT]") -> ResultT:
        """Returns, or raises, what `append` does, given what has tried to."""
        try:
            return appending.result()
        except (CancelledError, asyncio.CancelledError):
            raise self._taken_over() from None

    def _parts(self, whole: Message) -> Sequence[Message]:
        """Returns a message in parts of limited size; most are one part, which is not copied."""
        bytes_max = self.body_bytes_max
        if sum(map(len, whole.pieces)) <= bytes_max:
            return [whole]
        body = memoryview(b"".join(whole.pieces))
        bodies = [body[start : start + bytes_max] for start in range(0, len(body), bytes_max)]
        return [replace(whole, pieces=[each], part=part, part_count=len(bodies)) for part, each in enumerate(bodies)]

    async def _append_parts(self, subject: str, parts: Sequence[Message], *, may_arrive_later: bool = False) -> int:
        self._appending = asyncio.current_task()
        if self._is_abandoned:
            raise self._taken_over()
        first = self._last_sequence + 1
        for part in parts:
            sequence = self._last_sequence + 1
            encoded = part.encode(sequence)
            await self.stream.append(subject, encoded, sequence, may_arrive_later=may_arrive_later)
            self._note(encoded)
        return first

    def _note(self, encoded: Sequence[Piece]) -> None:
        """Notes that the next message was stored."""
        self._last_sequence += 1
        self._byte_count += sum(map(len, encoded))

    def _taken_over(self) -> LogTakenOverError:
        return LogTakenOverError(f"stream {self.stream.name}: other servers may append to it now")

    def abandon(self) -> None:
        """Ends the append that is under way, whose outcome may stay unknown, and refuses later ones.

        For the event loop on which appends `begin`; does not block.
        """
        self._is_abandoned = True
        if self._sending is not None:
            self._sending.cancel()
        self._engine.call_soon(self._cancel)

    def _cancel(self) -> None:
        if self._appending is not None:
            self._appending.cancel()

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
        self._purge(self.stream.purge_before(sequence))

    def purge_checkpoints_before(self, sequence: int) -> None:
        """Removes the checkpoints' messages before a sequence."""
        self._purge(self.stream.purge_before(sequence, CHECKPOINT))

    def _purge(self, purging: Coroutine[Any, Any, StreamState]) -> None:
        state = self._engine.call(purging).result()
        self._first_sequence, self._byte_count = state.first_sequence, state.byte_count

    def check(self) -> "Future[None]":
        """Looks whether the engine has all messages still; does not block.

        The future raises:
            EngineError: The engine does not respond.
            LogCorruptError: The stream lacks messages, or is another one.
            StreamMissingError: There is none.
        """
        return self._engine.call(self.stream.patiently(self._check))

    async def _check(self) -> None:
        last = self._last_sequence
        found = await self.stream.state()
        if found.channel_id != self.state.channel_id:
            raise SetBackError(f"stream {self.stream.name}: was replaced by another one")
        if found.last_sequence < last:
            raise SetBackError(
                f"stream {self.stream.name}: was rolled back to message {found.last_sequence} from {last}"
            )
        # What another owner has removed is not missing. It has appended a fence and a checkpoint before, so the stream
        # is longer than this owner's, of which one message may be in flight. A purge of this one is over soon.
        is_own = found.last_sequence <= self._last_sequence + 1
        if is_own and found.first_sequence > self._first_sequence:
            raise SetBackError(
                f"stream {self.stream.name}: begins with message {found.first_sequence}; those from "
                f"{self._first_sequence} on were removed, and not by Millrace"
            )

    def delete(self) -> None:
        self._engine.call(self.stream.delete()).result()
