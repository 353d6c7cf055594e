"""A replicated channel's way through this server: it stands by, takes the channel over, serves it, and leaves it."""

import asyncio
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

import structlog

from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_handle import ChannelHandle, ChannelState, Owner
from millrace_server.channels.config import ReplicatedChannelConfig, shown
from millrace_server.channels.deletion import decide_deletion, finish_deletion
from millrace_server.channels.engines import Engines, SharedEngine
from millrace_server.channels.ownership_hooks import OwnershipHooks
from millrace_server.channels.ownership_stages import MOVES, Stage
from millrace_server.channels.stream_store import OpenStream, StreamEnd, TakeOver
from millrace_server.errors import BadArgumentError, ChannelLogFailedError, DiskFullError, MillraceError, NotOwnerError
from millrace_server.replication.chain import Chain
from millrace_server.replication.engine import EngineError
from millrace_server.replication.lease import ChannelLease, LeaseLostError
from millrace_server.replication.stream import StreamLimits
from millrace_server.replication.stream_reading import SetBackError, StreamMissingError
from millrace_server.wal.records import LogFailedError, LogFullError
from millrace_server.wal.segments import LogCorruptError

_log = structlog.stdlib.get_logger(__name__)

_CONNECT_SECONDS = 1.0
"""Pause before an engine that could not be used is tried again."""

_READY_SECONDS = 3.0
"""So long the engine may take to show who owns what before this server says that it stands by."""

_OPEN_TXNS_SECONDS = 0.5
"""So long a channel that is handed over waits for the end of its open transactions, while it accepts no new work."""

_MOVE_SECONDS = 10.0
"""So long a move waits for the other server to take the channel."""

_POLL_SECONDS = 0.01

_PASSING = (
    EngineError,
    LogFailedError,
    LogFullError,
    LeaseLostError,
    NotOwnerError,
    DiskFullError,
    ChannelLogFailedError,
)
"""Errors of a takeover that another attempt, or another server, may not meet."""


class _Departure(NamedTuple):
    """Why a server serves a channel no more."""

    is_loss: bool = False
    """Whether another server may own it already."""
    target: str = ""
    """The session that is to take it over; empty: any."""
    is_pinned: bool = False
    """Whether it is to stay there."""
    is_deletion: bool = False
    """Whether the channel is deleted."""


