"""A channel's log in a stream of an engine, to be read only: nothing is appended, and no owner is overtaken."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from millrace_server.channels.channel_file import ChannelIdentity
from millrace_server.channels.recovery import Recovered, ReplayProgress, recover
from millrace_server.log_tools.layout import ChannelLayout, DamagedError, UnavailableError
from millrace_server.log_tools.verify import LogSource
from millrace_server.replication.chain import Chain
from millrace_server.replication.engine import Engine, EngineError
from millrace_server.replication.engine_settings import EngineSettings
from millrace_server.replication.groups import GroupAssembler
from millrace_server.replication.messages import Message, MessageKind
from millrace_server.replication.stream import Stream, StreamLimits
from millrace_server.replication.stream_checkpoints import StreamCheckpoints
from millrace_server.replication.stream_log import StreamLog
from millrace_server.replication.stream_reading import StreamMissingError
from millrace_server.wal.checkpoints import Checkpoint
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.segments import LogCorruptError, Segment


class Damaged(NamedTuple):
    """A message that is damaged, or some that are missing."""

    sequence: int
    sentence: str


class Marker(NamedTuple):
    """A message that holds no records."""

    sequence: int
    message: Message


Item = Segment | Marker | Damaged
"""What a stream holds at a place: a group of records, something else, or nothing valid."""


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream up to the message that was its last one when the view was opened."""

    name: str
    chain: Chain
    codec: PayloadCodec

    @property
    def layout(self) -> ChannelLayout:
        """The stream in the place of directories."""
        state, place = self.chain.state, Path(f"jetstream:{self.chain.stream.name}")
        identity = ChannelIdentity(self.name, state.channel_id, state.channel_id, state.made_at_microseconds)
        return ChannelLayout((place,), place, state.channel_id, identity, {}, {})

    def items(self) -> Iterator[Item]:
        """Yields what the stream holds, in order."""
        assembler = GroupAssembler()
        for sequence, encoded in self.chain.encoded_from(self.chain.state.first_sequence):
            try:
                message = Message.decode(encoded, sequence, self.chain.state.channel_id)
                if message.kind is not MessageKind.GROUP:
                    yield Marker(sequence, message)
                elif (group := assembler.add(sequence, message)) is not None:
                    yield group
            except LogCorruptError as error:
                yield Damaged(sequence, str(error))

    def checkpoints(self) -> list[Checkpoint]:
        """Returns the valid checkpoints, the newest first."""
        return list(StreamCheckpoints(self.chain, self.codec).valid_checkpoints())

    def log(self) -> StreamLog:
        """Returns the log, to be read."""
        return StreamLog(self.chain, self.codec)

    def recover(self, checkpoints: Sequence[Checkpoint] | None = None) -> Recovered:
        """Recovers the channel as a server would, or as if there were only some checkpoints; LogCorruptError."""
        log = self.log()
        found = self.checkpoints() if checkpoints is None else checkpoints
        return recover(log, _Given(found), LogSource(log), ReplayProgress(), read_only=True)


class _Given:
    """Checkpoints that were read already."""

    def __init__(self, checkpoints: Sequence[Checkpoint]) -> None:
        self._checkpoints = checkpoints

    def write(self, checkpoint: Checkpoint) -> None:
        raise AssertionError(f"nothing is written at {checkpoint.position}")

    def remove_previous(self) -> bool:
        return False

    def valid_checkpoints(self) -> Iterator[Checkpoint]:
        return iter(self._checkpoints)


@contextmanager
def stream_view(name: str, settings: EngineSettings, codec: PayloadCodec) -> Iterator[StreamView]:
    """Opens a view of a channel's stream, until the end of the block.

    Raises:
        DamagedError: There is no stream.
        UnavailableError: The engine does not respond.
    """
    try:
        engine = asyncio.run(Engine.connected(settings.servers, settings))
    except EngineError as error:
        raise UnavailableError(str(error)) from error
    try:
        limits = StreamLimits(replicas=settings.replicas, stream_bytes_max=settings.stream_bytes_max)
        stream = Stream(engine, name, limits)
        yield StreamView(name, Chain(engine, stream, engine.call(stream.state()).result()), codec)
    except StreamMissingError as error:
        raise DamagedError(f"{error}; a channel has one once a server has owned it") from error
    except EngineError as error:
        raise UnavailableError(str(error)) from error
    finally:
        engine.close()
