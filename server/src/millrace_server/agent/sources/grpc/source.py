"""The source `grpc`, which stores the commits of callers at its entrance in its channels."""

import asyncio
from functools import partial

import structlog

from millrace_server.agent.batch_router import BatchAttempt
from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.column_table import ColumnTable
from millrace_server.agent.events import EventTable, part_of
from millrace_server.agent.fan_out import AppendOptions
from millrace_server.agent.sources.source import SourceContext
from millrace_server.agent.supervision import ComponentFailedError
from millrace_server.channels.admission import LimitingChannels
from millrace_server.channels.batches import StoredColumns, Window
from millrace_server.channels.commit import Commit
from millrace_server.channels.entrance import EntranceLimits, Route, refuse, settle
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import (
    BytesFullError,
    ChannelFullError,
    InternalError,
    MillraceError,
    NotOwnerError,
    ReplayingError,
)

_RETRY_DELAY_SECONDS = 0.5

_log = structlog.stdlib.get_logger(__name__)


class GrpcSource:
    """Opens the entrance with its name while it runs."""

    def __init__(self, context: SourceContext) -> None:
        self._name = context.name
        self._entrance = context.entrance

    async def run(self, writer: ChannelWriter) -> None:
        if self._entrance is None:
            raise ComponentFailedError(
                "a source of type grpc cannot be reached in a program that embeds the agent; use a source of type "
                "embedded here, or a daemon"
            )
        forwarder = _Forwarder(self._name, writer)
        self._entrance.open(Route(forwarder.limits, forwarder.store))
        writer.report_running()
        try:
            # The callers do all the work.
            await asyncio.Event().wait()
        finally:
            self._entrance.close()
            await forwarder.wait_until_idle()


