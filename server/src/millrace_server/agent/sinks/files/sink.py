"""Deliveries that a sink holds until the files with their events are finished."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from millrace_server.agent.channel_reader import ChannelReader, Delivery, UnsettledLimits
from millrace_server.agent.sinks.files.store import EventFiles, Progress
from millrace_server.agent.supervision import ComponentError
from millrace_server.agent.worker_thread import WorkThread
from millrace_server.errors import MillraceError


class UnsettledDeliveries:
    """What is held, by numbers that count from 1 in the order in which it came.

    Args:
        join_events_max: Small deliveries that follow each other are joined as long as they have no more events.

    Attributes:
        end_sequence: One past the highest sequence that was ever added.
    """

    def __init__(self, join_events_max: int) -> None:
        self._join_events_max = join_events_max
        self._deliveries: dict[int, Delivery] = {}
        self._next_number = 1
        self._event_count = 0
        self._body_bytes = 0
        self.end_sequence = 0

    def __len__(self) -> int:
        """Deliveries that are held."""
        return len(self._deliveries)

    @property
    def oldest(self) -> int:
        """The number of the delivery that is held for longest."""
        return next(iter(self._deliveries))

    def add(self, delivery: Delivery) -> int:
        """Holds a delivery, as a part of the one before it where both are small; returns its number."""
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
        """Holds deliveries no more; returns them."""
        removed = [self._deliveries.pop(number) for number in numbers]
        self._event_count -= sum(delivery.count for delivery in removed)
        self._body_bytes -= sum(delivery.body_bytes for delivery in removed)
        return removed

    def exceeds(self, holdable: UnsettledLimits) -> bool:
        """Whether more is held than may be."""
        return (
            self._event_count > holdable.event_count
            or self._body_bytes > holdable.body_bytes
            or len(self._deliveries) > holdable.delivery_count
        )

    @property
    def low_sequence(self) -> int:
        """Below it nothing is held."""
        return min((delivery.first_sequence for delivery in self._deliveries.values()), default=self.end_sequence)


ResultT = TypeVar("ResultT")


class FileWorker:
    """Does one job after the other on a thread of its own, and waits for none too long.

    Args:
        name: The thread's name.
        stall_seconds: A job that takes longer is not waited for.
        stalled: Says what does not answer, for the component's state.
    """

    def __init__(self, name: str, stall_seconds: float, stalled: str) -> None:
        self._stall_seconds = stall_seconds
        self._stalled = stalled
        self._thread = WorkThread(name)

    async def do(self, job: Callable[[], ResultT]) -> ResultT:
        """Does a job; returns what it returns, or raises what it raises.

        Raises:
            ComponentError: It takes too long. It goes on nevertheless, and what was asked for next waits for its end.
        """
        done = self._thread.do(job)
        await asyncio.wait({done}, timeout=self._stall_seconds)
        if not done.done():
            raise ComponentError(self._stalled)
        return done.result()

    async def close(self, last: Callable[[], None], timeout_seconds: float) -> None:
        """Does a last job, after that which it is at; waits for it, but not too long."""
        done = self._thread.do(last)
        self._thread.end()
        await asyncio.wait({done}, timeout=timeout_seconds)


ROOM_CHECK_SECONDS = 1.0
"""How often a sink that waits for more events looks whether others wait for the room that it holds."""

_MORE_SECONDS = 0.02
"""A sink that is hurried has nothing more to take where nothing comes for so long."""

CLOSE_SECONDS = 2.0
"""How long the end of a run waits for what is at work with the files."""


class SinkTraits(NamedTuple):
    """What a sink is beside its files."""

    name: str
    """Its name in the configuration."""
    target: str
    """Where its files go, for messages."""
    join_events_max: int
    """Small deliveries become one up to so many events."""
    stall_seconds: float
    """A file system that takes longer for one thing does not answer."""


class FilesSink:
    """Writes events into files, and settles them once these have their final names.

    Args:
        traits: What it is.
        make_store: Makes what writes the files; each run has its own, and does not share its thread.
    """

    def __init__(self, traits: SinkTraits, make_store: Callable[[], EventFiles]) -> None:
        self._traits = traits
        self._make_store = make_store

    async def run(self, reader: ChannelReader) -> None:
        """Takes deliveries until there are no more; then everything is finished and settled.

        Raises:
            ComponentError: The files cannot be written now. What is unfinished is removed, to be written anew.
            MillraceError: The channel cannot be read now, or not be settled.
        """
        traits = self._traits
        stalled = f"the file system of {traits.target} has not answered for {traits.stall_seconds:g} seconds"
        worker = FileWorker(f"files-{traits.name}", traits.stall_seconds, stalled)
        store = self._make_store()
        run = _Run(traits, reader, worker, store)
        try:
            await run.do(store.open)
            await run.until_closed()
        finally:
            await worker.close(store.close, CLOSE_SECONDS)


class _Run:
    """One run of a sink."""

    def __init__(self, traits: SinkTraits, reader: ChannelReader, worker: FileWorker, store: EventFiles) -> None:
        self._traits = traits
        self._reader = reader
        self._worker = worker
        self._store = store
        self._held = UnsettledDeliveries(traits.join_events_max)
        self._clock = asyncio.get_running_loop().time
        self._due_at: float | None = None

    async def do(self, job: Callable[[], ResultT]) -> ResultT:
        """Does a job of the store's on its thread.

        Raises:
            ComponentError: It failed, or takes too long.
        """
        try:
            return await self._worker.do(job)
        except OSError as error:
            reason = error.strerror or str(error)
            place = f" ({error.filename})" if error.filename and str(error.filename) != self._traits.target else ""
            raise ComponentError(f"cannot write files to {self._traits.target}: {reason}{place}") from error

    async def until_closed(self) -> None:
        """Takes deliveries until there are no more, and settles all of them."""
        taking = asyncio.ensure_future(self._reader.take())
        hurried = asyncio.ensure_future(self._reader.hurried.wait())
        try:
            while True:
                await asyncio.wait(
                    {taking} if hurried.done() else {taking, hurried},
                    timeout=self._patience(),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                await self._roll()
                if not taking.done():
                    await self._finish_for_others()
                    continue
                delivery = await self._taken(taking)
                if delivery is None:
                    return
                # The next events are taken while these are written.
                taking = asyncio.ensure_future(self._reader.take())
                await self._write(delivery)
        finally:
            hurried.cancel()
            if not taking.cancel() and not taking.cancelled():
                # What it failed with is told at the next try, if it still does.
                taking.exception()

    def _patience(self) -> float | None:
        """How long to wait for more events; None: for ever."""
        if not self._held:
            return None
        if self._reader.hurried.is_set():
            return _MORE_SECONDS
        due_in = ROOM_CHECK_SECONDS if self._due_at is None else self._due_at - self._clock()
        return min(max(due_in, 0.0), ROOM_CHECK_SECONDS)

    async def _taken(self, taking: "asyncio.Future[Delivery | None]") -> Delivery | None:
        """The delivery that was taken. Where there is none, all that is held is settled first."""
        try:
            delivery = taking.result()
        except MillraceError:
            # What there is of the files is as good as ever.
            await self._settle(await self.do(self._store.finish_all))
            raise
        if delivery is None:
            await self._settle(await self.do(self._store.finish_all))
        return delivery

    async def _write(self, delivery: Delivery) -> None:
        # Here, since the channel's own columns are for the event loop only; they are in memory.
        batches = [(batch.first_sequence, batch.window.columns()) for batch in delivery.batches]
        channel_id = delivery.channel_id
        number = self._held.add(delivery)
        now = self._clock()
        await self._settle(await self.do(partial(self._store.write, number, channel_id, batches, now)))
        while self._held.exceeds(self._reader.holdable()):
            await self._settle(await self.do(partial(self._store.finish_delivery, self._held.oldest)))

    async def _roll(self) -> None:
        """Finishes what is due."""
        if self._due_at is not None and self._due_at <= self._clock():
            await self._settle(await self.do(partial(self._store.roll, self._clock())))

    async def _finish_for_others(self) -> None:
        """Finishes all where somebody waits for it, and there is nothing more to take just now."""
        if self._held and (self._reader.hurried.is_set() or self._reader.is_room_wanted):
            await self._settle(await self.do(self._store.finish_all))

    async def _settle(self, progress: Progress) -> None:
        self._due_at = progress.due_at
        if not progress.completed:
            return
        await _settle_all(self._held.remove(progress.completed))
        await self.do(partial(self._store.forget_below, self._held.low_sequence))


async def _settle_all(deliveries: Sequence[Delivery]) -> None:
    """Settles deliveries, all at the same time, so that their commits share a sync of the channel's log."""
    settled = await asyncio.gather(*(delivery.settle() for delivery in deliveries), return_exceptions=True)
    for outcome in settled:
        if outcome is not None:
            raise outcome
