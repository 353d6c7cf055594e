"""The leases of all channels of one engine, in a key-value bucket of JetStream."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import nats.errors
import nats.js.errors
import structlog
from nats.js.api import KeyValueConfig
from nats.js.kv import KeyValue

from millrace_server.replication.engine import Engine, EngineError
from millrace_server.replication.engine_settings import RENEWALS_PER_LEASE
from millrace_server.replication.lease import ChannelLease
from millrace_server.replication.membership import Membership
from millrace_server.replication.owner_entries import (
    Bucket,
    EntriesUnavailableError,
    Entry,
    EntryConflictError,
    Holder,
    Member,
    channel_of,
    session_of,
)
from millrace_server.replication.spreading import is_below_share, planned_moves

_log = structlog.stdlib.get_logger(__name__)

BUCKET = "MILLRACE_OWNERS"

_MOVES_AT_ONCE = 10

_FORGET_LEASES = 10
"""After this many leases each server looks again which sessions have ended long ago."""

ResultT = TypeVar("ResultT")


class JetStreamBucket(Bucket):
    """The entries of all servers in the engine's bucket. Requests run on the engine's event loop."""

    def __init__(self, engine: Engine, bucket: KeyValue, config: KeyValueConfig) -> None:
        self.engine = engine
        self._bucket = bucket
        self._config = config

    @classmethod
    async def opened(cls, engine: Engine, replicas: int) -> "JetStreamBucket":
        """Opens the bucket, and creates it where there is none, on so many of the engine's servers.

        Raises EngineError if the engine refuses it, or does not respond.
        """
        config = KeyValueConfig(bucket=BUCKET, history=1, replicas=replicas)
        try:
            bucket = await asyncio.wrap_future(engine.call(_bucket_in(engine, config)))
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise EngineError(
                f"bucket {BUCKET} with {replicas} replicas: {str(error) or type(error).__name__}"
            ) from error
        return cls(engine, bucket, config)

    async def read(self, key: str) -> Entry | None:
        try:
            found = await self._requested(self._bucket.get(key))
        except nats.js.errors.KeyNotFoundError as missing:
            # An operator may have deleted it, which leaves a marker with a revision.
            return None if missing.entry is None else _entry(missing.entry)
        return _entry(found)

    async def write(self, key: str, value: bytes, revision: int) -> int:
        try:
            return await self._requested(self._bucket.update(key, value, revision))
        except nats.js.errors.KeyWrongLastSequenceError as error:
            raise EntryConflictError(str(error)) from error

    async def remove(self, key: str, revision: int) -> None:
        # To delete a key would leave a marker in its place.
        subject = f"$KV.{BUCKET}.{key}"
        await self._requested(self.engine.jetstream.purge_stream(f"KV_{BUCKET}", seq=revision + 1, subject=subject))

    async def _requested(self, request: Coroutine[Any, Any, ResultT]) -> ResultT:
        try:
            return await asyncio.wrap_future(self.engine.call(self.engine.request(request)))
        except (nats.js.errors.KeyNotFoundError, nats.js.errors.KeyWrongLastSequenceError):
            raise
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise EntriesUnavailableError(str(error) or type(error).__name__) from error

    async def watch(self, silence_seconds: float) -> Any:
        """Yields keys and entries as they change, all of them first; ends where it is silent for too long.

        A silent watch may have ended with a server of the engine, without a word, or with the bucket, which is created
        again: no event is lost with it. On the engine's event loop.
        """
        self._bucket = await _bucket_in(self.engine, self._config)
        watcher: Any = await self._bucket.watchall()  # Its methods have no types.
        try:
            while True:
                found = await watcher.updates(silence_seconds)
                yield None if found is None else (found.key, _entry(found))
        finally:
            # On a closed connection it fails, in place of the cancellation, and the watch would begin again forever.
            with suppress(nats.errors.Error):
                await watcher.stop()


class JetStreamLeases:
    """The leases of one server. For one event loop.

    One watcher of the whole bucket tells of all changes. In case that it missed one, a lease that seems to be free is
    read again before it is taken.

    Attributes:
        members: The servers that share the engine.
    """

    def __init__(self, bucket: JetStreamBucket, address: str, lease_seconds: float) -> None:
        self.members = Membership(bucket, address, lease_seconds)
        self.members.on_lost = self._lose_all
        self.members.on_begun = self._reconsider_all
        self._bucket = bucket
        self._renew_seconds = self.members.renew_seconds
        self._loop = asyncio.get_running_loop()
        self._leases: dict[str, ChannelLease] = {}
        self._owners: dict[str, Holder] = {}
        self._offered: set[str] = set()
        self._has_seen_all = asyncio.Event()
        self._watching = bucket.engine.call(self._keep_watching())
        self._spreading = self._loop.create_task(self._keep_spreading())
        self._forgetting = self._loop.create_task(self._keep_forgetting())
        self.members.start()

    def of(self, channel: str) -> ChannelLease:
        """Returns a lease on a channel, which this server would take from now on."""
        lease = self._leases[channel] = ChannelLease(self._bucket, channel, self.members, self._wants_more)
        self.offer(channel)
        return lease

    def offer(self, channel: str) -> None:
        """Tells the others that this server would take a channel, also one that was given up."""
        self._offered.add(channel)
        self.members.offer(self._offered)

    async def give_up(self, channel: str) -> None:
        """Releases the lease on a channel; this server would not take it any more, but sees who does. Never raises."""
        self._offered.discard(channel)
        self.members.offer(self._offered)
        await self._leases[channel].release()

    async def ready(self) -> None:
        """Waits until all entries were seen once, so that who owns what is known, and this server is a member."""
        await self._has_seen_all.wait()
        await self.members.has_begun.wait()

    def session_at(self, address: str, channel: str) -> str | None:
        """Returns the living session of the server that clients reach there, if it would take a channel."""
        for session, member in self.members.living().items():
            if member.address == address and channel in member.channels:
                return session
        return None

    def addresses(self, channel: str) -> list[str]:
        """Returns where clients reach the servers that would take a channel."""
        return sorted(member.address for member in self.members.living().values() if channel in member.channels)

    async def close(self) -> None:
        """Ends the session. Leases that are still held are free then."""
        self._spreading.cancel()
        self._forgetting.cancel()
        self._watching.cancel()
        await self.members.close()

    def _wants_more(self) -> bool:
        session, living = self.members.session, self.members.living()
        # The entry is written later than this server knows what it would take.
        living[session] = Member(channels=tuple(self._offered))
        return is_below_share(session, self._owners, living)

    def _lose_all(self) -> None:
        for lease in list(self._leases.values()):
            lease.lose()

    def _reconsider_all(self) -> None:
        for lease in self._leases.values():
            lease.reconsider()

    def _note(self, key: str, entry: Entry) -> None:
        if (session := session_of(key)) is not None:
            had_ended = not self.members.seconds_to_end(session)
            self.members.observe(session, entry)
            if not had_ended and not self.members.seconds_to_end(session):
                self._reconsider_all()
            return
        channel = channel_of(key)
        self._owners[channel] = Holder.decoded(entry.value)
        if (lease := self._leases.get(channel)) is not None:
            lease.observe(entry)

    async def _keep_spreading(self) -> None:
        await self.ready()
        while True:
            await asyncio.sleep(self._renew_seconds)
            moves = planned_moves(self._owners, self.members.living())
            mine = [move for move in moves if move.source == self.members.session]
            for move in mine[:_MOVES_AT_ONCE]:
                if (lease := self._leases.get(move.channel)) is not None:
                    lease.on_surplus(move.target)

    async def _keep_forgetting(self) -> None:
        while True:
            await asyncio.sleep(_FORGET_LEASES * self.members.lease_seconds)
            try:
                await self.members.forget_ended()
            except EntriesUnavailableError as error:
                _log.debug("sessions that have ended could not be removed", error=str(error))

    # On the engine's event loop.

    async def _keep_watching(self) -> None:
        while True:
            try:
                # Each server renews more often.
                async for change in self._bucket.watch(2 * self._renew_seconds):
                    if change is None:
                        self._loop.call_soon_threadsafe(self._has_seen_all.set)
                    elif change[1] is not None:
                        self._loop.call_soon_threadsafe(self._note, *change)
            except (nats.errors.Error, OSError, TimeoutError) as error:
                _log.debug("the watch of the owners ended", error=str(error) or type(error).__name__)
                await asyncio.sleep(self._renew_seconds / RENEWALS_PER_LEASE)


async def _bucket_in(engine: Engine, config: KeyValueConfig) -> KeyValue:
    with suppress(nats.js.errors.BucketNotFoundError):
        return await engine.jetstream.key_value(BUCKET)
    return await engine.jetstream.create_key_value(config)


def _entry(found: KeyValue.Entry) -> Entry | None:
    """Returns an entry; one that was deleted has no value, and is no one's."""
    return None if found.revision is None else Entry(found.value or b"", found.revision)
