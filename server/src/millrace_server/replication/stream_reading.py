"""Reading one stream of the engine."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, TypeVar

import nats.errors
from nats.aio.msg import Msg
from nats.js import api
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from millrace_server.replication.engine import CALL_SECONDS, Engine, EngineError
from millrace_server.wal.segments import LogCorruptError

LOG = "log"
CHECKPOINT = "checkpoint"
"""The last parts of the subjects of a stream."""

MISSING_SECONDS_MAX = 10.0
"""How long a stream, or its newest messages, may seem to be missing, one response of the engine after the other:
servers of the engine that start, and new leaders, may not know of them yet."""

UNKNOWN_SECONDS_MAX = 300.0
"""How long the outcome of an append, or a read, may stay unknown while the engine does not respond."""

RETRY_SECONDS = 0.1
_FETCHES_MAX = 8

CHANNEL_ID, MADE_AT, MIGRATION = "millrace_channel_id", "millrace_made_at_microseconds", "millrace_migration"
"""Keys of a stream's metadata."""

_NAME_PREFIX = "MILLRACE_"
_STREAM_MISSING = 10059

ResultT = TypeVar("ResultT")


class StreamMissingError(EngineError):
    """Raised when the engine has no such stream, or says so while it starts."""


class MigratingError(EngineError):
    """Raised when a channel is being moved between a stream and files, or was moved to files."""


class SetBackError(LogCorruptError):
    """Raised when the stream lacks messages that it had, or its new leader does not know of them yet."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream at one moment."""

    channel_id: bytes
    made_at_microseconds: int
    first_sequence: int
    last_sequence: int
    """0 if nothing was ever appended."""
    byte_count: int
    migration: str = ""
    """How far a migration is, during which no server owns the channel; empty: none is going on."""


