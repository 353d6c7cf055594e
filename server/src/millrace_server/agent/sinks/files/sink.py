"""The life of a sink of type `files`: from its reader to settled deliveries."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from millrace_server.agent.channel_reader import ChannelReader, Delivery
from millrace_server.agent.sinks.files.store import EventFiles, Progress
from millrace_server.agent.sinks.files.unsettled import UnsettledDeliveries
from millrace_server.agent.sinks.files.worker import FileWorker, ResultT
from millrace_server.agent.supervision import ComponentError
from millrace_server.errors import MillraceError

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
