"""A read-only view of a channel's log in a stream of an engine. It appends nothing, and fences no owner."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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

Item = Segment | Message | LogCorruptError
"""A group of records, another message, or why there is no valid message."""


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream, up to the last message that it had when the view was opened."""

    name: str
    chain: Chain
    codec: PayloadCodec

    @property
    def layout(self) -> ChannelLayout:
        """The layout, with the stream in place of directories."""
        state, place = self.chain.state, Path(f"jetstream:{self.chain.stream.name}")
        identity = ChannelIdentity(self.name, state.channel_id, state.channel_id, state.made_at_microseconds)
        return ChannelLayout((place,), place, state.channel_id, identity, {}, {})

    def items(self) -> Iterator[tuple[int, Item]]:
        """Yields what the stream holds in order, each with the sequence of its message, or of the first of several."""
        assembler = GroupAssembler()
        for sequence, encoded in self.chain.encoded_from(self.chain.state.first_sequence):
            try:
                message = Message.decode(encoded, sequence, self.chain.state.channel_id)
                if message.kind is not MessageKind.GROUP:
                    yield sequence, message
                elif (group := assembler.add(sequence, message)) is not None:
                    yield group.segment_id, group
            except LogCorruptError as error:
                yield sequence, error

    def checkpoints(self) -> list[Checkpoint]:
        """Returns the valid checkpoints, the newest first."""
        return list(StreamCheckpoints(self.chain, self.codec).valid_checkpoints())

    def recover(self, checkpoints: Sequence[Checkpoint] | None = None) -> Recovered:
        """Recovers the channel as a server would, or from the given checkpoints only; raises LogCorruptError."""
        log = StreamLog(self.chain, self.codec)
        found = self.checkpoints() if checkpoints is None else checkpoints
        return recover(log, _Given(found), LogSource(log), ReplayProgress(), read_only=True)


class _Given:
    """Checkpoints that have been read already."""

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
