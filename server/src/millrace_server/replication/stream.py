"""One stream of the engine, and what its answers mean."""

import asyncio
import json
import random
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
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
from millrace_server.wal.disk import Piece
from millrace_server.wal.records import LogFailedError, LogFullError
from millrace_server.wal.segments import LogCorruptError

LOG = "log"
CHECKPOINT = "checkpoint"
"""The last parts of the subjects of a stream."""

HEADER_BYTES_MAX = 512
"""Most bytes of a message's NATS headers and subject."""

UNKNOWN_SECONDS_MAX = 300.0
"""How long the outcome of an append may stay unknown, while the engine does not answer, before the log fails."""

_RETRY_SECONDS = 0.1
_FETCHES_MAX = 8

_WRONG_LAST_SEQUENCE = 10071
# The stream's own limit, and those of the server and of the account.
_NO_ROOM = {10077, 10023, 10028, 10047, 10002}
_NAME_IN_USE = 10058


ResultT = TypeVar("ResultT")


class OvertakenError(LogFailedError):
    """Raised when another server has appended since, and so owns the channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """What a stream is created with."""

    replicas: int
    stream_bytes_max: int


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream at one moment."""

    channel_id: bytes
    made_at_microseconds: int
    first_sequence: int
    last_sequence: int
    """0 if nothing was ever appended."""
    byte_count: int