class StreamReader:
    """The stream of one channel, to be read. All methods are coroutines for the engine's event loop."""

    def __init__(self, engine: Engine, channel: str) -> None:
        self._engine = engine
        # A stream's name may have no dots, and a channel's no equals signs.
        token = channel.replace(".", "=")
        self.name = f"{_NAME_PREFIX}{token}"
        self._subject = f"millrace.{token}"

    @property
    def _jetstream(self) -> JetStreamContext:
        return self._engine.jetstream

    async def state(self) -> StreamState:
        """Returns the stream's state.

        Raises:
            EngineError: The engine does not respond.
            LogCorruptError: A stream of this name was not made by Millrace.
            StreamMissingError: There is none.
        """
        return self._state_in(await self._info())

    async def _info(self) -> api.StreamInfo:
        with self._errors():
            return await self._jetstream.stream_info(self.name)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raises EngineError, or StreamMissingError, in place of the errors of the connection."""
        try:
            yield
        except EngineError:
            # It says which stream it concerns.
            raise
        except (nats.errors.Error, TimeoutError, OSError) as error:
            is_missing = isinstance(error, APIError) and error.err_code == _STREAM_MISSING
            kind = StreamMissingError if is_missing else EngineError
            raise kind(f"stream {self.name}: {reason_of(error)}") from error

    def _state_in(self, info: api.StreamInfo) -> StreamState:
        metadata = info.config.metadata or {}
        try:
            channel_id = bytes.fromhex(metadata[CHANNEL_ID])
            made_at = int(metadata[MADE_AT])
        except (KeyError, ValueError):
            raise LogCorruptError(f"stream {self.name}: was not created by Millrace") from None
        state = info.state
        migration = metadata.get(MIGRATION, "")
        return StreamState(channel_id, made_at, state.first_seq, state.last_seq, state.bytes, migration)

    async def ending_behind(self, sequence: int) -> int:
        """Returns the last sequence, which must not be before this one; raises EngineError or SetBackError."""

        async def last() -> int:
            found = (await self.state()).last_sequence
            if found < sequence:
                raise SetBackError(
                    f"stream {self.name}: ends with message {found}; there was a message {sequence}, so it was lost "
                    "or set back"
                )
            return found

        return await self.patiently(last)

    async def get(self, sequence: int) -> bytes | None:
        """Returns what the stream's leader has at a sequence; None if nothing is there."""
        with self._errors(), _none_if_not_found():
            return (await self._jetstream.get_msg(self.name, sequence)).data or b""
        return None

    async def patiently(self, attempt: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Returns the result of a call, which is repeated until it succeeds, or its failure is final."""
        patience = Patience()
        while True:
            try:
                return await attempt()
            except (EngineError, SetBackError) as error:
                if patience.is_over(error):
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    async def fetch(self, sequences: Sequence[int]) -> list[bytes | None]:
        """Returns the messages at some sequences, from whichever replica is near, a few at a time."""
        allowed = asyncio.Semaphore(_FETCHES_MAX)

        async def fetch_one(sequence: int) -> bytes | None:
            async with allowed:
                try:
                    return (await self._jetstream.get_msg(self.name, sequence, direct=True)).data or b""
                except (nats.errors.Error, TimeoutError, OSError):
                    # A replica may lag behind: the leader knows.
                    return await self.patiently(partial(self.get, sequence))

        return list(await asyncio.gather(*map(fetch_one, sequences)))

    async def read(self, first: int, end: int) -> list[tuple[int, bytes]]:
        """Returns the messages from a sequence up to another (excluded), with their sequences; some may be missing.

        Raises:
            EngineError: The engine does not respond.
            SetBackError: The stream ends before the first one, though it had more.
        """
        found: list[tuple[int, bytes]] = []
        while first < end:
            batch = await self._read_batch(first, end - first) or [await self.patiently(partial(self._next, first))]
            found += [message for message in batch if message[0] < end]
            first = batch[-1][0] + 1
        return found

    async def _read_batch(self, first: int, message_count: int) -> list[tuple[int, bytes]]:
        """Returns some of the messages from a sequence on, from whichever replica is near; it may lag behind."""
        found: list[tuple[int, bytes]] = []
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def receive(message: Msg) -> None:
            headers = message.headers or {}
            if "Nats-Sequence" in headers:
                found.append((int(headers["Nats-Sequence"]), message.data))
            elif not ended.done():
                ended.set_result(None)

        client = self._engine.nats
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox, cb=receive)
        try:
            request = json.dumps({"seq": first, "batch": message_count}).encode()
            await client.publish(f"$JS.API.DIRECT.GET.{self.name}", request, inbox)
            await asyncio.wait_for(ended, CALL_SECONDS)
        except (nats.errors.Error, TimeoutError, OSError):
            # Use what has arrived so far.
            pass
        finally:
            await subscription.unsubscribe()
        # A connection that was lost in the meantime may have left something out; the leader knows.
        return list(_contiguous(found, first))

    async def _next(self, sequence: int) -> tuple[int, bytes]:
        """Returns the first message at or behind a sequence as the stream's leader knows it."""
        with self._errors(), _none_if_not_found():
            found = await self._jetstream.get_msg(self.name, sequence, f"{self._subject}.>", next=True)
            assert found.seq is not None, "a stored message has a sequence"
            return found.seq, found.data or b""
        raise SetBackError(f"stream {self.name}: has no message {sequence}, nor any after it; it had")

    async def last_checkpoint(self) -> int:
        """Returns the sequence of the last message of a checkpoint; 0 if there is none."""
        with self._errors(), _none_if_not_found():
            found = await self._jetstream.get_last_msg(self.name, f"{self._subject}.{CHECKPOINT}")
            assert found.seq is not None, "a stored message has a sequence"
            return found.seq
        return 0


def _contiguous(found: Sequence[tuple[int, bytes]], first: int) -> Iterator[tuple[int, bytes]]:
    """Yields messages up to the first gap, behind which the leader is asked."""
    for (sequence, encoded), expected in zip(found, count(first), strict=False):
        if sequence != expected:
            return
        yield sequence, encoded


@contextmanager
def _none_if_not_found() -> Iterator[None]:
    """Ends the block where there is no such message; a missing stream is another matter."""
    try:
        yield
    except NotFoundError as error:
        if error.err_code == _STREAM_MISSING:
            raise


class Patience:
    """How long one call is repeated; see `MISSING_SECONDS_MAX` and `UNKNOWN_SECONDS_MAX`."""

    def __init__(self) -> None:
        self._began_at = time.monotonic()
        self._missing_since: float | None = None

    def is_over(self, error: Exception) -> bool:
        """Whether a failure, behind those before it, will not pass."""
        now = time.monotonic()
        if not isinstance(error, StreamMissingError | SetBackError):
            # A leader that was elected since may not know of all messages yet, however long the election took.
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = now
        is_lost = self._missing_since is not None and now - self._missing_since >= MISSING_SECONDS_MAX
        return is_lost or now - self._began_at >= UNKNOWN_SECONDS_MAX


def reason_of(error: BaseException) -> str:
    """Returns what the engine says of a failure, or else its name."""
    return (error.description if isinstance(error, APIError) else "") or str(error) or type(error).__name__
