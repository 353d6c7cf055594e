"""Claims: one reader's exclusive right to a channel, which it then reads as a log."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import time

from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.committer import REMOVED_BATCHES_MAX, ClaimRecord, Committer, remove
from millrace_server.channels.config import check_identifier
from millrace_server.channels.contents import Contents
from millrace_server.channels.leases import Lease
from millrace_server.errors import (
    BadArgumentError,
    ChannelClaimedError,
    MillraceError,
    NotClaimedError,
    SequenceGoneError,
    StaleEpochError,
    TxnsOpenError,
)


class Claim:
    """A claim; `durable` ends once it, or its end, survives a crash, and is None where nothing is to be awaited.

    `start_time` is when it began, or the server restored it, in seconds since 1970.
    """

    __slots__ = ("durable", "epoch", "lease", "owner", "reader_id", "start_time")

    def __init__(self, reader_id: str, epoch: int, lease: Lease, owner: str) -> None:
        self.reader_id = reader_id
        self.epoch = epoch
        self.lease = lease
        self.owner = owner
        self.durable: asyncio.Future[None] | None = None
        self.start_time = time()


class ClaimRegistry:
    """Grants the exclusive right to a channel to one reader at a time.

    Each new claim has a new epoch, also for the same reader, so that a reader that was presumed dead is fenced off from
    its successor. Renewing keeps the epoch.
    """

    def __init__(self, contents: Contents, committer: Committer, epochs_from: int = 0) -> None:
        self._contents = contents
        self._committer = committer
        self._epoch = epochs_from
        self.claim: Claim | None = None
        self._revoked: Claim | None = None

    def restore(self, last: ClaimRecord) -> None:
        """Restores the newest claim before a restart; a live one gets its whole lease again."""
        self._epoch = max(self._epoch, last.epoch)
        if not last.has_ended:
            self.claim = Claim(last.reader_id, last.epoch, Lease(last.lease_seconds, self.end), last.owner)

    def renew(self, reader_id: str, epoch: int, lease_seconds: float | None = None) -> Claim:
        """Renews a live claim, with another lease if given."""
        claim = self._require(reader_id, epoch)
        claim.lease.renew(lease_seconds)
        return claim

    async def grant(self, reader_id: str, lease_seconds: float, *, takeover: bool, owner: str = "") -> Claim:
        """Grants a reader a claim, which belongs to an identity, or renews its claim.

        Raises:
            ChannelClaimedError: Another reader's claim lives, and it is not to be taken over.
            TxnsOpenError: Open transactions have taken events.
            DiskFullError, ChannelLogFailedError: The claim could not be written; there is none.
        """
        self._contents.refuse_if_closed()
        check_identifier("reader_id", reader_id)
        claim = self._renewed(reader_id, lease_seconds, takeover=takeover)
        if claim is None:
            claim = self._begin(reader_id, lease_seconds, owner)
        if claim.durable is not None:
            try:
                await asyncio.shield(claim.durable)
            except MillraceError:
                if self.claim is claim:
                    self._drop()
                raise
        return claim

    def _renewed(self, reader_id: str, lease_seconds: float, *, takeover: bool) -> Claim | None:
        if self.claim is None or takeover:
            return None
        if self.claim.reader_id != reader_id:
            raise _claimed(self.claim)
        self.claim.lease.renew(lease_seconds)
        return self.claim

    def _begin(self, reader_id: str, lease_seconds: float, owner: str) -> Claim:
        if taken_count := self._contents.taken_count:
            raise TxnsOpenError(
                f"open transactions have taken {taken_count} events of the channel; claim it when they have ended",
                retry_delay_seconds=1.0,
            )
        durable = self._committer.record_claim(ClaimRecord(reader_id, self._epoch + 1, lease_seconds, owner=owner))
        self._drop()
        self._epoch += 1
        self.claim = Claim(reader_id, self._epoch, Lease(lease_seconds, self.end), owner)
        self.claim.durable = durable
        # Takes that wait for events must now fail, since the channel is claimed.
        self._contents.takers.wake_all()
        return self.claim

    def end(self) -> "asyncio.Future[None] | None":
        """Ends the live claim, if any; events that are not acknowledged can be taken again. See `record_claim`."""
        if self.claim is None:
            return None
        claim = self.claim
        self._drop()
        return self._committer.record_claim(
            ClaimRecord(claim.reader_id, self._epoch, claim.lease.seconds, has_ended=True, owner=claim.owner)
        )

    def forget(self) -> None:
        self._drop()

    def _drop(self) -> None:
        if self.claim is not None:
            self.claim.lease.cancel()
            self.claim = None
            self._contents.readers.wake_all()
            self._contents.wake_taker()

    async def release(self, reader_id: str, epoch: int | None) -> None:
        """Ends a reader's claim, and returns once that is durable.

        Raises:
            DiskFullError, ChannelLogFailedError: The claim has ended, but its end could not be written.
        """
        self._require(reader_id, epoch)
        await self._until_ended(self.end())

    async def revoke(self, epoch: int | None) -> Claim:
        """Ends the live claim without its reader, whose epoch is an earlier one from now on; as durable as `release`.

        A repeat with the epoch of the claim that was revoked last changes nothing, also if there is a newer claim.

        Returns:
            The claim that has ended.

        Raises:
            StaleEpochError: The newest claim has another epoch than the given one.
            NotClaimedError: No claim lives.
        """
        self._contents.refuse_if_closed()
        revoked = self._revoked
        if revoked is None or revoked.epoch != epoch:
            revoked = self._revoked = self._revocable(epoch)
            self._epoch += 1
            revoked.durable = self.end()
        await self._until_ended(revoked.durable)
        return revoked

    def _revocable(self, epoch: int | None) -> Claim:
        if epoch not in {None, self._epoch}:
            raise StaleEpochError(f"epoch: is {epoch}; the newest claim of the channel has epoch {self._epoch}")
        if self.claim is None:
            raise NotClaimedError("no reader has claimed the channel")
        return self.claim

    async def _until_ended(self, durable: "asyncio.Future[None] | None") -> None:
        if durable is not None:
            try:
                await asyncio.shield(durable)
            except MillraceError as error:
                raise type(error)(
                    "the claim ended, but this could not be written to the channel's log; a restart may restore it"
                ) from error

    def refuse_if_claimed(self) -> None:
        if self.claim is not None:
            raise _claimed(self.claim)

    def read(
        self, reader_id: str, epoch: int | None, from_sequence: int, to_sequence: int
    ) -> AsyncGenerator[StoredBatch]:
        """Yields a range in batches, checking the claim before each; its lease is paused in the meantime.

        Args:
            reader_id: The reader.
            epoch: The claim's epoch; None for no check.
            from_sequence: The first; 0 for the oldest.
            to_sequence: One past the last; 0 for what is committed now.

        Raises:
            SequenceGoneError: Part of the range is acknowledged, or does not exist yet.
            NotClaimedError, ChannelClaimedError, StaleEpochError: The reader does not hold the claim.
            NotOwnerError: Another server may own the channel, where the range may exist.
        """
        claim = self._require(reader_id, epoch)
        self._contents.refuse_reading()
        if 0 < to_sequence < from_sequence:
            raise BadArgumentError(
                f"from_sequence: is {from_sequence}; it must not be above to_sequence, {to_sequence}"
            )
        first = from_sequence or self._contents.first_sequence
        end = to_sequence or self._contents.next_sequence
        self._check_range(first, end)
        return self._read(claim, first, end)

    async def _read(self, claim: Claim, position: int, end: int) -> AsyncGenerator[StoredBatch]:
        with claim.lease.paused():
            while batches := self._contents.queue.read(position, end):
                async with aclosing(self._contents.load(batches)) as loaded:
                    async for batch in loaded:
                        self._require(claim.reader_id, claim.epoch)
                        self._contents.refuse_reading()
                        self._contents.note_take()
                        yield batch
                position = batches[-1].end_sequence
                if position < end:
                    # A purge in the meantime must not pass for the end of the range.
                    self._check_range(position, end)

    def _check_range(self, first: int, end: int) -> None:
        oldest, following = self._contents.first_sequence, self._contents.next_sequence
        if end > following:
            raise SequenceGoneError(f"to_sequence: {end} does not exist yet; the next sequence is {following}")
        if first > following:
            raise SequenceGoneError(f"from_sequence: {first} does not exist yet; the next sequence is {following}")
        # If only to_sequence is given, the oldest may be after it.
        if first != end and min(first, end) < oldest:
            raise SequenceGoneError(f"sequence {min(first, end)} is acknowledged; the oldest that is not is {oldest}")

    async def acknowledge(self, reader_id: str, epoch: int | None, through_sequence: int) -> int:
        """Removes all events up to a sequence, included; returns the oldest that remains.

        Many batches are removed by several commits, the oldest first. Where the claim ends between two of them, or one
        fails, the events of the later ones stay.
        """
        self._require(reader_id, epoch)
        if through_sequence >= self._contents.next_sequence:
            raise SequenceGoneError(
                f"through_sequence: {through_sequence} does not exist yet; the newest is "
                f"{self._contents.next_sequence - 1}"
            )
        while True:
            await self._contents.prefetch_end(through_sequence)
            # Again, since it may have ended in the meantime.
            self._require(reader_id, epoch)
            taken = self._contents.take_through(through_sequence, REMOVED_BATCHES_MAX)
            await remove(self._contents, self._committer, taken)
            if len(taken) < REMOVED_BATCHES_MAX:
                return self._contents.first_sequence
            # In a channel in memory, nothing else has waited.
            await asyncio.sleep(0)

    def _require(self, reader_id: str, epoch: int | None) -> Claim:
        """Returns the reader's active claim, and restarts its lease."""
        self._contents.refuse_if_closed()
        check_identifier("reader_id", reader_id)
        if epoch is not None and epoch != self._epoch:
            raise StaleEpochError(
                f"epoch: is {epoch}; the newest claim of the channel has epoch {self._epoch}. Claim the channel again"
            )
        if self.claim is None:
            raise NotClaimedError(f"reader {reader_id!r} has no active claim on the channel; claim it first")
        if self.claim.reader_id != reader_id:
            raise _claimed(self.claim)
        self.claim.lease.renew()
        return self.claim


def _claimed(claim: Claim) -> ChannelClaimedError:
    remaining_seconds = claim.lease.remaining_seconds
    return ChannelClaimedError(
        f"reader {claim.reader_id!r} has claimed the channel, for {remaining_seconds:.1f} s more unless it renews; "
        "wait, have it release the claim, or take the claim over",
        retry_delay_seconds=remaining_seconds,
        reader_id=claim.reader_id,
    )
