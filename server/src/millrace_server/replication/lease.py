"""The lease on a channel: its entry says which server owns it, for as long as that server's session lasts."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import structlog

from millrace_server.replication.membership import Membership
from millrace_server.replication.owner_entries import (
    Bucket,
    EntriesUnavailableError,
    Entry,
    EntryConflictError,
    Holder,
    channel_key,
)

_log = structlog.stdlib.get_logger(__name__)

_RETRY_SECONDS = 0.5

_GRACE_PART = 5
"""A channel that another server should take is left to it for this part of the lease."""


class LeaseLostError(Exception):
    """Raised when another server may own the channel."""


class ChannelLease:
    """One server's view of the lease on one channel, and its part in it. For one event loop.

    Attributes:
        on_lost: Called when the lease that this server held is lost.
        is_withdrawn: Whether this server waits for it no more.
        takes_deleted: Whether it takes a channel that was deleted, and so creates it again.
        is_new: The same, until the channel is seen to exist.
        on_deleted: Called when the channel was deleted, and this server does not create it again.
        on_surplus: Called with another server's session that should own the channel, so that all have their share.
    """

    def __init__(self, bucket: Bucket, channel: str, members: Membership, is_wanted: Callable[[], bool]) -> None:
        """`is_wanted`: whether this server should own more channels, as others have their share."""
        self.channel = channel
        self.takes_deleted = self.is_new = False
        self.on_lost: Callable[[], object] = lambda: None
        self.on_deleted: Callable[[], object] = lambda: None
        self.on_surplus: Callable[[str], object] = lambda _: None
        self._bucket = bucket
        self._key = channel_key(channel)
        self._members = members
        self._is_wanted = is_wanted
        self._holder = Holder()
        self._revision = 0
        self._seen_at = 0.0
        self._session = ""
        # Since this server took the lease: the epoch that it has confirmed, and the last message that it has noted.
        self._epoch = self._last_sequence = 0
        self.is_withdrawn = False
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()

    @property
    def entry(self) -> Holder:
        """The channel's entry as this server saw it last."""
        return self._holder

    @property
    def owner(self) -> Holder | None:
        """Who owns the channel, as far as this server knows; None if no server does, or this one has lost it."""
        if not self._holder.session:
            return None
        is_lost = self._holder.address == self._members.address != "" and not self.is_held
        return None if is_lost else self._holder

    @property
    def is_held(self) -> bool:
        """Whether this server has the lease, as far as it knows."""
        return bool(self._session) and self._session == self._members.session == self._holder.session

    @property
    def is_current(self) -> bool:
        """Whether this server has the lease for certain, even after it was paused. Takes and peeks need that."""
        return self.is_held and self._members.is_current

    def observe(self, entry: Entry) -> None:
        """Notes the channel's entry. Earlier ones are ignored, as they come late."""
        if entry.revision <= self._revision:
            return
        was_held = self.is_held
        self._holder, self._revision = Holder.decoded(entry.value), entry.revision
        self.is_new &= self._holder.is_deleted
        self._seen_at = self._members.clock()
        self._changed.set()
        if was_held and not self.is_held:
            self.lose()

    def reconsider(self) -> None:
        """Looks again whether the lease is free: a session has ended or begun."""
        self._changed.set()

    def lose(self) -> None:
        """Takes the lease for lost, where this server had it."""
        if self._session:
            self._session = ""
            self.on_lost()

    async def acquire(self) -> None:
        """Waits for the lease, or for `withdraw`."""
        while not self.is_withdrawn and not await self.try_acquire():
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_to_look_again()):
                    await self._changed.wait()

    def withdraw(self) -> None:
        """Ends the waiting for the lease."""
        self.is_withdrawn = True
        self._changed.set()

    async def confirm(self, epoch: int) -> None:
        """Tells all servers the epoch of the new owner, which serves from now on.

        Raises LeaseLostError if that is not certain.
        """
        if not self.is_held or not await self._write(replace(self._holder, epoch=epoch)) or not self.is_current:
            raise LeaseLostError(f"the lease on channel {self.channel!r} was lost")
        self._epoch = epoch

    async def note(self, last_sequence: int) -> None:
        """Tells all servers that the channel's stream has this message; does nothing without the lease. Never raises.

        Args:
            last_sequence: A message that a quorum has: a later one might be lost, and would condemn a good stream.
        """
        if self.is_held and (known := self._as_known(last_sequence)) != self._holder:
            await self._write(known)

    def _as_known(self, last_sequence: int) -> Holder:
        """Returns the entry with a message of the stream.

        Once it has an epoch, the owner alone knows where the stream ends. What an entry has beyond that was never
        there, and later owners would refuse the stream for the lack of it.
        """
        entry = self._holder
        self._last_sequence = max(self._last_sequence, last_sequence)
        if not self._epoch:
            return replace(entry, last_sequence=max(self._last_sequence, entry.last_sequence))
        last_sequence = max(self._last_sequence, min(entry.last_sequence, self._epoch))
        known = replace(entry, epoch=self._epoch, last_sequence=last_sequence)
        if entry.sequence_known > known.sequence_known:
            _log.warning(
                "the owners' entry of a channel was damaged, and is corrected: its stream never had this message",
                channel=self.channel,
                message=entry.sequence_known,
                last_message=known.sequence_known,
            )
        return known

    async def mark_deleting(self) -> bool:
        """Tells all servers that the channel's deletion is decided; returns whether that is certain."""
        return self.is_held and await self._write(replace(self._holder, is_deleting=True))

    async def until_deleted(self) -> bool:
        """Waits until the channel was deleted, or for `withdraw`; returns whether it was deleted."""
        while not (self.is_withdrawn or self._holder.is_deleted):
            self._changed.clear()
            await self._changed.wait()
        return self._holder.is_deleted

    async def release(
        self, reserved_for: str = "", *, is_pinned: bool = False, is_deleted: bool = False, last_sequence: int = 0
    ) -> None:
        """Gives the lease back, so that another server takes over at once; does nothing without it. Never raises.

        Args:
            reserved_for: The session that is to take the channel before others.
            is_pinned: Whether the channel is to stay there.
            is_deleted: Whether the channel was deleted.
            last_sequence: See `note`.
        """
        if self.is_held:
            left = Holder(reserved_for=reserved_for, is_pinned=is_pinned, is_deleted=is_deleted)
            if not is_deleted:
                known = self._as_known(last_sequence)
                left = replace(
                    left, epoch=known.epoch, last_sequence=known.last_sequence, is_deleting=known.is_deleting
                )
            await self._write(left)
        self._session = ""

    def _is_ours(self) -> bool:
        """Whether the entry names this server's session: also where a write succeeded and its response was lost."""
        return self._holder.session == self._members.session != ""

    def _seconds_to_wait(self) -> float:
        """How long the lease is another server's at least, as far as this one knows; 0: it may be free."""
        if self._is_ours():
            return 0.0
        if self._holder.session:
            return self._members.seconds_to_end(self._holder.session)
        return self._reserved_seconds()

    def _seconds_to_look_again(self) -> float:
        wait_seconds = self._seconds_to_wait() or _RETRY_SECONDS
        # To whom a vacant channel is left may change at any time.
        return wait_seconds if self._holder.session else min(wait_seconds, _RETRY_SECONDS)

    def _reserved_seconds(self) -> float:
        """How long the vacant channel is left to another server."""
        reserved_for = self._holder.reserved_for
        if reserved_for == self._members.session:
            return 0.0
        is_left = bool(self._members.seconds_to_end(reserved_for)) if reserved_for else not self._is_wanted()
        grace_seconds = self._members.lease_seconds / _GRACE_PART if is_left else 0.0
        return max(self._seen_at + grace_seconds - self._members.clock(), 0.0)

    async def try_acquire(self) -> bool:
        """Takes the lease if it is free."""
        if not self._members.session or self._seconds_to_wait():
            return False
        try:
            # What was observed may be out of date.
            if (entry := await self._bucket.read(self._key)) is not None:
                self.observe(entry)
            holder = self._holder
            if not self._is_ours() and holder.session and not await self._members.has_ended(holder.session):
                return False
        except EntriesUnavailableError:
            return False
        if holder.is_deleted and not (self.takes_deleted or self.is_new):
            self.withdraw()
            self.on_deleted()
            return False
        session = self._members.session
        is_pinned = holder.is_pinned and holder.reserved_for == session
        taken = Holder(
            session,
            self._members.address,
            holder.epoch,
            holder.last_sequence,
            is_pinned=is_pinned,
            is_deleting=holder.is_deleting,
        )
        if self._seconds_to_wait() or not session or not await self._write(taken):
            return False
        self._session = session
        self._epoch = self._last_sequence = 0
        return self.is_held

    async def _write(self, holder: Holder) -> bool:
        """Replaces the entry as it was seen last; returns whether that is certain."""
        async with self._writing:
            revision, value = self._revision, holder.encoded()
            try:
                revision = await self._bucket.write(self._key, value, revision)
            except EntryConflictError:
                # Whatever is read next counts: the bucket may have been emptied, or set back.
                self._revision = 0
                return False
            except EntriesUnavailableError:
                return await self._has_written(value, revision)
        self.observe(Entry(value, revision))
        return self._holder == holder

    async def _has_written(self, value: bytes, revision: int) -> bool:
        """Whether a write whose response was lost has succeeded, as far as can be known."""
        try:
            entry = await self._bucket.read(self._key)
        except EntriesUnavailableError:
            return False
        if entry is None or entry.revision <= revision:
            return False
        self.observe(entry)
        return entry.value == value
