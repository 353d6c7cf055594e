"""The lease on a channel: by renewing it a server shows that it lives, and the others let it own the channel.

A lease decides who tries to own a channel, never who may append: that is decided by the fence in the stream. So a clock
that is wrong costs time, not events.
"""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

import structlog

_log = structlog.stdlib.get_logger(__name__)

RENEW_SECONDS = 3.0
LEASE_SECONDS = 15.0
"""How long an owner that renews no more keeps the channel. Elections in the engine take up to 9 s."""

_CURRENT_SECONDS = LEASE_SECONDS - RENEW_SECONDS
"""How long an owner acts on its last renewal: it stops before others begin, even if its clock is a fifth slower."""
_RETRY_SECONDS = 0.5
_RELEASE_SECONDS = 2.0


class LeaseConflictError(Exception):
    """Raised when an entry is not what the writer took it for."""


class LeaseUnavailableError(Exception):
    """Raised when the engine does not answer; an entry may have been written or not."""


class Holder(NamedTuple):
    """Who has the lease on a channel."""

    server: str
    """The id of the server's process; empty: nobody's, and anybody may take it at once."""
    address: str
    """Where clients reach the server."""
    epoch: int
    """The newest epoch of the channel that a holder has confirmed; 0: none yet."""

    def encoded(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def decoded(cls, value: bytes) -> "Holder":
        """Raises ValueError if the value is no holder."""
        try:
            fields = json.loads(value)
            return cls(str(fields["server"]), str(fields["address"]), int(fields["epoch"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"is no lease: {value[:200]!r}") from error


class LeaseEntry(NamedTuple):
    """An entry of a bucket."""

    holder: Holder
    revision: int
    """Grows with each write, also one of the same holder."""


class LeaseBucket(Protocol):
    """The entries of all channels, which all servers share."""

    async def read(self, channel: str) -> LeaseEntry | None:
        """Returns the entry of a channel; raises LeaseUnavailableError."""

    async def write(self, channel: str, holder: Holder, revision: int) -> int:
        """Replaces the entry of this revision, 0 where there is none; returns the new revision.

        Raises LeaseConflictError if the entry has another revision, and LeaseUnavailableError.
        """


class ChannelLease:
    """One server's view of the lease on one channel, and its part in it. For one event loop.

    Attributes:
        address: Where clients reach this server.
    """

    def __init__(
        self, bucket: LeaseBucket, channel: str, server: str, address: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.address = address
        self._bucket = bucket
        self._channel = channel
        self._server = server
        self._clock = clock
        self._entry: LeaseEntry | None = None
        self._seen_at = 0.0
        self._changed = asyncio.Event()
        self._renewed_at: float | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._on_lost: Callable[[], None] | None = None

    @property
    def holder(self) -> Holder | None:
        """Who has the lease, as far as this server knows; None if nobody has, or this server has lost it."""
        if self._entry is None or not self._entry.holder.server:
            return None
        is_lost = self._entry.holder.server == self._server and not self.is_current
        return None if is_lost else self._entry.holder

    @property
    def is_current(self) -> bool:
        """Whether this server has the lease for certain, also after it has stood still. Takes and peeks need that."""
        return self._renewed_at is not None and self._clock() < self._renewed_at + _CURRENT_SECONDS

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Calls back once when the lease is lost, on the event loop."""
        self._on_lost = callback

    def observe(self, entry: LeaseEntry) -> None:
        """Notes an entry of the channel. Earlier ones are ignored, as they come late."""
        if self._entry is None or entry.revision > self._entry.revision:
            self._entry, self._seen_at = entry, self._clock()
            self._changed.set()

    async def acquire(self) -> int:
        """Waits for the lease and keeps it from then on; returns the newest epoch of the channel, 0 if there is none.

        The lease is free if no server has it, or its holder has not renewed it for `LEASE_SECONDS` of this server's
        clock.
        """
        while not await self._has_taken():
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_to_expiry() or _RETRY_SECONDS):
                    await self._changed.wait()
        self._renewing = asyncio.get_running_loop().create_task(self._keep_renewing())
        return self._epoch

    async def confirm(self, epoch: int) -> None:
        """Tells all servers the epoch and the address of the new owner, which serves from now on."""
        await self._renew(epoch)

    async def release(self) -> None:
        """Gives the lease back, so that another server takes over at once; does nothing without it. Never raises."""
        if self._renewing is not None:
            self._renewing.cancel()
        self._renewing = None
        if self._renewed_at is None:
            return
        self._renewed_at = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._write(Holder("", "", self._epoch))

    @property
    def _epoch(self) -> int:
        return 0 if self._entry is None else self._entry.holder.epoch

    def _is_ours(self) -> bool:
        return self._entry is not None and self._entry.holder.server == self._server

    def _seconds_to_expiry(self) -> float:
        if self._entry is None or self._entry.holder.server in ("", self._server):
            return 0.0
        return max(self._seen_at + LEASE_SECONDS - self._clock(), 0.0)

    async def _has_taken(self) -> bool:
        """Takes the lease if it is free."""
        if self._seconds_to_expiry():
            return False
        try:
            # What was observed may be out of date.
            if (entry := await self._bucket.read(self._channel)) is not None:
                self.observe(entry)
        except LeaseUnavailableError:
            return False
        return not self._seconds_to_expiry() and await self._renew(self._epoch)

    async def _keep_renewing(self) -> None:
        has_renewed = True
        while self.is_current and self._is_ours():
            await asyncio.sleep(RENEW_SECONDS if has_renewed else _RETRY_SECONDS)
            # Not where another server's entry was observed meanwhile: its revision would let this one take it back.
            has_renewed = self._is_ours() and await self._renew(self._epoch)
        _log.warning("the lease on a channel is lost", channel=self._channel, holder=self.holder)
        self._renewed_at = self._renewing = None
        if self._on_lost is not None:
            self._on_lost()

    async def _renew(self, epoch: int) -> bool:
        began_at = self._clock()
        is_ours = await self._write(Holder(self._server, self.address, epoch))
        if is_ours:
            # The others count from when they see it, which is later.
            self._renewed_at = began_at
        return is_ours

    async def _write(self, holder: Holder) -> bool:
        """Replaces the entry as it was seen last; returns whether that is certain."""
        async with self._writing:
            for _ in range(2):
                revision = 0 if self._entry is None else self._entry.revision
                try:
                    revision = await self._bucket.write(self._channel, holder, revision)
                except LeaseConflictError:
                    if not await self._is_ours_after_all():
                        return False
                except LeaseUnavailableError:
                    return False
                else:
                    self.observe(LeaseEntry(holder, revision))
                    return True
        return False

    async def _is_ours_after_all(self) -> bool:
        """Whether a conflict is with this server's own entry: a write whose answer was lost had succeeded."""
        try:
            entry = await self._bucket.read(self._channel)
        except LeaseUnavailableError:
            return False
        if entry is not None:
            self.observe(entry)
        return entry is not None and entry.holder.server == self._server
