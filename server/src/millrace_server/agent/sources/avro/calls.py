"""The handling of calls of Flume's protocol."""

import asyncio
from collections.abc import AsyncIterator

import structlog

from millrace_server.agent.avro_rpc.calls import BadCallError, error_response, read_call, status_response
from millrace_server.agent.avro_rpc.event_reader import EventReader
from millrace_server.agent.avro_rpc.handshakes import ServerHandshakes
from millrace_server.agent.avro_rpc.protocol import APPEND, APPEND_BATCH, PeerProtocol, Status
from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.events import EventTable
from millrace_server.agent.rate_limited_log import FailureLog
from millrace_server.agent.sources.avro.config import AvroSourceConfig
from millrace_server.agent.sources.avro.request_memory import RequestMemory
from millrace_server.errors import MillraceError, TxnCapacityError

_STORED_AT_ONCE_MAX = 16
"""The number of requests whose events are decoded at the same time: hostile bytes may take many times their size as
objects."""

_log = structlog.stdlib.get_logger(__name__)


class CallHandler:
    """Stores the events of calls; the connections of a source share it."""

    def __init__(self, source: str, config: AvroSourceConfig, writer: ChannelWriter) -> None:
        self._source = source
        self._config = config
        self._writer = writer
        self._slots = asyncio.Semaphore(_STORED_AT_ONCE_MAX)
        self._failure_log = FailureLog()
        self.handshakes = ServerHandshakes()
        self.memory = RequestMemory(config.inflight_bytes_max)

    def log_problem(self, client: str, message: str, problem: object) -> None:
        """Logs a problem with a client, at a limited rate."""
        if self._failure_log.admits(f"{message}: {problem}"):
            suppressed_count, self._failure_log.suppressed_count = self._failure_log.suppressed_count, 0
            _log.warning(message, source=self._source, client=client, reason=str(problem), suppressed=suppressed_count)

    def log_closed(self, client: str, reason: object) -> None:
        """Logs that a connection was closed because of an error or a limit."""
        self.log_problem(client, "a connection was closed", reason)

    async def respond(self, payload: bytes, position: int, peer: PeerProtocol, client: str) -> bytes:
        """Stores the events of the call at a position, and returns its response, which is empty for a ping."""
        try:
            call = read_call(payload, position)
            if not call.message:
                return b""
            _check_message(call.message, peer)
            reader = EventReader(payload, call.position, is_array=call.message == APPEND_BATCH)
            return status_response(await self._store(reader, client))
        except BadCallError as error:
            self.log_problem(client, "a call was refused", error)
            return error_response(f"BAD_ARGUMENT: {error}")
        except Exception as error:  # noqa: BLE001 - a bug, or a user-defined interceptor; other calls continue
            self.log_unexpected(error)
            return error_response("INTERNAL: the source itself failed; its log has the reason")

    def log_unexpected(self, error: Exception) -> None:
        """Logs an error that is a bug, possibly in a user-defined interceptor."""
        if self._failure_log.admits(f"{type(error).__name__}: {error}"):
            _log.error("a call failed unexpectedly", source=self._source, exc_info=error)

    async def _store(self, reader: EventReader, client: str) -> Status:
        try:
            async with asyncio.timeout(self._config.store_seconds_max), self._slots:
                async for table in _tables(reader):
                    await self._deliver(table)
        except MillraceError as error:
            # The writer has shown it in the source's state.
            self.log_problem(client, "a call was refused with FAILED", f"{error.reason}: {error}")
            return Status.FAILED
        except TimeoutError:
            seconds = self._config.store_seconds_max
            self.log_problem(client, "a call was refused with FAILED", f"it was not stored after {seconds:g} seconds")
            return Status.FAILED
        # Problems that were already logged are logged again, at the limited rate.
        self._failure_log.end_outage()
        return Status.OK

    async def _deliver(self, table: EventTable) -> None:
        try:
            await self._writer.try_deliver(table, self._writer.next_stamp(table.count))
        except TxnCapacityError:
            # Interceptors may have made the batch too large for a transaction. Its sender would repeat it forever.
            if table.count == 1:
                raise
            middle = table.count // 2
            await self._deliver(table.part(0, middle))
            await self._deliver(table.part(middle, table.count))


def _check_message(message: str, peer: PeerProtocol) -> None:
    if message not in {APPEND, APPEND_BATCH}:
        raise BadCallError(f"there is no message {message!r}; Flume's are {APPEND} and {APPEND_BATCH}")
    if message not in peer.requests:
        raise BadCallError(f"the client's protocol {peer.name[:100]!r} defines {message} differently from Flume")


async def _tables(reader: EventReader) -> AsyncIterator[EventTable]:
    """Yields the events of a call, after checking that all of its bytes are valid. Raises BadCallError."""
    if reader.has_one_table:
        for table in list(reader.tables()):
            yield table
        return
    # All events together might take too much memory, so they are decoded twice.
    for _ in reader.tables():
        await asyncio.sleep(0)
    for table in reader.tables():
        yield table