class Stream:
    """The stream of one channel. All methods are coroutines for the engine's event loop."""

    def __init__(self, engine: Engine, channel: str, limits: StreamLimits) -> None:
        self._engine = engine
        self._limits = limits
        # A stream's name may have no dots, and a channel's no equals signs.
        token = channel.replace(".", "=")
        self.name = f"MILLRACE_{token}"
        self._subject = f"millrace.{token}"

    @property
    def _jetstream(self) -> JetStreamContext:
        return self._engine.jetstream

    async def open(self) -> StreamState:
        """Returns the stream's state; creates it where there is none, and adapts its limits.

        Raises:
            EngineError: The engine refuses it, or does not answer.
            LogCorruptError: A stream of this name was not made by Millrace.
        """
        try:
            try:
                info = await self._jetstream.stream_info(self.name)
            except NotFoundError:
                info = await self._create()
            wanted = (self._limits.replicas, self._limits.stream_bytes_max)
            if (info.config.num_replicas, info.config.max_bytes) != wanted:
                info.config.num_replicas, info.config.max_bytes = wanted
                info = await self._jetstream.update_stream(info.config)
        except (nats.errors.Error, TimeoutError) as error:
            raise EngineError(
                f"stream {self.name} with {self._limits.replicas} replicas and {self._limits.stream_bytes_max} bytes: "
                f"{_reason(error)}"
            ) from error
        return self._state(info)

    async def _create(self) -> api.StreamInfo:
        config = api.StreamConfig(
            name=self.name,
            subjects=[f"{self._subject}.{LOG}", f"{self._subject}.{CHECKPOINT}"],
            storage=api.StorageType.FILE,
            num_replicas=self._limits.replicas,
            max_bytes=self._limits.stream_bytes_max,
            # A full stream refuses what is new, rather than forget what is old.
            discard=api.DiscardPolicy.NEW,
            retention=api.RetentionPolicy.LIMITS,
            allow_direct=True,
            metadata={
                "millrace_channel_id": secrets.token_bytes(16).hex(),
                "millrace_made_at_microseconds": str(time.time_ns() // 1000),
            },
        )
        try:
            return await self._jetstream.add_stream(config)
        except APIError as error:
            if error.err_code != _NAME_IN_USE:
                raise
            # Another server has just created it.
            return await self._jetstream.stream_info(self.name)

    async def state(self) -> StreamState:
        """Returns the stream's state; raises EngineError where the engine does not answer."""
        try:
            return self._state(await self._jetstream.stream_info(self.name))
        except (nats.errors.Error, TimeoutError) as error:
            raise EngineError(f"stream {self.name}: {_reason(error)}") from error

    def _state(self, info: api.StreamInfo) -> StreamState:
        metadata = info.config.metadata or {}
        try:
            channel_id = bytes.fromhex(metadata["millrace_channel_id"])
            made_at = int(metadata["millrace_made_at_microseconds"])
        except (KeyError, ValueError):
            raise LogCorruptError(f"stream {self.name}: was not made by Millrace") from None
        state = info.state
        return StreamState(channel_id, made_at, state.first_seq, state.last_seq, state.bytes)

    async def append(self, subject: str, pieces: Sequence[Piece], sequence: int) -> None:
        """Appends a message, given in pieces, at a sequence. Once this returns, a quorum of the replicas has it.

        While the engine does not answer, the outcome is unknown: the place is read until it is known.

        Raises:
            OvertakenError: Another server's message is there, so this one never will be.
            LogFullError: The stream has no room, and does not have it.
            LogFailedError: The stream was set back, or the outcome is unknown for too long.
        """
        give_up_at = time.monotonic() + UNKNOWN_SECONDS_MAX
        may_arrive_later = False
        while time.monotonic() < give_up_at:
            refusal = None
            try:
                await self._publish(subject, pieces, sequence)
            except APIError as error:
                refusal = error
            except (nats.errors.Error, TimeoutError, OSError):
                may_arrive_later = True
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return
            try:
                if await self._has(pieces, sequence):
                    return
            except EngineError:
                await asyncio.sleep(_RETRY_SECONDS * (0.5 + random.random()))  # noqa: S311 - spreads load
                continue
            if refusal is not None and refusal.err_code in _NO_ROOM and not may_arrive_later:
                raise LogFullError(f"the stream has no room: {refusal.description}")
        raise LogFailedError(f"stream {self.name}: the engine has not answered for {UNKNOWN_SECONDS_MAX:g} s")

    async def _publish(self, subject: str, pieces: Sequence[Piece], sequence: int) -> None:
        expected = {"Nats-Expected-Stream": self.name, "Nats-Expected-Last-Sequence": str(sequence - 1)}
        answer = json.loads(await self._engine.nats.ask(f"{self._subject}.{subject}", expected, pieces, CALL_SECONDS))
        if "error" in answer:
            raise APIError.from_error(answer["error"])

    async def _has(self, pieces: Sequence[Piece], sequence: int) -> bool:
        """Whether a message is stored at a sequence; False if nothing is, so that it can be tried again."""
        found = await self.get(sequence)
        if found is None:
            last = (await self.state()).last_sequence
            if last < sequence - 1:
                raise LogFailedError(f"stream {self.name}: was set back to message {last}; it had {sequence - 1}")
            if last < sequence:
                return False
            # An attempt that was given up may have arrived meanwhile.
            found = await self.get(sequence)
        if found != b"".join(pieces):
            raise OvertakenError(f"stream {self.name}: another server has appended message {sequence}")
        return True

    async def get(self, sequence: int) -> bytes | None:
        """Returns what the stream's leader has at a sequence; None if nothing is there."""
        try:
            return (await self._jetstream.get_msg(self.name, sequence)).data or b""
        except NotFoundError:
            return None
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise EngineError(f"stream {self.name}: {_reason(error)}") from error

    async def patiently(self, attempt: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Returns the result of a call, which is repeated while the engine does not answer, for some minutes."""
        give_up_at = time.monotonic() + UNKNOWN_SECONDS_MAX
        while True:
            try:
                return await attempt()
            except EngineError:
                if time.monotonic() >= give_up_at:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)

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
        """Returns the messages from a sequence up to another (excluded), with their sequences; some may be missing."""
        found: list[tuple[int, bytes]] = []
        while first < end:
            batch = await self._read_batch(first, end - first) or await self.patiently(partial(self._next, first))
            if not batch:
                break
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
        # A connection that was lost meanwhile may have left something out; the leader knows.
        return list(_contiguous(found, first))

    async def _next(self, sequence: int) -> list[tuple[int, bytes]]:
        """Returns the first message at or behind a sequence as the stream's leader knows it."""
        try:
            found = await self._jetstream.get_msg(self.name, sequence, f"{self._subject}.>", next=True)
        except NotFoundError:
            return []
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise EngineError(f"stream {self.name}: {_reason(error)}") from error
        assert found.seq is not None, "a stored message has a sequence"
        return [(found.seq, found.data or b"")]

    async def last_checkpoint(self) -> int:
        """Returns the sequence of the last message of a checkpoint; 0 if there is none."""
        try:
            found = await self._jetstream.get_last_msg(self.name, f"{self._subject}.{CHECKPOINT}")
        except NotFoundError:
            return 0
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise EngineError(f"stream {self.name}: {_reason(error)}") from error
        assert found.seq is not None, "a stored message has a sequence"
        return found.seq

    async def purge_before(self, sequence: int, subject: str | None = None) -> StreamState:
        """Removes the messages before a sequence, of one subject or of all, and returns the state behind that."""
        try:
            await self._jetstream.purge_stream(self.name, sequence, f"{self._subject}.{subject}" if subject else None)
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise EngineError(f"stream {self.name}: {_reason(error)}") from error
        return await self.state()

    async def delete(self) -> None:
        """Deletes the stream, with everything in it; raises EngineError where the engine does not answer."""
        try:
            await self._jetstream.delete_stream(self.name)
        except NotFoundError:
            pass
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise EngineError(f"stream {self.name}: {_reason(error)}") from error


def _contiguous(found: Sequence[tuple[int, bytes]], first: int) -> Iterator[tuple[int, bytes]]:
    """Yields messages up to the first gap, behind which the leader is asked."""
    for (sequence, encoded), expected in zip(found, count(first), strict=False):
        if sequence != expected:
            return
        yield sequence, encoded


def _reason(error: BaseException) -> str:
    return (error.description if isinstance(error, APIError) else "") or str(error) or type(error).__name__
