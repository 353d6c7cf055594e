"""Which servers live, as each shows by writing its entry again and again, and this server's part in it."""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

import structlog

from millrace_server.replication.engine_settings import RENEWALS_PER_LEASE
from millrace_server.replication.owner_entries import (
    Bucket,
    EntriesUnavailableError,
    Entry,
    EntryConflictError,
    Member,
    session_key,
)

_log = structlog.stdlib.get_logger(__name__)

_RETRY_PART = 30
"""A renewal that failed is tried again after this part of the lease."""

_KEPT_LEASES = 20
"""So many leases after its last sign of life a session is forgotten: no server still acts on it, nor waits for it."""


class _Seen(NamedTuple):
    member: Member
    revision: int
    at: float


class Membership:
    """The sessions of all servers as one server sees them, and its own. For one event loop.

    A session ends for certain before another server acts on its end: who finds it silent for its whole lease replaces
    its entry, and then the silent one's next renewal fails.

    Attributes:
        address: Where clients reach this server.
        session: This server's session; empty while it has none.
        clock: Monotonic, in seconds.
        renew_seconds: How often it shows a sign of life.
        has_begun: Set once a session has begun.
        last_error: Why the last sign of life could not be shown; empty if it was.
        on_lost: Called when the session has ended against this server's will.
        on_begun: Called when a session has begun.
    """

    def __init__(
        self, bucket: Bucket, address: str, lease_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.address = address
        self.session = ""
        self.on_lost: Callable[[], None] = lambda: None
        self.on_begun: Callable[[], None] = lambda: None
        self.lease_seconds = lease_seconds
        self.renew_seconds = lease_seconds / RENEWALS_PER_LEASE
        self._bucket = bucket
        self.clock = clock
        self.has_begun = asyncio.Event()
        self.last_error = ""
        self._channels: tuple[str, ...] = ()
        self._seen: dict[str, _Seen] = {}
        self._own: set[str] = set()  # All sessions that this server has begun.
        self._twins: set[str] = set()  # Those of others with this server's address, as they were told of.
        self._revision = 0
        self._renewed_at = 0.0
        self._news = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    @property
    def is_current(self) -> bool:
        """Whether no other server can own this one's channels, even after it was paused."""
        # It stops before others begin, even if its clock is a fifth slower.
        window_seconds = self.lease_seconds - self.renew_seconds
        return bool(self.session) and self.clock() < self._renewed_at + window_seconds

    @property
    def silent_seconds(self) -> float:
        """How long ago this server has shown its last sign of life."""
        return self.clock() - self._renewed_at

    def start(self) -> None:
        """Begins a session as soon as the engine responds, and another one whenever it was lost."""
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Ends the session, so that nothing waits until it expires. Never raises."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
            self._running = None
        session, self.session = self.session, ""
        if session:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.renew_seconds):
                    await self._end(session, self._revision)

    def offer(self, channels: Iterable[str]) -> None:
        """Tells the others which channels this server would take."""
        self._channels = tuple(sorted(channels))
        self._news.set()

    def observe(self, session: str, entry: Entry | None) -> None:
        """Notes the entry of a session. Earlier ones are ignored, as they come late."""
        if entry is None:
            self._seen.pop(session, None)
            return
        seen = self._seen.get(session)
        if seen is None or entry.revision > seen.revision:
            member = Member.decoded(entry.value)
            # The entry of a server that was killed, and started again as this one, is written no more.
            if seen is not None and not member.is_ended and member.address == self.address:
                self._warn_of_twin(session)
            self._seen[session] = _Seen(member, entry.revision, self.clock())
            if session == self.session and self._seen[session].member.is_ended:
                self._news.set()

    def _warn_of_twin(self, session: str) -> None:
        """Tells once that another server lives that clients would reach here."""
        if session not in self._own and session not in self._twins:
            self._twins.add(session)
            _log.warning(
                "another server advertises this server's address, so clients reach the wrong one; give each its own "
                "server.advertise",
                address=self.address,
                session=session,
            )

    def living(self) -> dict[str, Member]:
        """Returns the sessions that have not ended, and have shown a sign of life within their lease."""
        return {
            session: seen.member
            for session, seen in self._seen.items()
            if not seen.member.is_ended and self._silence_left(seen) > 0
        }

    def seconds_to_end(self, session: str) -> float:
        """Returns how long the session lasts at least; 0: it has ended, or `has_ended` can end it."""
        seen = self._seen.get(session)
        return 0.0 if seen is None or seen.member.is_ended else max(self._silence_left(seen), 0.0)

    async def has_ended(self, session: str) -> bool:
        """Whether a session has ended for certain; ends one that has been silent for its lease.

        Raises EntriesUnavailableError.
        """
        while True:
            # What was observed may be out of date.
            entry = await self._bucket.read(session_key(session))
            self.observe(session, entry)
            if entry is None or Member.decoded(entry.value).is_ended:
                return True
            if self.seconds_to_end(session):
                return False
            # If that fails, another server was faster, or the silent one has shown a sign of life.
            await self._end(session, entry.revision)

    async def forget_ended(self) -> None:
        """Removes the entries of sessions that have been silent for long, also of servers that were killed.

        A server that ends does not remove its own: others whose watch is late would not see that it has ended.

        Raises EntriesUnavailableError.
        """
        for session, seen in list(self._seen.items()):
            lease_seconds = max(seen.member.silence_seconds_max, self.lease_seconds)
            if session == self.session or self.clock() < seen.at + _KEPT_LEASES * lease_seconds:
                continue
            # Only what is read as ended is removed, and only up to there: who still wrote it would be overlooked.
            entry = await self._bucket.read(session_key(session))
            if entry is not None:
                if not Member.decoded(entry.value).is_ended:
                    await self.has_ended(session)
                    continue
                await self._bucket.remove(session_key(session), entry.revision)
            for known in (self._own, self._twins):
                known.discard(session)
            self._seen.pop(session, None)

    def _silence_left(self, seen: _Seen) -> float:
        return seen.at + seen.member.silence_seconds_max - self.clock()

    async def _end(self, session: str, revision: int) -> None:
        """Ends a session whose entry has this revision; does nothing if it has another by now."""
        ended = Member(is_ended=True)
        with suppress(EntryConflictError, EntriesUnavailableError):
            revision = await self._bucket.write(session_key(session), ended.encoded(), revision)
            self.observe(session, Entry(ended.encoded(), revision))

    # This server's session.

    async def _run(self) -> None:
        while True:
            if not self.session:
                await self._begin()
            await self._keep()
            lost, self.session = self.session, ""
            _log.warning(
                "this server could not renew its session in time; other servers may own its channels now", session=lost
            )
            self.on_lost()
            # Nothing of this server continues in it, so nothing need wait until it expires.
            await self._end(lost, self._revision)

    async def _begin(self) -> None:
        self._revision = 0
        session = secrets.token_hex(8)
        self._own.add(session)
        while not await self._renew(session):  # noqa: ASYNC110 - only time can help
            await asyncio.sleep(self.lease_seconds / _RETRY_PART)
        self.session = session
        self.has_begun.set()
        self.on_begun()

    async def _keep(self) -> None:
        """Renews the session until it has ended, or must be taken to have ended."""
        has_renewed = True
        while self.clock() < self._renewed_at + self.lease_seconds or has_renewed:
            seconds = self.renew_seconds if has_renewed else self.lease_seconds / _RETRY_PART
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            self._news.clear()
            try:
                has_renewed = await self._renew(self.session)
            except EntryConflictError:
                return

    async def _renew(self, session: str) -> bool:
        """Writes this server's sign of life; returns whether that is certain.

        Raises EntryConflictError if another server has ended the session.
        """
        began_at = self.clock()
        value = Member(self.address, self.lease_seconds, self._channels).encoded()
        try:
            try:
                self._revision = await self._bucket.write(session_key(session), value, self._revision)
            except EntryConflictError:
                # An earlier write whose response was lost may have succeeded.
                entry = await self._bucket.read(session_key(session))
                if entry is None or Member.decoded(entry.value).is_ended:
                    raise
                self._revision = await self._bucket.write(session_key(session), value, entry.revision)
        except EntriesUnavailableError as error:
            self.last_error = str(error)
            return False
        self.last_error = ""
        # The others count from when they see it, which is later.
        self._renewed_at = began_at
        self.observe(session, Entry(value, self._revision))
        return True