class _Forwarder:
    """Stores commits in the source's channels, those of one caller in the order in which they arrive.

    *Repeats.* Every channel gets each commit's stamp, with the events selected for it or with none. So the numbers
    refer to the events as they arrived, and each channel recognizes a repeat, even of events that were dropped on the
    way or went to other channels. An append may partly overlap an earlier one, since a caller that sends events again
    may batch them differently, and after a crash the channels may have stored different parts. If a channel gets only
    some events of a batch, it is not known which of the numbers belong to them. Therefore an append is split where the
    channels' accepted numbers begin and end: each piece is either known to a channel as a whole, or new to it. An
    append that has numbers in common with another one waits for it, since concurrent ones might be balanced
    differently.
    """

    def __init__(self, name: str, writer: ChannelWriter) -> None:
        self._name = name
        self._writer = writer
        self._router = writer.router
        self._clock = asyncio.get_running_loop().time
        self._tasks: set[asyncio.Task[None]] = set()
        # The last commit of each caller, until it has started in all channels; the next one starts after it.
        self._beginnings: dict[asyncio.Task[None] | None, asyncio.Future[None]] = {}
        self._stamps: dict[str, dict[asyncio.Task[None], Stamp]] = {}  # Of commits in flight, by producer.

    def limits(self) -> EntranceLimits:
        named = self._writer.required_configs()
        configs = named.values()
        limiting = LimitingChannels(
            transaction_capacity=min(named, key=lambda name: named[name].transaction_capacity),
            byte_capacity=min(named, key=lambda name: named[name].open_body_bytes_max),
        )
        return EntranceLimits(
            transaction_capacity=named[limiting.transaction_capacity].transaction_capacity,
            body_bytes_max=named[limiting.byte_capacity].open_body_bytes_max,
            limiting=limiting,
            lease_seconds=min(config.lease_seconds for config in configs),
            keep_alive_seconds=max(config.keep_alive_seconds for config in configs),
            open_transactions_max=min(config.open_transactions_max for config in configs),
        )

    def store(self, commit: Commit) -> None:
        """Begins to store a commit; see `Route`."""
        # All appends of a stream are submitted by one task.
        caller, begun = asyncio.current_task(), asyncio.get_running_loop().create_future()
        former: set[asyncio.Future[None]] = set(self._overlapping(commit.stamp))
        if caller in self._beginnings:
            former.add(self._beginnings[caller])
        self._beginnings[caller] = begun
        storing = asyncio.create_task(self._store(commit, former, begun))
        self._tasks.add(storing)
        if commit.stamp is not None:
            self._stamps.setdefault(commit.stamp.producer_id, {})[storing] = commit.stamp
        storing.add_done_callback(partial(self._end, commit, caller, begun))
        if not commit.txn_ids:
            # Stores nothing more of the commit in channels where it has not started.
            commit.on_abandoned = storing.cancel

    def _overlapping(self, stamp: Stamp | None) -> list[asyncio.Task[None]]:
        """Returns commits in flight with the same numbers, such as those from a caller's former connection."""
        if stamp is None:
            return []
        of_producer = self._stamps.get(stamp.producer_id, {})
        return [task for task, one in of_producer.items() if one.first <= stamp.last and stamp.first <= one.last]

    def _end(
        self,
        commit: Commit,
        caller: "asyncio.Task[None] | None",
        begun: "asyncio.Future[None]",
        storing: "asyncio.Task[None]",
    ) -> None:
        self._tasks.discard(storing)
        if not begun.done():
            # It was cancelled before its first step.
            begun.set_result(None)
            refuse(commit, _caller_left())
        if self._beginnings.get(caller) is begun:
            del self._beginnings[caller]
        if commit.stamp is not None:
            of_producer = self._stamps[commit.stamp.producer_id]
            del of_producer[storing]
            if not of_producer:
                del self._stamps[commit.stamp.producer_id]

    async def wait_until_idle(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _store(self, commit: Commit, former: "set[asyncio.Future[None]]", begun: "asyncio.Future[None]") -> None:
        came_at = self._clock()
        try:
            received = ColumnTable([_columns_of(window) for window in commit.puts])
            with self._writer.span(received) as table, self._writer.reported(table):
                try:
                    if former:
                        await asyncio.wait(former)
                    attempts = await self._begin(commit, table, came_at)
                finally:
                    begun.set_result(None)
                for attempt in attempts:
                    await self._router.finish(attempt)
        except asyncio.CancelledError:
            refuse(commit, _caller_left())
            raise
        except MillraceError as error:
            refuse(commit, _for_caller(error))
        except Exception:  # noqa: BLE001 - a bug must not leave the caller without a response
            _log.exception("an append could not be stored", source=self._name)
            refuse(commit, InternalError("internal error; see the server's log"))
        else:
            settle(commit, is_deduplicated=any(attempt.is_repeat for attempt in attempts))

    async def _begin(self, commit: Commit, table: EventTable, came_at: float) -> list[BatchAttempt]:
        """Submits the pieces of a commit to the channels."""
        stamp, of_txns = commit.stamp, bool(commit.txn_ids)
        attempts: list[BatchAttempt] = []
        while True:
            options = AppendOptions(self._clock() - came_at, also_draining=of_txns, is_bounded=not of_txns)
            count = self._uniform_count(table, stamp)
            if stamp is None or count == table.count:
                attempts.append(self._router.start(table, stamp, options))
            else:
                attempts.append(self._router.start(*part_of(table, stamp, 0, count), options))
            await self._router.begin(attempts[-1])
            if stamp is None or count == table.count:
                return attempts
            table, stamp = part_of(table, stamp, count, table.count)

    def _uniform_count(self, table: EventTable, stamp: Stamp | None) -> int:
        """Returns the number of first events of which each channel has accepted either all or none.

        If the events do not have a number each, this is the number of all events.
        """
        if stamp is None or stamp.span != table.count:
            return table.count
        return min(channel.ledger.run_end(stamp) for channel in self._router.fan_out.channels()) - stamp.first + 1


def _caller_left() -> InternalError:
    return InternalError("the caller has disconnected")


def _columns_of(window: Window) -> StoredColumns:
    if window.is_whole:
        return window.stored
    return StoredColumns(window.columns(), window.count, window.body_bytes)


def _for_caller(error: MillraceError) -> MillraceError:
    """Returns the error for a caller, which knows neither the source's interceptors nor its channels' servers."""
    if isinstance(error, InternalError):
        return InternalError(
            "the source cannot pass the events on at the moment; the server's log says why",
            retry_delay_seconds=error.retry_delay_seconds,
        )
    if isinstance(error, NotOwnerError):
        # The owner's address is of no use for appends to this source.
        return ReplayingError(str(error), retry_delay_seconds=_RETRY_DELAY_SECONDS)
    if isinstance(error, ChannelFullError | BytesFullError) and "channel" in error.metadata:
        # The caller knows only the source's name, and would take "the channel" for the source.
        message = f"channel {error.metadata['channel']}: {error}"
        return type(error)(message, retry_delay_seconds=error.retry_delay_seconds, **error.metadata)
    return error
