"""The leases of all channels in a key-value bucket of JetStream."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import nats.errors
import nats.js.errors
import structlog
from nats.js.api import KeyValueConfig
from nats.js.kv import KeyValue

from millrace_server.replication.engine import Engine
from millrace_server.replication.lease import (
    RENEW_SECONDS,
    ChannelLease,
    Holder,
    LeaseConflictError,
    LeaseEntry,
    LeaseUnavailableError,
)

_log = structlog.stdlib.get_logger(__name__)

BUCKET = "MILLRACE_OWNERS"

_SILENCE_SECONDS = 2 * RENEW_SECONDS
"""After so long without a renewal the watch begins again."""

ResultT = TypeVar("ResultT")


class JetStreamLeases:
    """The leases of one server. For one event loop, but for the requests, which run on the engine's.

    One watcher of the whole bucket tells of all changes. In case that it missed one, a lease that seems to have expired
    is read again before it is taken.
    """

    def __init__(self, engine: Engine, bucket: KeyValue, server: str, address: str) -> None:
        self._engine = engine
        self._bucket = bucket
        self._server = server
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._leases: dict[str, ChannelLease] = {}
        self._watching = engine.call(self._keep_watching())

    @classmethod
    async def opened(cls, engine: Engine, *, server: str, address: str, replicas: int) -> "JetStreamLeases":
        """Opens the bucket, and creates it where there is none.

        Args:
            engine: The connection.
            server: The id of this server's process, which no other has.
            address: Where clients reach this server.
            replicas: On so many of the engine's servers a new bucket is kept.
        """
        config = KeyValueConfig(bucket=BUCKET, history=1, replicas=replicas)

        async def open_bucket() -> KeyValue:
            with suppress(nats.js.errors.BucketNotFoundError):
                return await engine.jetstream.key_value(BUCKET)
            return await engine.jetstream.create_key_value(config)

        return cls(engine, await asyncio.wrap_future(engine.call(open_bucket())), server, address)

    def of(self, channel: str) -> ChannelLease:
        """Returns the lease on a channel."""
        if channel not in self._leases:
            self._leases[channel] = ChannelLease(self, channel, self._server, self._address)
        return self._leases[channel]

    def close(self) -> None:
        """Ends the watching. Leases that are held expire unless they were released."""
        self._watching.cancel()

    async def read(self, channel: str) -> LeaseEntry | None:
        """Returns the entry of a channel; raises LeaseUnavailableError."""
        try:
            found = await self._requested(self._bucket.get(_key(channel)))
        except nats.js.errors.KeyNotFoundError as missing:
            # An operator may have deleted it, which leaves a marker with a revision.
            return None if missing.entry is None else _entry(missing.entry)
        return _entry(found)

    async def write(self, channel: str, holder: Holder, revision: int) -> int:
        """Replaces the entry of a channel; see `LeaseBucket`."""
        try:
            return await self._requested(self._bucket.update(_key(channel), holder.encoded(), revision))
        except nats.js.errors.KeyWrongLastSequenceError as error:
            raise LeaseConflictError(str(error)) from error

    async def _requested(self, request: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Runs a request on the engine's event loop."""
        try:
            return await asyncio.wrap_future(self._engine.call(self._engine.request(request)))
        except (nats.js.errors.KeyNotFoundError, nats.js.errors.KeyWrongLastSequenceError):
            raise
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise LeaseUnavailableError(str(error) or type(error).__name__) from error

    # On the engine's event loop.

    async def _keep_watching(self) -> None:
        while True:
            try:
                await self._watch()
            except (nats.errors.Error, OSError, TimeoutError) as error:
                _log.debug("the watch of the owners ended", error=str(error) or type(error).__name__)
                await asyncio.sleep(1.0)

    async def _watch(self) -> None:
        watcher: Any = await self._bucket.watchall()  # Its methods have no types.
        try:
            while True:
                # Owners renew more often; a silent watch may have ended with a server of the engine, without a word.
                found = await watcher.updates(_SILENCE_SECONDS)
                if found is not None:
                    self._loop.call_soon_threadsafe(self._note, found)
        finally:
            await watcher.stop()

    def _note(self, found: KeyValue.Entry) -> None:
        lease = self._leases.get(_channel(found.key))
        if lease is not None and (entry := _entry(found)) is not None:
            lease.observe(entry)


def _key(channel: str) -> str:
    # Dots separate the parts of a subject.
    return channel.replace(".", "=")


def _channel(key: str) -> str:
    return key.replace("=", ".")


def _entry(found: KeyValue.Entry) -> LeaseEntry | None:
    """Returns an entry; one that was deleted, or that no server has written, is nobody's."""
    if found.revision is None:
        return None
    try:
        holder = Holder.decoded(found.value or b"")
    except ValueError:
        holder = Holder("", "", 0)
    return LeaseEntry(holder, found.revision)
