"""Logs of channels in streams of a real engine."""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from millrace_server.histograms import Histograms
from millrace_server.replication.chain import Chain
from millrace_server.replication.connection import Connection
from millrace_server.replication.engine import Engine
from millrace_server.replication.engine_access import EngineAccess
from millrace_server.replication.lone_connection import cancel
from millrace_server.replication.stream import Stream, StreamLimits
from millrace_server.replication.stream_checkpoints import StreamCheckpoints
from millrace_server.replication.stream_log import StreamLog
from millrace_server.wal.checkpoints import Checkpoint
from millrace_server.wal.format import Kind
from millrace_server.wal.log import LogRecord
from millrace_server.wal.payload_codec import Payload, PayloadCodec
from millrace_server.wal.records import LogPosition, Submission
from millrace_server.wal.writer_threads import WriterThreads
from tests.waiting import until

LIMITS = StreamLimits(replicas=1, stream_bytes_max=1 << 28)
_numbers = itertools.count()


def new_name() -> str:
    """A channel that no other test of the process uses."""
    return f"orders.{next(_numbers)}"


@asynccontextmanager
async def engine_at(*urls: str, access: EngineAccess | None = None, has_lone: bool = True) -> AsyncIterator[Engine]:
    """A connection to an engine, until the end of the block, with the one for lone appends that servers have."""
    engine = await Engine.connected(urls, access)
    try:
        if has_lone:
            engine.connect_lone()
            assert engine.lone is not None
            await engine.lone._opening
        yield engine
    finally:
        await asyncio.to_thread(engine.close)


@contextmanager
def connecting_until(problem: str) -> Iterator[None]:
    """Lets connections that are refused be given up once their last problem is this, rather than after seconds."""
    open_connection, is_it = Connection.open, re.compile(problem).search

    async def open_until_refused(connection: Connection, *arguments: Any) -> None:
        opening = asyncio.ensure_future(open_connection(connection, *arguments))
        try:
            await until(lambda: connection.last_error is not None and is_it(str(connection.last_error)) is not None)
        finally:
            await cancel(opening)
        raise TimeoutError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "open", open_until_refused)
        yield


@dataclass
class OwnedLog:
    """A log whose owner is this process, replayed and started."""

    chain: Chain
    log: StreamLog
    checkpoints: StreamCheckpoints
    records: list[LogRecord]
    """What was replayed."""
    checkpoint: Checkpoint | None
    """Where replay began."""

    @classmethod
    async def opened(
        cls,
        engine: Engine,
        name: str,
        *,
        codec: PayloadCodec | None = None,
        limits: StreamLimits = LIMITS,
        sequence_known: int = 0,
    ) -> "OwnedLog":
        """Takes the channel over."""

        def take_over() -> OwnedLog:
            chain = Chain.opened(engine, Stream(engine, name, limits), may_create=not sequence_known)
            chain.fence("127.0.0.1:1", sequence_known)
            payload_codec = codec or PayloadCodec()
            log, checkpoints = StreamLog(chain, payload_codec), StreamCheckpoints(chain, payload_codec)
            checkpoint = next(checkpoints.valid_checkpoints(), None)
            records = list(log.replay(checkpoint.position if checkpoint else None))
            log.start(WriterThreads(), Histograms())
            return OwnedLog(chain, log, checkpoints, records, checkpoint)

        return await asyncio.to_thread(take_over)

    @property
    def payloads(self) -> list[bytes]:
        """What was replayed."""
        return [bytes(record.payload) for record in self.records]

    def submit(self, *bodies: Payload, **options: Any) -> "asyncio.Future[Submission]":
        """Submits records; the future has the submission, or the error."""
        responded: asyncio.Future[Submission] = asyncio.get_running_loop().create_future()

        def done(submission: Submission, error: Exception | None) -> None:
            if error is None:
                responded.set_result(submission)
            else:
                responded.set_exception(error)

        begins_segment = not self.log.newest_segment_id and self.chain.last_sequence == self.chain.epoch
        options.setdefault("begins_segment", begins_segment)
        self.log.submit([(Kind.PUT, [body]) for body in bodies], needs_sync=True, done=done, **options)
        return responded

    @contextmanager
    def together(self) -> Iterator[None]:
        """Lets one group have all that is submitted meanwhile."""
        writer = self.log._writer
        assert writer is not None
        # So none is appended alone, and the thread takes none before all are there.
        with self.chain.turn, writer._lock:
            yield

    async def read(self, *submissions: Submission) -> list[bytes]:
        """Reads the first record of each submission back."""
        locations = [submission.locations[0] for submission in submissions]
        found = await asyncio.to_thread(self.log.read_run, locations)
        assert found is not None
        return [bytes(payload) for payload in found]

    async def write_checkpoint(self, position: LogPosition | None, state: bytes) -> None:
        """Writes a checkpoint."""
        assert position is not None
        await asyncio.to_thread(self.checkpoints.write, Checkpoint(position, state))

    async def close(self) -> None:
        """Stops the log's thread."""
        await asyncio.to_thread(self.log.close)


async def set_back(engine: Engine, name: str, last_sequence: int) -> None:
    """Lets a channel's stream end with an earlier message, as one that was restored from a backup does."""

    async def restore() -> None:
        stream = Stream(engine, name, LIMITS)
        config = (await engine.jetstream.stream_info(stream.name)).config
        kept = [await engine.jetstream.get_msg(stream.name, sequence) for sequence in range(1, last_sequence + 1)]
        await engine.jetstream.delete_stream(stream.name)
        await engine.jetstream.add_stream(config)
        for message in kept:
            assert message.subject is not None
            await engine.jetstream.publish(message.subject, message.data or b"")

    await asyncio.wrap_future(engine.call(restore()))


@asynccontextmanager
async def owned_log(engine: Engine, name: str, **options: Any) -> AsyncIterator[OwnedLog]:
    """A channel's log, owned by this process, until the end of the block."""
    opened = await OwnedLog.opened(engine, name, **options)
    try:
        yield opened
    finally:
        await opened.close()
