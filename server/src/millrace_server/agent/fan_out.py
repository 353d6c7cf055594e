"""Fan-out: storing a batch in several channels as a unit.

A batch has one stamp, and every channel of a source gets a commit with that stamp, with the events selected for the
channel or with none. So each channel's numbers have no gaps, and show the source what has been stored.

*All or nothing, from the source's point of view.* No commit begins before every channel has space; then all commits
begin, and no other task runs in between: a channel that is full, broken or replaying leaves no partial batch behind.
After that, only a disk or the whole server can fail, when some commits have begun. Then the source repeats the batch
with the same stamp, and channels that have accepted it store nothing. This requires that a stamp always means the same
events, and that a selector always selects the same channels for an event.

*Load balancing.* If a batch goes to one of several channels, and a repeat may go to another one, this is not enough: a
batch stored in one channel might be repeated in another. So the commits have an order: first those without events, in
all channels but one; then, once these are durable, the one with the events. A repeat goes only to a channel that has
not accepted the batch. Let C be the channel with the events:

- While any commit without events is missing, the commit in C has not started, so nothing is stored anywhere, and any
  channel that has not accepted the batch may become its new C.
- Once all of them are durable, only C remains: the batch goes to C, where its stamp prevents a second copy.
- Once C has accepted it, all channels have, and no further commit stores anything.

So no event is stored twice. None is lost either: a batch counts as stored only once all channels have accepted it, and
C is the last of them. The price of the order is one more wait for the disks.

A log that has failed may have written a commit that it reported as failed: whether its channel has accepted the batch
is unknown until the channel is opened again. If such a channel were picked as the new C, all others would accept the
batch without its events, and the events would be lost if this channel had done the same. So no commit begins in any
channel while the log of one of them has failed.

Both arguments require durable channels: a memory channel forgets what it has accepted when its process ends, and one
with `fsync = "interval"` forgets the most recent batches in a power failure. They also require the same channels before
and after a crash; change a source's channels or selector only on a stopped server, or by a reload, which lets batches
end first.
"""

import asyncio
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from millrace_server.agent.dead_letters import UNSTORABLE_ERRORS
from millrace_server.agent.events import EventTable
from millrace_server.agent.selectors import EventMask, LoadBalancer
from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.channel import Channel
from millrace_server.channels.commit import Commit
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import MillraceError, TxnCapacityError


class ChannelBatch:
    """Events for one or more channels, encoded once."""

    def __init__(self, table: EventTable) -> None:
        self.table = table
        self._encoded: list[StoredColumns] | None = None

    def batches(self) -> list[StoredColumns]:
        """Returns the events as one channel stores them, in new objects, since these hold a location in its log.

        Raises ColumnsError or UnicodeEncodeError if an event cannot be encoded.
        """
        if self._encoded is None:
            self._encoded = self.table.stored()
        return [StoredColumns(stored.raw, stored.count, stored.body_bytes) for stored in self._encoded]

    def unencodable(self) -> dict[int, str]:
        """Returns the events that cannot be encoded: the reason by the event's index in the table."""
        return _failing(self, lambda _batches: None)

    def unstorable(self, channel: Channel) -> dict[int, str]:
        """Returns the events that a channel can never accept, not even alone: the reason by the event's index."""
        return _failing(self, channel.appends.refuse_unstorable)

    def without(self, indexes: Container[int]) -> "ChannelBatch":
        return ChannelBatch(self.table.chosen([index not in indexes for index in range(self.table.count)]))