class Ownership:
    """What one server does with one replicated channel. For one event loop.

    Attributes:
        stage: Where the channel is on its way.
    """

    def __init__(self, handle: ChannelHandle, engines: Engines, hooks: OwnershipHooks, *, is_new: bool) -> None:
        """`is_new`: the channel is created even if another server has deleted it."""
        self.stage = Stage.STANDING_BY
        self._handle = handle
        self._engines = engines
        self._hooks = hooks
        self._is_new = is_new
        self._left_at = StreamEnd()
        self._shared: SharedEngine | None = None
        self._connecting_since = self._clock()
        self._connecting_error = "it has not responded yet"
        self._lease: ChannelLease | None = None
        self._departing: asyncio.Future[_Departure] | None = None
        self._departed = asyncio.Event()
        self._ending = asyncio.Event()
        self._running = asyncio.get_running_loop().create_task(self._run())

    def leave(self) -> None:
        """Begins to leave the channel to other servers, for good."""
        self._ending.set()
        self._depart(_Departure())
        if self._lease is None:
            self._running.cancel()
        else:
            self._lease.withdraw()

    async def ended(self) -> None:
        """Waits until the channel is left."""
        await asyncio.wait({self._running})

    @property
    def is_awaited(self) -> bool:
        """Whether this server has served the channel, and others live that would take it over."""
        return self.stage in {Stage.SERVING, Stage.LEAVING} and bool(self._successors())

    def _successors(self) -> list[str]:
        """Returns where clients reach the other servers that live and would take the channel over."""
        if self._shared is None:
            return []
        leases = self._shared.leases
        return [address for address in leases.addresses(self._handle.name) if address != leases.members.address]

    async def taken(self) -> None:
        """Waits until another server has taken the channel over, or none that would is left."""
        while not self._owner().address and self._successors():  # noqa: ASYNC110 - the lease changes in many places
            await asyncio.sleep(_POLL_SECONDS)

    async def move(self, server: str) -> None:
        """Hands the channel over to the server at an address, and returns once that owns it.

        Raises:
            BadArgumentError: That server does not share it.
            NotOwnerError: Another server than this one owns it.
        """
        if self._shared is None or self.stage is not Stage.SERVING:
            raise self._refusal()
        leases, name = self._shared.leases, self._handle.name
        if server == leases.members.address:
            return
        target = leases.session_at(server, name)
        if target is None:
            raise BadArgumentError(
                f"server: is {shown(server)}; it must be the address of another server that shares channel {name!r}: "
                f"{' or '.join(self._successors()) or 'there is none'}"
            )
        self._depart(_Departure(target=target, is_pinned=True))
        await self._departed.wait()
        give_up = self._clock() + _MOVE_SECONDS
        while self._owner().address != server:
            if self._clock() >= give_up:
                raise self._refusal()
            await asyncio.sleep(_POLL_SECONDS)

    async def delete(self) -> None:
        """Deletes the channel for all servers, and leaves it.

        Raises ChannelLogFailedError if that is not possible, and the channel continues, or if the engine does not
        respond any more; then its owner deletes it later.
        """
        is_deleted = False
        if self._depart(_Departure(is_deletion=True)):
            await self._departed.wait()
            is_deleted = self._is_deleted()
        elif self.stage is Stage.FAILED and self._shared is not None:
            is_deleted = await self._delete_failed(self._shared)
        if not is_deleted:
            is_decided = self._lease is not None and self._lease.entry.is_deleting
            why = (
                "will be deleted once the engine responds" if is_decided else "cannot be deleted; see the server's log"
            )
            raise ChannelLogFailedError(f"channel {self._handle.name!r} {why}", channel=self._handle.name)

    def _is_deleted(self) -> bool:
        return self._lease is not None and self._lease.entry.is_deleted

    async def _delete_failed(self, shared: SharedEngine) -> bool:
        """Deletes a channel that cannot be opened, which no server serves."""
        assert self._lease is not None, "it tried to own the channel"
        shared.leases.offer(self._handle.name)
        try:
            async with asyncio.timeout(shared.leases.members.lease_seconds):
                await self._lease.acquire()
            if await decide_deletion(self._lease):
                await self._finish_deletion(shared, self._lease)
        except TimeoutError:
            _log.warning("a channel is not deleted, as another server owns it", channel=self._handle.name)
        finally:
            await shared.leases.give_up(self._handle.name)
        return self._is_deleted()

    async def _finish_deletion(self, shared: SharedEngine, lease: ChannelLease) -> None:
        self._stand_by("the channel is being deleted")
        await finish_deletion(shared, lease, self._limits, self._ending)

    # Standing by.

    async def _run(self) -> None:
        try:
            await self._own()
        except Exception as error:  # noqa: BLE001 - a bug of ours concerns this channel; the others continue
            _log.exception("a replicated channel has failed", channel=self._handle.name)
            self._handle.mark_failed(error)

    async def _own(self) -> None:
        """Owns the channel again and again, until it is left for good."""
        shared = self._shared = await self._connected()
        lease = self._lease = shared.leases.of(self._handle.name)
        lease.takes_deleted, lease.is_new = self._handle.configured is not None, self._is_new
        lease.on_lost = self._lose
        lease.on_surplus = lambda target: self._depart(_Departure(target=target))
        lease.on_deleted = self._hooks.deleted_elsewhere
        try:
            while not self._ending.is_set() and self.stage is not Stage.FAILED and not lease.is_withdrawn:
                await self._own_once(shared, lease)
        finally:
            await shared.leases.give_up(self._handle.name)
        if self.stage is Stage.FAILED and await lease.until_deleted():
            self._hooks.deleted_elsewhere()

    async def _connected(self) -> SharedEngine:
        if self._engines.is_serving:
            self._handle.mark_replaying(self._silence)
        else:
            self._stand_by("the server has not started yet")
        late = asyncio.get_running_loop().call_later(_READY_SECONDS, self._stand_by)
        try:
            while (shared := await self._engine_if_usable()) is None:  # noqa: ASYNC110 - only time can help
                await asyncio.sleep(_CONNECT_SECONDS)
            await shared.leases.ready()
        finally:
            late.cancel()
        return shared

    async def _engine_if_usable(self) -> SharedEngine | None:
        try:
            return await self._engines.of(self._config.engine)
        except EngineError as error:
            self._connecting_error = str(error)
            self._stand_by()
            _log.warning("a replicated channel waits for its engine", channel=self._handle.name, error=str(error))
            return None

    def _stand_by(self, obstacle: str = "") -> None:
        """Leaves the channel to others; `obstacle`: what else prevents this server from taking it over."""
        self._handle.mark_standing_by(self._owner, lambda: obstacle or self._silence())

    def _silence(self) -> str:
        """Says that this server cannot reach the engine, and so has no session, since when and why; empty with one."""
        if self._shared is None:
            since = _time_ago(self._clock() - self._connecting_since)
            return f"the engine has been unavailable since {since}: {self._connecting_error}"
        members = self._shared.leases.members
        if members.session:
            return ""
        why = f": {members.last_error}" if members.last_error else ""
        return f"the engine has not responded since {_time_ago(members.silent_seconds)}{why}"

    @property
    def _config(self) -> ReplicatedChannelConfig:
        config = self._handle.config.replicated
        assert config is not None, "a channel's type never changes"
        return config

    @property
    def _limits(self) -> StreamLimits:
        engine = self._config.engine
        return StreamLimits(replicas=engine.replicas, stream_bytes_max=engine.stream_bytes_max)

    def _owner(self) -> Owner:
        if self._lease is None:
            return Owner("", 0)
        holder = self._lease.owner
        if holder is None or self._lease.is_held:
            return Owner("", self._lease.entry.epoch)
        return Owner(holder.address, holder.epoch)

    async def _own_once(self, shared: SharedEngine, lease: ChannelLease) -> None:
        """Waits for the lease, and serves the channel until it is lost or left."""
        if not await lease.try_acquire():
            self._stand_by()
            await lease.acquire()
            if not lease.is_held:
                return
        if lease.entry.is_deleting:
            await self._finish_deletion(shared, lease)
            return
        self._move(Stage.TAKING_OVER)
        self._departed.clear()
        departing = self._departing = asyncio.get_running_loop().create_future()
        if self._ending.is_set() or not lease.is_held:
            # It ended, or was lost, before `_departing` could say so.
            departing.set_result(_Departure(is_loss=not lease.is_held))
        self._handle.mark_replaying(self._silence)
        if (taken := await self._take_over(shared, lease)) is not None:
            opened, channel = taken
            departure = await self._serve_until_departure(opened, channel, lease, departing)
            self._left_at = opened.end
            if departure.is_deletion:
                if await decide_deletion(lease):
                    await self._finish_deletion(shared, lease)
            else:
                await lease.release(
                    departure.target, is_pinned=departure.is_pinned, last_sequence=self._left_at.sequence
                )
            _log.info("channel left", channel=self._handle.name, **departure._asdict())
            self._move(Stage.STANDING_BY)
        self._departing = None
        self._departed.set()

    # Taking over.

    async def _take_over(self, shared: SharedEngine, lease: ChannelLease) -> tuple[OpenStream, Channel] | None:
        """Opens the channel, also for calls; returns None where that fails."""
        handle = self._handle
        attempt = TakeOver(self._limits, shared.leases.members.address, lease.entry.sequence_known, self._left_at)
        handle.log_progress_later()
        opened: OpenStream | None = None
        try:
            opened = await shared.stores.open(handle.name, self._config, attempt, handle.progress, self._note_change)
            await lease.confirm(opened.chain.epoch)
            handle.store = opened.store
            return opened, self._hooks.serve(opened.store.storage)
        except _PASSING as error:
            _log.warning("a channel could not be taken over", channel=handle.name, error=str(error))
            if opened is not None:
                await opened.abandon()
            self._move(Stage.STANDING_BY)
            self._stand_by("" if isinstance(error, LeaseLostError) else str(error))
            await lease.release()
            with suppress(TimeoutError):
                async with asyncio.timeout(shared.leases.members.renew_seconds):
                    await self._ending.wait()
            return None
        except Exception as error:  # noqa: BLE001 - whatever it is concerns this channel; the others continue
            self._move(Stage.FAILED)
            handle.store = None
            handle.mark_failed(error)
            if opened is not None:
                await opened.abandon()
            if isinstance(error, SetBackError):
                # So that no other server takes the stream for whole.
                await lease.release(last_sequence=self._left_at.sequence)
            return None

    # Serving, and leaving.

    async def _serve_until_departure(
        self,
        opened: OpenStream,
        channel: Channel,
        lease: ChannelLease,
        departing: "asyncio.Future[_Departure]",
    ) -> _Departure:
        self._move(Stage.SERVING)
        channel.guard_reading(lambda: lease.is_current)
        noting = asyncio.get_running_loop().create_task(self._note_sequences(opened.chain, lease, departing))
        checking = asyncio.get_running_loop().create_task(self._keep_checking(opened.chain))
        departure = await departing
        checking.cancel()
        if departure.is_loss:
            self._move(Stage.LOSING)
            self._close(channel)
            await opened.abandon()
        elif departure.is_deletion:
            self._move(Stage.LEAVING)
            self._close(channel)
            channel.delete()
            await opened.abandon()
        else:
            self._move(Stage.LEAVING)
            # An engine that does not respond holds it up no longer than the lease.
            lease.on_lost = opened.chain.abandon
            await self._hand_over(channel, opened)
            lease.on_lost = self._lose
        # What it writes must not come behind the release.
        await noting
        return departure

    async def _note_sequences(self, chain: Chain, lease: ChannelLease, departing: "asyncio.Future[_Departure]") -> None:
        """Notes how far the stream has come, once a lease, so that one that is set back is not taken for whole.

        That costs each channel that is written to an entry, so not more often.
        """
        assert self._shared is not None, "the channel is served"
        seconds = self._shared.leases.members.lease_seconds
        while not (await asyncio.wait({departing}, timeout=seconds))[0]:
            await lease.note(chain.last_sequence)

    async def _keep_checking(self, chain: Chain) -> None:
        """Looks once a lease whether the stream is whole: a channel at rest would not notice its loss.

        Opening the channel again shows what is wrong, and whether it can continue.
        """
        assert self._shared is not None, "the channel is served"
        while True:
            await asyncio.sleep(self._shared.leases.members.lease_seconds)
            try:
                await asyncio.wrap_future(chain.check())
            except (LogCorruptError, StreamMissingError) as error:
                _log.error("a channel's stream is damaged", channel=self._handle.name, error=str(error))
                self._lose()
                return
            except EngineError as error:
                # If that lasts, the lease is lost too.
                _log.debug("a channel's stream could not be checked", channel=self._handle.name, error=str(error))

    async def _hand_over(self, channel: Channel, opened: OpenStream) -> None:
        """Lets open transactions end, and writes a checkpoint, so that the next owner reads hardly anything."""
        give_up = self._clock() + _OPEN_TXNS_SECONDS
        channel.drain(self._refusal)
        while channel.open_transactions and self._clock() < give_up:  # noqa: ASYNC110 - they end in many places
            await asyncio.sleep(_POLL_SECONDS)
        # So the next owner can tell their callers why they have ended.
        channel.transactions.expire_all()
        try:
            # What is in flight ends as it would have, so that the checkpoint knows how.
            await channel.appends.wait_until_durable()
            self._close(channel)
            await opened.store.close()
        except MillraceError as error:
            self._close(channel)
            await opened.abandon()
            _log.warning("a channel is released without a checkpoint", channel=self._handle.name, error=str(error))

    def _close(self, channel: Channel) -> None:
        self._hooks.cease()
        self._stand_by()
        channel.close(self._refusal)

    def _refusal(self) -> MillraceError:
        return self._handle.not_owner_error(self._owner())

    def _note_change(self, sentence: str) -> None:
        if self._handle.state is ChannelState.STANDING_BY:
            # The channel was closed, and its log abandoned on purpose: that appends in flight fail is no trouble.
            return
        self._handle.report_change(sentence)
        channel = self._handle.channel_if_open
        if channel is not None and channel.fault is not None:
            # The log decides: this server takes part in it no more, and opens it again if no other does.
            self._lose()

    def _lose(self) -> None:
        self._depart(_Departure(is_loss=True))

    def _depart(self, departure: _Departure) -> bool:
        """Ends the serving; returns False if the channel is not served, or is left already."""
        if self._departing is None or self._departing.done():
            return False
        self._departing.set_result(departure)
        return True

    def _move(self, target: Stage) -> None:
        assert target in MOVES[self.stage], f"{self.stage} -> {target}"
        self.stage = target

    @staticmethod
    def _clock() -> float:
        return asyncio.get_running_loop().time()


def _time_ago(seconds: float) -> str:
    return datetime.fromtimestamp(time.time() - seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
