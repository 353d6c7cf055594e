"""The stream of a replicated channel, from its opening to its end."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import structlog

from millrace_server.channels.channel_file import ChannelIdentity
from millrace_server.channels.config import LogChannelConfig
from millrace_server.channels.disk_space import STREAM, DiskAccount, DiskSpace
from millrace_server.channels.log_columns import LogColumns, RecentMemory
from millrace_server.channels.log_store import LogStore, OpenLog, make_codec, start_store
from millrace_server.channels.recovery import ReplayProgress, recover
from millrace_server.histograms import Histograms
from millrace_server.replication.chain import Chain
from millrace_server.replication.engine import Engine
from millrace_server.replication.stream import Stream, StreamLimits
from millrace_server.replication.stream_checkpoints import StreamCheckpoints
from millrace_server.replication.stream_log import StreamLog
from millrace_server.wal.writer_threads import WriterThreads

_log = structlog.stdlib.get_logger(__name__)

_OPENERS_MAX = 16


@dataclass(frozen=True, slots=True)
class _Stream:
    """A channel's stream as what stores its log, and as the space that it has."""

    identity: ChannelIdentity
    chain: Chain
    limits: StreamLimits

    def close(self) -> None:
        """Does nothing: the connection serves other channels too."""

    def mark_deleted(self) -> None:
        """Deletes the stream, which leaves nothing behind."""
        self.chain.delete()

    def remove(self) -> None:
        """Deletes the stream where that has not happened yet."""
        self.chain.delete()

    def free_bytes(self, _directory: Path) -> int:
        """Returns how much the stream still takes."""
        return max(self.limits.stream_bytes_max - self.chain.byte_count, 0)


class StreamEnd(NamedTuple):
    """Where a stream ended when this server left it."""

    channel_id: bytes = b""
    sequence: int = 0


class TakeOver(NamedTuple):
    """One server's attempt to own a channel."""

    limits: StreamLimits
    """Those of the stream from now on."""
    address: str
    """Where clients reach this server."""
    sequence_known: int = 0
    """The last message that the stream is known to have had: one that ends before it was lost or set back."""
    left_at: StreamEnd = StreamEnd()
    """Where this server left the stream, also if it could not note that. Another stream of the name is a new one."""

    def last_sequence_of(self, channel_id: bytes) -> int:
        """Returns the last message that the stream of a channel with this id must have."""
        return max(self.sequence_known, self.left_at.sequence if self.left_at.channel_id == channel_id else 0)


class OpenStream(NamedTuple):
    """An open channel whose log is in a stream, and the end of the stream."""

    store: LogStore
    chain: Chain

    @property
    def end(self) -> StreamEnd:
        """Where the stream ends, as far as this server knows."""
        return StreamEnd(self.chain.state.channel_id, self.chain.last_sequence)

    async def abandon(self) -> None:
        """Closes the log without another append, as another server may own the channel."""
        self.chain.abandon()
        await self.store.close(writes_checkpoint=False)


class StreamStores:
    """Opens the streams of channels in one engine."""

    def __init__(self, engine: Engine, histograms: Histograms | None = None) -> None:
        self._engine = engine
        self._histograms = histograms or Histograms()
        self._recent = RecentMemory()
        self._writers = WriterThreads()
        # Their own threads: reading logs back takes long, and reads of other channels must not wait behind it.
        self._openers = ThreadPoolExecutor(_OPENERS_MAX, thread_name_prefix="channel-opener")

    async def open(
        self,
        name: str,
        config: LogChannelConfig,
        attempt: TakeOver,
        progress: ReplayProgress,
        on_change: Callable[[str], None],
    ) -> OpenStream:
        """Takes a channel over, or creates its stream, and starts its log.

        Args:
            name: The channel's name.
            config: Its configuration.
            attempt: What this server tells of itself, and knows of former owners.
            progress: Updated during recovery.
            on_change: Called with a sentence for the server's log if the log later fails, stalls or is found damaged.

        Raises:
            KeyFileError, KeyMissingError, LogCorruptError, UnknownVersionError, OSError: It cannot be opened.
            DiskFullError, ChannelLogFailedError: A new log could not be written, or another server was faster.
        """
        started = time.monotonic()
        loop = asyncio.get_running_loop()
        take_over = loop.run_in_executor(self._openers, self._take_over, name, config, attempt, progress)
        opened, chain = await take_over
        store = await start_store(name, config, opened, self._histograms, on_change)
        _log.info(
            "channel taken over",
            channel=name,
            epoch=chain.epoch,
            events=opened.recovered.queue.event_count,
            replayed_records=opened.recovered.replayed_records,
            seconds=round(time.monotonic() - started, 3),
        )
        return OpenStream(store, chain)

    async def delete(self, name: str, limits: StreamLimits) -> None:
        """Deletes a channel's stream; raises EngineError where the engine does not respond."""
        await asyncio.wrap_future(self._engine.call(Stream(self._engine, name, limits).delete()))

    def _take_over(
        self, name: str, config: LogChannelConfig, attempt: TakeOver, progress: ReplayProgress
    ) -> tuple[OpenLog, Chain]:
        """Runs on a thread, since it blocks on the engine."""
        codec = make_codec(config)
        stream = Stream(self._engine, name, attempt.limits)
        chain = Chain.opened(self._engine, stream, may_create=not attempt.sequence_known)
        chain.fence(attempt.address, attempt.last_sequence_of(chain.state.channel_id))
        if config.byte_capacity > attempt.limits.stream_bytes_max:
            _log.warning(
                "a channel's stream is smaller than its byte_capacity: puts may be refused as DISK_FULL before that",
                channel=name,
                byte_capacity=config.byte_capacity,
                stream_bytes_max=attempt.limits.stream_bytes_max,
            )
        if chain.byte_count > attempt.limits.stream_bytes_max:
            _log.warning(
                "a channel's stream is larger than its stream_bytes_max, which is set once it is smaller; until then "
                "puts are refused as DISK_FULL",
                channel=name,
                stream_bytes=chain.byte_count,
                stream_bytes_max=attempt.limits.stream_bytes_max,
            )
        log, checkpoints = StreamLog(chain, codec), StreamCheckpoints(chain, codec)
        columns = LogColumns(log, self._recent)
        recovered = recover(log, checkpoints, columns, progress)
        columns.first_segment_id = log.first_segment_id
        log.start(self._writers, self._histograms)
        channel_id = chain.state.channel_id
        identity = ChannelIdentity(name, channel_id, channel_id, chain.state.made_at_microseconds)
        holder = _Stream(identity, chain, attempt.limits)
        disk_space = DiskSpace(
            lambda _: DiskAccount(holder, time.monotonic), [Path(stream.name)], time.monotonic, medium=STREAM
        )
        return OpenLog(holder, log, checkpoints, columns, disk_space, recovered), chain