def _failing(batch: ChannelBatch, check: Callable[[Sequence[StoredColumns]], None]) -> dict[int, str]:
    """Returns the events that fail a check individually, which are found by bisection."""
    try:
        check(batch.batches())
    except UNSTORABLE_ERRORS as error:
        count = batch.table.count
        if count == 1:
            return {0: str(error)}
        first = _failing(ChannelBatch(batch.table.part(0, count // 2)), check)
        second = _failing(ChannelBatch(batch.table.part(count // 2, count)), check)
        return first | {index + count // 2: reason for index, reason in second.items()}
    return {}


EMPTY_BATCH = ChannelBatch(EventTable([]))


def channel_batches_of(table: EventTable, masks: Mapping[str, EventMask]) -> dict[str, ChannelBatch]:
    """Returns the batch of each channel that gets any of the events."""
    whole = ChannelBatch(table)
    batches = {}
    for name, mask in masks.items():
        if mask is True or (mask and all(mask)):
            batches[name] = whole
        elif mask and any(mask):
            batches[name] = ChannelBatch(table.chosen(mask))
    return batches


def unrouted_count(table: EventTable, masks: Mapping[str, EventMask]) -> int:
    """Returns how many of the events go to no channel."""
    if any(mask is True for mask in masks.values()):
        return 0
    partial = [mask for mask in masks.values() if not isinstance(mask, bool) and mask]
    if not partial:
        return table.count
    return sum(not any(selected) for selected in zip(*partial, strict=True))


class AppendOptions(NamedTuple):
    """How the channels append a batch."""

    waited_seconds: float = 0.0
    """How much of the time that a commit may wait for space has passed already."""
    also_draining: bool = False
    """Whether it is stored even while the server drains, because it ends transactions that were open before."""
    is_bounded: bool = True
    """Whether the limit of events in a transaction applies to it."""


DEFAULT_OPTIONS = AppendOptions()


class FanOut:
    """Stores batches in channels."""

    def __init__(self, registry: ChannelRegistry, channels: Sequence[str]) -> None:
        self._registry = registry
        self._channels = channels

    def channels(self) -> list[Channel]:
        """Returns the channels. Raises MillraceError if one of them is not open."""
        return [self._registry.get(name) for name in self._channels]

    def has_accepted(self, stamp: Stamp | None) -> bool:
        """Whether all channels have accepted a batch, which may not be durable yet."""
        return stamp is not None and all(channel.ledger.has_accepted(stamp) for channel in self.channels())

    async def begin(
        self,
        batches: Mapping[str, ChannelBatch],
        stamp: Stamp | None,
        last: str | None = None,
        options: AppendOptions = DEFAULT_OPTIONS,
    ) -> "SubmittedCommits":
        """Submits the commits of a batch, as soon as there is space for all of them.

        Channels without an entry get no events, and without a stamp no commit either. The channel `last` commits only
        once the commits of all others are durable. Raises MillraceError, with the channel in its metadata, if a channel
        has not stored the batch; others may have.
        """
        appends = [
            _Append(channel, batches.get(channel.name, EMPTY_BATCH), stamp, options)
            for channel in self.channels()
            if stamp is not None or channel.name in batches
        ]
        for append in appends:
            append.count_attempt()
        in_last = [append for append in appends if append.channel.name == last]
        if not in_last:
            return await _begin_together(appends, appends)
        others = [append for append in appends if append.channel.name != last]
        await (await _begin_together(others, appends)).finish()
        return await _begin_together(in_last, appends)

    async def pick(
        self,
        load_balancer: LoadBalancer,
        batch: ChannelBatch,
        stamp: Stamp | None,
        options: AppendOptions = DEFAULT_OPTIONS,
    ) -> str:
        """Returns the channel for a batch that not all of them have accepted yet, as soon as one has space.

        Raises ChannelFullError or BytesFullError if no channel has space within the time that a commit may wait.
        """
        candidates = [
            _Append(channel, batch, stamp, options)
            for channel in self.channels()
            if stamp is None or not channel.ledger.has_accepted(stamp)
        ]
        assert candidates, "the batch was not accepted by all channels"
        # Prefers channels that accept all of its events; if there are none, some events become dead letters.
        willing = [append for append in candidates if append.takes_all_events]
        if not willing:
            return load_balancer.pick([append.channel for append in candidates]).name
        with_space = [append.channel for append in willing if append.has_space_now]
        if with_space:
            return load_balancer.pick(with_space).name
        if len(willing) == 1:
            return willing[0].channel.name
        return (await _first_with_space(willing)).channel.name


class _Append:
    def __init__(self, channel: Channel, batch: ChannelBatch, stamp: Stamp | None, options: AppendOptions) -> None:
        self.channel = channel
        self._batch = batch
        self._stamp = stamp
        self._options = options
        self._seconds_left = max(channel.config.keep_alive_seconds - options.waited_seconds, 0.0)
        self._has_waited = False

    def count_attempt(self) -> None:
        self.channel.counters.put_attempts += self._batch.table.count

    def plan(self) -> Commit:
        """Plans the commit. Raises MillraceError if it is never possible."""
        with _naming(self.channel):
            return self.channel.appends.plan_append(
                self._batch.batches(),
                self._stamp,
                also_draining=self._options.also_draining,
                is_bounded=self._options.is_bounded,
            )

    @property
    def takes_all_events(self) -> bool:
        """Whether the channel can accept all of the events eventually."""
        return not self._batch.unstorable(self.channel)

    @property
    def has_space_now(self) -> bool:
        try:
            return self.is_admitted(self.plan())
        except TxnCapacityError:
            return False

    def is_admitted(self, commit: Commit) -> bool:
        """Whether there is space, and no earlier append is waiting for it."""
        return self.channel.appends.admits(commit, had_turn=self._has_waited)

    async def wait_for_space(self) -> None:
        """Waits for its turn and for space, in total no longer than a commit in this channel may wait.

        Raises ChannelFullError or BytesFullError if there is no space in time.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        with _naming(self.channel):
            await self.channel.appends.wait_for_space(self.plan, self._seconds_left)
        self._seconds_left = max(self._seconds_left - (clock() - began), 0.0)
        # All appends that are waiting now arrived later.
        self._has_waited = True

    def refuse_if_broken(self) -> None:
        """Raises ChannelLogFailedError if the channel's log has failed; see the module's docstring."""
        with _naming(self.channel):
            if fault := self.channel.fault:
                raise fault

    def refuse_unfit(self, commit: Commit) -> None:
        """Raises the error with which the channel would refuse the planned commit now."""
        with _naming(self.channel):
            self.channel.appends.refuse_unfit(commit)

    def submit(self, commit: Commit) -> MillraceError | None:
        """Submits the commit; returns the error if it is refused."""
        try:
            with _naming(self.channel):
                self.channel.appends.submit_append(commit)
        except MillraceError as error:
            return error
        return None

    async def wait(self, commit: Commit) -> MillraceError | None:
        """Waits until the commit is durable; returns the error if it is aborted."""
        try:
            with _naming(self.channel):
                await commit
        except MillraceError as error:
            return error
        return None


class SubmittedCommits:
    """Commits that were submitted together."""

    def __init__(self, submitted: Sequence[tuple[_Append, Commit]], refusals: Sequence[MillraceError]) -> None:
        self._submitted = submitted
        self._refusals = refusals

    async def finish(self) -> None:
        """Waits until all are durable. Raises the first error of a commit that was refused or aborted."""
        # If the caller is cancelled, the commits continue.
        aborts = [await append.wait(commit) for append, commit in self._submitted]
        for error in [*self._refusals, *aborts]:
            if error is not None:
                raise error


async def _begin_together(appends: Sequence[_Append], of_batch: Sequence[_Append]) -> SubmittedCommits:
    """Submits the commits `appends` of a batch once, as far as is known, none of them would be refused.

    `of_batch` are the commits of the batch in all channels.
    """
    planned = list(zip(appends, await _plan_with_space(appends), strict=True))
    # Nothing is awaited between the last plan and the last submission.
    for append in of_batch:
        append.refuse_if_broken()
    for append, commit in planned:
        append.refuse_unfit(commit)
    refusals = [append.submit(commit) for append, commit in planned]
    submitted = [pair for pair, refusal in zip(planned, refusals, strict=True) if refusal is None]
    return SubmittedCommits(submitted, [refusal for refusal in refusals if refusal is not None])


async def _plan_with_space(appends: Sequence[_Append]) -> list[Commit]:
    """Returns the plans of all commits, once there is space for all of them at the same time."""
    while True:
        commits = [append.plan() for append in appends]
        for append, commit in zip(appends, commits, strict=True):
            if not append.is_admitted(commit):
                # Meanwhile, the space in the other channels may be used by others, so all are planned again.
                await append.wait_for_space()
                break
        else:
            return commits


async def _first_with_space(appends: Sequence[_Append]) -> _Append:
    """Returns the first append that gets its turn and space. Raises the last error if none does in time."""
    waits = {asyncio.create_task(append.wait_for_space()): append for append in appends}
    pending = set(waits)
    try:
        while True:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            failures = [failure for wait in done if (failure := wait.exception()) is not None]
            if len(failures) < len(done):
                return next(waits[wait] for wait in done if wait.exception() is None)
            if not pending:
                raise failures[-1]
    finally:
        for wait in pending:
            wait.cancel()
        # Each leaves the queue of waiting appends before anything else happens.
        await asyncio.gather(*pending, return_exceptions=True)


@contextmanager
def _naming(channel: Channel) -> Iterator[None]:
    """Adds the channel's name to the errors that it raises."""
    try:
        yield
    except MillraceError as error:
        error.metadata.setdefault("channel", channel.name)
        raise
