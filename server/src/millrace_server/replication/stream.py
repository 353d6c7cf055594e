"""One stream of the engine, and what its responses mean."""

import asyncio
import json
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

import nats.errors
from nats.js import api
from nats.js.errors import APIError, NotFoundError

from millrace_server.replication.engine import CALL_SECONDS, Engine, EngineError
from millrace_server.replication.stream_reading import (
    CHANNEL_ID,
    CHECKPOINT,
    LOG,
    MADE_AT,
    MIGRATION,
    RETRY_SECONDS,
    MigratingError,
    Patience,
    SetBackError,
    StreamMissingError,
    StreamReader,
    StreamState,
    reason_of,
)
from millrace_server.wal.disk import Piece
from millrace_server.wal.records import LogFailedError, LogFullError, LogTakenOverError
from millrace_server.wal.segments import LogCorruptError

HEADER_BYTES_MAX = 512
"""Most bytes of a message's NATS headers and subject."""

# The stream's own limit, and those of the server and of the account.
_NO_SPACE = {10077, 10023, 10028, 10047, 10002}
_NAME_IN_USE = 10058
_UNLIMITED = -1

_FILLED_SHARE_MAX = 0.9
"""A stream that fills a lower limit further than this keeps the former one, so that its channel can be taken over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """What a stream is created with."""

    replicas: int
    stream_bytes_max: int


class Stream(StreamReader):
    """The stream of one channel. All methods are coroutines for the engine's event loop."""

    def __init__(self, engine: Engine, channel: str, limits: StreamLimits) -> None:
        super().__init__(engine, channel)
        self._limits = limits

    async def open(self, *, may_create: bool = True) -> StreamState:
        """Returns the stream's state; creates it where there is none, and adapts its limits as far as it fits them.

        Args:
            may_create: False for a channel that had a stream: its loss must not pass in silence.

        Raises:
            EngineError: The engine refuses it, or does not respond.
            LogCorruptError: A stream of this name was not made by Millrace, or there is none, and there must be one.
            MigratingError: It is none that a server may own now.
        """
        try:
            info = await self.patiently(self._info) if not may_create else await self._info()
        except StreamMissingError as error:
            if not may_create:
                raise LogCorruptError(f"stream {self.name}: is missing, and the channel had one") from error
            info = await self._create({})
        if state := (info.config.metadata or {}).get(MIGRATION):
            raise MigratingError(
                f"stream {self.name}: `millraced migrate` has marked it as {state!r}; run it to the end"
            )
        wanted = (self._limits.replicas, self._bytes_max(info))
        if (info.config.num_replicas, info.config.max_bytes) != wanted:
            info.config.num_replicas, info.config.max_bytes = wanted
            with self._errors():
                try:
                    info = await self._jetstream.update_stream(info.config)
                except APIError as error:
                    raise await self._refused(error) from error
        return self._state_in(info)

    def _bytes_max(self, info: api.StreamInfo) -> int:
        """Returns the limit to set: the one in force as long as the stream holds too much for a lower one."""
        limit = self._limits.stream_bytes_max
        in_force = info.config.max_bytes or _UNLIMITED
        fits = info.state.bytes <= limit * _FILLED_SHARE_MAX
        return limit if fits or 0 <= in_force < limit else in_force

    async def create(self, channel_id: bytes, made_at_microseconds: int, migration: str) -> StreamState:
        """Creates the stream of a channel that exists elsewhere, marked, so that no server owns it; EngineError."""
        identity = {CHANNEL_ID: channel_id.hex(), MADE_AT: str(made_at_microseconds), MIGRATION: migration}
        return self._state_in(await self._create(identity))

    async def mark(self, migration: str) -> None:
        """Marks how far a migration is; raises EngineError."""
        info = await self._info()
        metadata = {key: value for key, value in (info.config.metadata or {}).items() if key != MIGRATION}
        info.config.metadata = {**metadata, MIGRATION: migration} if migration else metadata
        with self._errors():
            await self._jetstream.update_stream(info.config)

    async def _create(self, metadata: Mapping[str, str]) -> api.StreamInfo:
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
                CHANNEL_ID: secrets.token_bytes(16).hex(),
                MADE_AT: str(time.time_ns() // 1000),
                **metadata,
            },
        )
        with self._errors():
            try:
                return await self._jetstream.add_stream(config)
            except APIError as error:
                if error.err_code != _NAME_IN_USE:
                    raise await self._refused(error) from error
        # Another server has just created it.
        return await self._info()

    async def _refused(self, error: APIError) -> EngineError:
        """Returns why the engine refuses a stream with these limits."""
        told = f"{self._limits.replicas} replicas of {self._limits.stream_bytes_max} bytes: {reason_of(error)}"
        if error.err_code in _NO_SPACE:
            account = await self._jetstream.account_info()
            told += _limit_of(account)
        return EngineError(f"stream {self.name} with {told}")

    async def append(
        self, subject: str, pieces: Sequence[Piece], sequence: int, *, may_arrive_later: bool = False
    ) -> None:
        """Appends a message, given in pieces, at a sequence. Once this returns, a quorum of the replicas has it.

        While the engine does not respond, the outcome is unknown: the place is read until it is known.

        Args:
            subject: `LOG` or `CHECKPOINT`.
            pieces: The message.
            sequence: One more than that of the last message.
            may_arrive_later: Whether it was sent before, and its outcome is unknown.

        Raises:
            LogTakenOverError: Another server's message is there, so this one never will be; or another server has
                appended behind it, and whether it was stored is unknown.
            LogFullError: The stream has no space, and does not have it.
            LogFailedError: The stream was set back or deleted, or the engine refuses the message or its outcome is
                unknown for too long.
        """
        patience = Patience()
        this = asyncio.current_task()
        assert this is not None
        # Asked, since `asyncio.wait_for`, which nats-py uses, may swallow a cancellation.
        while not this.cancelling():
            try:
                await self._publish(subject, pieces, sequence)
            except (nats.errors.Error, TimeoutError, OSError) as error:
                problem = error
                may_arrive_later |= not isinstance(error, APIError)
            else:
                return
            try:
                if await self._has(pieces, sequence):
                    return
                self._refuse(problem, may_arrive_later=may_arrive_later)
            except (EngineError, SetBackError) as error:
                if patience.is_over(error):
                    raise LogFailedError(str(error)) from error
                await asyncio.sleep(RETRY_SECONDS * (0.5 + random.random()))  # noqa: S311 - spreads load
        raise asyncio.CancelledError

    def _refuse(self, problem: Exception, *, may_arrive_later: bool) -> NoReturn:
        """Raises LogFullError for a message that has no space, and never will be stored; otherwise EngineError."""
        if isinstance(problem, APIError) and problem.err_code in _NO_SPACE and not may_arrive_later:
            raise LogFullError(f"the stream has no space: {problem.description}")
        raise EngineError(f"stream {self.name}: {reason_of(problem)}")

    async def _publish(self, subject: str, pieces: Sequence[Piece], sequence: int) -> None:
        refuse_unless_stored(await self._engine.nats.ask(*self.place(subject, sequence), pieces, CALL_SECONDS))

    def place(self, subject: str, sequence: int) -> tuple[str, Mapping[str, str]]:
        """Returns the subject and the headers with which a message is stored at a sequence, or not at all."""
        expected = {"Nats-Expected-Stream": self.name, "Nats-Expected-Last-Sequence": str(sequence - 1)}
        return f"{self._subject}.{subject}", expected

    async def _has(self, pieces: Sequence[Piece], sequence: int) -> bool:
        """Whether a message is stored at a sequence; False if nothing is, so that it can be tried again.

        Raises:
            EngineError: The engine does not respond.
            LogTakenOverError: See `append`.
            SetBackError: The stream lacks messages, or the server that was asked does not know of them yet.
        """
        found = await self.get(sequence)
        if found == b"".join(pieces):
            return True
        if found is not None:
            raise LogTakenOverError(f"stream {self.name}: another server has appended message {sequence}")
        last = (await self.state()).last_sequence
        if last > sequence:
            # What was there, this message or another one, has been removed, or a leader that was replaced responded.
            raise LogTakenOverError(f"stream {self.name}: another server has appended after message {sequence}")
        if last == sequence:
            raise SetBackError(f"stream {self.name}: ends with message {sequence}, which is missing")
        if last < sequence - 1:
            raise SetBackError(f"stream {self.name}: was rolled back to message {last}; it had {sequence - 1}")
        return False

    async def purge_before(self, sequence: int, subject: str | None = None) -> StreamState:
        """Removes the messages before a sequence, of one subject or of all, and returns the state behind that."""
        with self._errors():
            await self._jetstream.purge_stream(self.name, sequence, f"{self._subject}.{subject}" if subject else None)
        return await self.state()

    async def delete(self) -> None:
        """Deletes the stream, with everything in it; raises EngineError where the engine does not respond."""
        with self._errors(), suppress(NotFoundError):
            await self._jetstream.delete_stream(self.name)


def refuse_unless_stored(response: bytes) -> None:
    """Raises APIError if a message was not stored, given the engine's response to it."""
    found = json.loads(response)
    if "error" in found:
        raise APIError.from_error(found["error"])


def _limit_of(account: api.AccountInfo) -> str:
    if account.limits.max_storage < 0:
        # Clients are not told what a node may store. Without figures that change, it is logged once.
        return "; the account has no limit, so the max_file_store of the engine's servers is too small"
    return f"; the account uses {account.storage} bytes and may use {account.limits.max_storage}"
