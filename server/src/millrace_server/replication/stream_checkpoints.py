"""Checkpoints in a channel's stream: messages of the same chain, so that an owner that was overtaken writes none."""

import errno
import struct
from collections.abc import Iterator
from dataclasses import replace

from millrace_server.replication.chain import Chain
from millrace_server.replication.messages import Message, MessageKind
from millrace_server.replication.stream_reading import CHECKPOINT
from millrace_server.wal.checkpoints import Checkpoint
from millrace_server.wal.format import Flags
from millrace_server.wal.payload_codec import KeyMismatchError, PayloadCodec
from millrace_server.wal.records import LogFailedError, LogFullError, LogPosition
from millrace_server.wal.segments import LogCorruptError

_CONTEXT = struct.Struct("<16sQQQ")

# What a state is encoded with in place of a record's kind. No record has it, so neither decodes as the other.
_STATE_KIND = 0

_KEPT = 2
"""The newest checkpoint and the previous one."""


class StreamCheckpoints:
    """The checkpoints of a channel whose log is in a stream; the newest and the one before are kept."""

    def __init__(self, chain: Chain, codec: PayloadCodec) -> None:
        self._chain = chain
        self._codec = codec
        # First and last sequences of those that are kept, the newest first.
        self._kept: list[tuple[int, int]] = []

    def write(self, checkpoint: Checkpoint) -> None:
        """Appends a checkpoint, and removes those before the previous one.

        Raises:
            OSError: The stream has no space for it.
            EngineError: The engine does not respond.
        """
        try:
            try:
                self._append(checkpoint)
            except LogFullError:
                if not self.remove_previous():
                    raise
                self._append(checkpoint)
            if len(self._kept) > 1:
                self._chain.purge_checkpoints_before(self._kept[1][0])
        except LogFullError as error:
            raise OSError(errno.ENOSPC, str(error)) from error
        except LogFailedError as error:
            raise OSError(errno.EIO, str(error)) from error

    def _append(self, checkpoint: Checkpoint) -> None:
        flags, pieces = self._codec.encode(_STATE_KIND, [checkpoint.state], self._context(checkpoint.position))
        message = replace(
            self._chain.message(MessageKind.CHECKPOINT, pieces, checkpoint.position),
            flags=int(flags),
            previous=self._kept[0][1] if self._kept else 0,
        )
        with self._chain.turn:
            first = self._chain.append(CHECKPOINT, message)
            self._kept = [(first, self._chain.last_sequence), *self._kept[:1]]

    def remove_previous(self) -> bool:
        """Removes the previous checkpoint, for space in a full stream; returns False where there is none."""
        if len(self._kept) < _KEPT:
            return False
        self._chain.purge_checkpoints_before(self._kept[0][0])
        del self._kept[1:]
        return True

    def valid_checkpoints(self) -> Iterator[Checkpoint]:
        """Yields the checkpoints that are complete and valid, the newest first.

        Raises:
            EngineError: The engine does not respond.
            KeyMissingError: One is encrypted with a key that was not given.
            UnknownVersionError: Another version of Millrace wrote one.
        """
        self._kept = []
        sequence = self._chain.last_checkpoint()
        is_newest = True
        while sequence and len(self._kept) < _KEPT and (found := self._read(sequence)) is not None:
            last, whole = found
            if whole is not None:
                self._kept.append((sequence - last.part, sequence))
                if (checkpoint := self._decode(whole)) is not None:
                    yield replace(checkpoint, is_previous=not is_newest)
            is_newest = False
            sequence = last.previous

    def _read(self, sequence: int) -> tuple[Message, Message | None] | None:
        """Returns the last message of a checkpoint, and the whole checkpoint if it is complete and intact."""
        try:
            last = self._chain.get(sequence)
            if last is None or last.kind is not MessageKind.CHECKPOINT:
                return None
            if last.part != last.part_count - 1:
                return last, None
            before = self._chain.fetch(range(sequence - last.part, sequence))
        except LogCorruptError:
            return None
        bodies = [message.body for message in [*before, last] if message is not None]
        return last, replace(last, pieces=bodies) if len(bodies) == last.part_count else None

    def _decode(self, message: Message) -> Checkpoint | None:
        context = self._context(message.position)
        try:
            state = self._codec.decode(_STATE_KIND, Flags(message.flags), memoryview(message.body), context)
        except (LogCorruptError, KeyMismatchError):
            return None
        return Checkpoint(message.position, bytes(state))

    def _context(self, position: LogPosition) -> bytes:
        return _CONTEXT.pack(self._chain.state.channel_id, *position)
