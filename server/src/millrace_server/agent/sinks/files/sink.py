"""The sink `files`, which takes deliveries, writes their events into files, and settles finished deliveries."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from millrace_server.agent.channel_reader import ChannelReader, Delivery, UnsettledLimits
from millrace_server.agent.sinks.files.event_files import EventFiles, WriteResult
from millrace_server.agent.supervision import ComponentError
from millrace_server.agent.worker_thread import WorkerThread
from millrace_server.errors import MillraceError

SPACE_CHECK_SECONDS = 1.0
"""How often a sink that waits for more events checks whether producers wait for the space of its unsettled events."""

_FLUSH_WAIT_SECONDS = 0.02
"""After a flush was requested, the channel counts as empty if no event arrives within this time."""

CLOSE_SECONDS = 2.0
"""How long a run waits for file operations when it ends."""

ResultT = TypeVar("ResultT")


class FilesSinkSettings(NamedTuple):
    """Settings of a sink, apart from those of its files."""

    name: str
    target: str
    """The directory of its files, for messages."""
    join_events_max: int
    """Small deliveries are joined up to this many events."""
    stall_seconds: float
    """A file system that takes longer for an operation counts as not responding."""


class FilesSink:
    """Writes events into files, and settles their deliveries once the files have their final names."""

    def __init__(self, settings: FilesSinkSettings, make_files: Callable[[], EventFiles]) -> None:
        self._settings = settings
        self._make_files = make_files

    async def run(self, reader: ChannelReader) -> None:
        """Takes deliveries until there are no more; then finishes and settles everything.

        Raises ComponentError if the files cannot be written now: unfinished files are removed, and the next run writes
        their events. Raises MillraceError if the channel cannot be read, or deliveries cannot be settled, now.
        """
        thread = WorkerThread(f"files-{self._settings.name}")
        files = self._make_files()
        run = _Run(self._settings, reader, thread, files)
        try:
            await run.call(files.open)
            await run.until_closed()
        finally:
            await thread.end_with(files.close, CLOSE_SECONDS)


class _Run:
    def __init__(
        self, settings: FilesSinkSettings, reader: ChannelReader, thread: WorkerThread, files: EventFiles
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._thread = thread
        self._files = files
        self._unsettled = UnsettledDeliveries(settings.join_events_max)
        self._clock = asyncio.get_running_loop().time
        self._due_at: float | None = None

    async def call(self, function: Callable[[], ResultT]) -> ResultT:
        """Calls a method of the files on their thread.

        Raises ComponentError if it fails or takes too long; in the latter case it continues, and later calls wait for
        its end.
        """
        target, stall_seconds = self._settings.target, self._settings.stall_seconds
        result = self._thread.submit(function)
        await asyncio.wait({result}, timeout=stall_seconds)
        if not result.done():
            raise ComponentError(f"the file system of {target} has not responded for {stall_seconds:g} seconds")
        try:
            return result.result()
        except OSError as error:
            reason = error.strerror or str(error)
            path = f" ({error.filename})" if error.filename and str(error.filename) != target else ""
            raise ComponentError(f"cannot write files to {target}: {reason}{path}") from error

    async def until_closed(self) -> None:
        taking = asyncio.ensure_future(self._reader.take())
        flush_requested = asyncio.ensure_future(self._reader.flush_requested.wait())
        try:
            while True:
                await asyncio.wait(
                    {taking} if flush_requested.done() else {taking, flush_requested},
                    timeout=self._wait_seconds(),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                await self._roll()
                if not taking.done():
                    await self._finish_if_wanted()
                    continue
                delivery = await self._result_of(taking)
                if delivery is None:
                    return
                # The next events are taken while these are written.
                taking = asyncio.ensure_future(self._reader.take())
                await self._write(delivery)
        finally:
            flush_requested.cancel()
            if not taking.cancel() and not taking.cancelled():
                # Retrieves an error that is not reported here: if it persists, the next run gets it again.
                taking.exception()

    def _wait_seconds(self) -> float | None:
        """Returns how long to wait for more events; None: indefinitely."""
        if not self._unsettled:
            return None
        if self._reader.flush_requested.is_set():
            return _FLUSH_WAIT_SECONDS
        due_in = SPACE_CHECK_SECONDS if self._due_at is None else self._due_at - self._clock()
        return min(max(due_in, 0.0), SPACE_CHECK_SECONDS)

    async def _result_of(self, taking: "asyncio.Future[Delivery | None]") -> Delivery | None:
        """Returns the delivery that was taken; if there is none, settles everything first."""
        try:
            delivery = taking.result()
        except MillraceError:
            # The files are not affected.
            await self._settle(await self.call(self._files.finish_all))
            raise
        if delivery is None:
            await self._settle(await self.call(self._files.finish_all))
        return delivery

    async def _write(self, delivery: Delivery) -> None:
        # Not on the files' thread, since the channel's columns, which are in memory, belong to the event loop.
        batches = [(batch.first_sequence, batch.window.columns()) for batch in delivery.batches]
        channel_id = delivery.channel_id
        number = self._unsettled.add(delivery)
        now = self._clock()
        await self._settle(await self.call(partial(self._files.write, number, channel_id, batches, now)))
        if self._reader.is_recovering:
            # Only a finished file shows that the outage is over, and otherwise the next one may take minutes.
            await self._settle(await self.call(self._files.finish_all))
        while self._unsettled.exceeds(self._reader.unsettled_limits()):
            await self._settle(await self.call(partial(self._files.finish_delivery, self._unsettled.oldest)))

    async def _roll(self) -> None:
        if self._due_at is not None and self._due_at <= self._clock():
            await self._settle(await self.call(partial(self._files.roll, self._clock())))

    async def _finish_if_wanted(self) -> None:
        """Finishes all files, when there is nothing more to take, if a flush was requested or a producer waits."""
        if self._unsettled and (self._reader.flush_requested.is_set() or self._reader.is_space_awaited):
            await self._settle(await self.call(self._files.finish_all))

    async def _settle(self, result: WriteResult) -> None:
        self._due_at = result.due_at
        if not result.completed:
            return
        await _settle_all(self._unsettled.remove(result.completed))
        await self.call(partial(self._files.delete_receipts_below, self._unsettled.low_sequence))


async def _settle_all(deliveries: Sequence[Delivery]) -> None:
    """Settles deliveries concurrently, so that their commits share an fsync of the channel's log."""
    outcomes = await asyncio.gather(*(delivery.settle() for delivery in deliveries), return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None:
            raise outcome


class UnsettledDeliveries:
    """Deliveries whose events are not all in finished files, numbered from 1 in the order of arrival."""

    def __init__(self, join_events_max: int) -> None:
        self._join_events_max = join_events_max
        self._deliveries: dict[int, Delivery] = {}
        self._next_number = 1
        self._event_count = 0
        self._body_bytes = 0
        self.end_sequence = 0

    def __len__(self) -> int:
        return len(self._deliveries)

    @property
    def oldest(self) -> int:
        return next(iter(self._deliveries))

    def add(self, delivery: Delivery) -> int:
        """Adds a delivery, or joins it to the one before it if both are small; returns its number."""
        self._event_count += delivery.count
        self._body_bytes += delivery.body_bytes
        self.end_sequence = max(self.end_sequence, delivery.batches[-1].end_sequence)
        if self._deliveries:
            number, last = next(reversed(self._deliveries.items()))
            if last.count + delivery.count <= self._join_events_max and last.channel_id == delivery.channel_id:
                last.join(delivery)
                return number
        number = self._next_number
        self._next_number += 1
        self._deliveries[number] = delivery
        return number

    def remove(self, numbers: Iterable[int]) -> list[Delivery]:
        removed = [self._deliveries.pop(number) for number in numbers]
        self._event_count -= sum(delivery.count for delivery in removed)
        self._body_bytes -= sum(delivery.body_bytes for delivery in removed)
        return removed

    def exceeds(self, limits: UnsettledLimits) -> bool:
        return (
            self._event_count > limits.event_count
            or self._body_bytes > limits.body_bytes
            or len(self._deliveries) > limits.delivery_count
        )

    @property
    def low_sequence(self) -> int:
        """All events with lower sequences are settled."""
        return min((delivery.first_sequence for delivery in self._deliveries.values()), default=self.end_sequence)
