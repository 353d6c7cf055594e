"""Storing a batch in several channels as one.

A batch has one stamp, and every channel of a source gets a commit with it, with the events that are meant for the
channel or with none. So each channel's numbers are without gaps, and tell the source how far it has come.

*All or nothing, as the source sees it.* Nothing begins before every channel has room; then all commits begin, and no
other task runs in between: a channel that is full, broken or being read back leaves no half behind. What can still fail
is a disk, after some channels have begun, or the whole server. Then the source comes again with the same stamp, and
channels that have accepted it store nothing. This asks of a source that a stamp always means the same events, and of a
selector that an event always goes the same way.

*Balancing.* Where a batch goes to one channel of several, and may go to another one the next time, that is not enough:
a batch that has reached the one might be sent to the other. So the commits have an order: first those without events,
in all channels but one; then, once they last, the one with the events. And a batch that comes again goes only to a
channel that has not accepted it. Let C be the channel with the events:

- As long as any commit without events is missing, C has not begun, so nothing is stored anywhere, and any channel that
  has not accepted the batch may become its new C.
- Once all of these last, C is the only one left: the batch goes to C, where the stamp keeps it from being stored twice.
- Once C has accepted, all have, and no commit stores anything any more.

So no event is stored twice. Nor is any lost: a source is told that a batch is stored where all channels have accepted
it, and C is the last of them. What the order costs is one more wait for the disks.

A log that has failed may have a commit on its disk that it has called undone: whether its channel has accepted the
batch, nobody knows before it is opened anew. Were such a channel taken for the new C, all others would accept the batch
without its events, and the events would be lost should it turn out to have done so too. So nothing begins anywhere
while the log of any of the channels has failed.

Both arguments need channels that remember: what a channel in memory had accepted is forgotten with its process, and
what one with `fsync = "interval"` had accepted last, with the power. And they need the same channels before a crash and
after it; changing a source's channels or selector is for a stopped server, or for a reload, which lets batches end
first.
"""

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence

from millrace_server.agent.dead_letters import UNSTORABLE_ERRORS
from millrace_server.agent.events import EventTable
from millrace_server.agent.selectors import Balancer, Choice
from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.channel import Channel
from millrace_server.channels.contents import Change, Receipt
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import MillraceError, TxnCapacityError


class ChannelBatch:
    """Events for one channel or several; encoded once.

    Attributes:
        table: The events.
    """

    def __init__(self, table: EventTable) -> None:
        self.table = table
        self._encoded: list[StoredColumns] | None = None

    def batches(self) -> list[StoredColumns]:
        """The events as a channel keeps them. Each channel remembers for itself where they lie in its log.

        Raises:
            ColumnsError, UnicodeEncodeError: Some event cannot be encoded.
        """
        if self._encoded is None:
            self._encoded = self.table.stored()
        return [StoredColumns(stored.raw, stored.count, stored.body_bytes) for stored in self._encoded]

    def unencodable(self) -> dict[int, str]:
        """The events that are none that can be encoded: for each index in the table why."""
        return _refused(self, lambda _batches: None)

    def unstorable(self, channel: Channel) -> dict[int, str]:
        """The events that a channel could never take, not even alone: for each index in the table why."""
        return _refused(self, channel.refuse_unstorable)

    def without(self, indexes: Container[int]) -> "ChannelBatch":
        """The other events."""
        return ChannelBatch(self.table.chosen([index not in indexes for index in range(self.table.count)]))


def _refused(batch: ChannelBatch, check: Callable[[Sequence[StoredColumns]], None]) -> dict[int, str]:
    """The events that fail a check, also alone, found by halving."""
    try:
        check(batch.batches())
    except UNSTORABLE_ERRORS as error:
        count = batch.table.count
        if count == 1:
            return {0: str(error)}
        first = _refused(ChannelBatch(batch.table.part(0, count // 2)), check)
        second = _refused(ChannelBatch(batch.table.part(count // 2, count)), check)
        return first | {index + count // 2: reason for index, reason in second.items()}
    return {}


NOTHING = ChannelBatch(EventTable([]))
"""No events."""


def channel_batches_of(table: EventTable, choices: Mapping[str, Choice]) -> dict[str, ChannelBatch]:
    """For each channel that gets any events of a table its batch."""
    whole = ChannelBatch(table)
    batches = {}
    for name, choice in choices.items():
        if choice is True or (choice and all(choice)):
            batches[name] = whole
        elif choice and any(choice):
            batches[name] = ChannelBatch(table.chosen(choice))
    return batches


def unrouted_count(table: EventTable, choices: Mapping[str, Choice]) -> int:
    """How many events of a table go to no channel."""
    masks: list[Sequence[bool]] = []
    for choice in choices.values():
        if choice is True:
            return 0
        if choice:
            masks.append(choice)
    if not masks:
        return table.count
    return sum(not any(goes) for goes in zip(*masks, strict=True))


class FanOut:
    """Stores batches in channels.

    Args:
        registry: All channels.
        channels: Those that must take every batch.
    """

    def __init__(self, registry: ChannelRegistry, channels: Sequence[str]) -> None:
        self._registry = registry
        self._channels = channels

    def channels(self) -> list[Channel]:
        """The channels.

        Raises:
            ChannelNotFoundError, ReplayingError, ChannelCorruptError, ChannelLogFailedError: One of them is not open.
        """
        return [self._registry.get(name) for name in self._channels]

    def has_accepted(self, stamp: Stamp) -> bool:
        """Whether all channels have accepted a batch; it may be on its way to their disks still."""
        return all(channel.contents.ledger.has_accepted(stamp) for channel in self.channels())

    async def store(self, batches: Mapping[str, ChannelBatch], stamp: Stamp, last: str | None = None) -> None:
        """Stores a batch in all channels.

        Args:
            batches: What each channel gets; one that is not named gets none of the events.
            stamp: Names the batch.
            last: A channel that commits only once the commits of all others last.

        Raises:
            MillraceError: Some channel has not stored it; others may have. Its metadata name the channel.
        """
        appends = [_Append(channel, batches.get(channel.name, NOTHING), stamp) for channel in self.channels()]
        for append in appends:
            append.note_attempt()
        groups = [[append for append in appends if append.channel.name != last]]
        groups.append([append for append in appends if append.channel.name == last])
        for group in groups:
            await _commit_together(group, appends)

    async def pick(self, balancer: Balancer, batch: ChannelBatch, stamp: Stamp) -> str:
        """The name of the channel that a batch goes to, as soon as one has room; not all have accepted the batch yet.

        Raises:
            ChannelFullError, BytesFullError: None has had room for as long as a commit may wait.
        """
        candidates = [
            _Append(channel, batch, stamp)
            for channel in self.channels()
            if not channel.contents.ledger.has_accepted(stamp)
        ]
        assert candidates, "what all have accepted goes nowhere any more"
        # Rather where all of its events are welcome; where they are nowhere, some are going to be set aside.
        willing = [append for append in candidates if append.takes_all_events]
        if not willing:
            return balancer.pick([append.channel for append in candidates]).name
        roomy = [append.channel for append in willing if append.has_room_now]
        if roomy:
            return balancer.pick(roomy).name
        if len(willing) == 1:
            return willing[0].channel.name
        return (await _first_with_room(willing)).channel.name


class _Append:
    """The commit of a batch in one channel."""

    def __init__(self, channel: Channel, batch: ChannelBatch, stamp: Stamp) -> None:
        self.channel = channel
        self._parcel = batch
        self._stamp = stamp
        self._seconds_left = channel.config.keep_alive_seconds
        self._has_had_turn = False

    def note_attempt(self) -> None:
        """Has the channel count the events that it is asked to take."""
        self.channel.contents.counters.put_attempts += self._parcel.table.count

    def plan(self) -> Change:
        """What the commit would do now; raises where it could never be."""
        try:
            return self.channel.plan_append(self._parcel.batches(), self._stamp)
        except MillraceError as error:
            _name(error, self.channel)
            raise

    @property
    def takes_all_events(self) -> bool:
        """Whether no event is one that the channel could never take."""
        return not self._parcel.unstorable(self.channel)

    @property
    def has_room_now(self) -> bool:
        """Whether it need not wait."""
        try:
            return self.may_begin(self.plan())
        except TxnCapacityError:
            return False

    def may_begin(self, change: Change) -> bool:
        """Whether there is room, and nobody is overtaken by it."""
        if self._has_had_turn:
            return self.channel.contents.room.admits(change.event_count, change.body_bytes)
        return self.channel.contents.goes_at_once(change)

    async def wait_for_room(self) -> None:
        """Waits for its turn and for room, in all no longer than a commit in this channel may.

        Raises:
            ChannelFullError, BytesFullError: There was no room in time.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            await self.channel.contents.wait_for_room(self.plan, self._seconds_left)
        except MillraceError as error:
            _name(error, self.channel)
            raise
        self._seconds_left = max(self._seconds_left - (clock() - began), 0.0)
        # Whoever stands in the line now came later.
        self._has_had_turn = True

    def refuse_if_broken(self) -> None:
        """Raises ChannelLogFailedError where the channel can commit nothing any more, and nobody knows what it has."""
        if fault := self.channel.commits.fault:
            _name(fault, self.channel)
            raise fault

    def begin(self, change: Change) -> "Receipt | asyncio.Future[Receipt] | MillraceError":
        """Begins it; an error where that cannot be."""
        try:
            return self.channel.begin_append(change)
        except MillraceError as error:
            _name(error, self.channel)
            return error


async def _commit_together(appends: Sequence[_Append], of_batch: Sequence[_Append]) -> None:
    """Commits in several channels, or raises what the first of those says that have not.

    Args:
        appends: The commits.
        of_batch: All commits of the batch, also those whose turn is not yet.
    """
    changes = await _planned_with_room(appends)
    # From the last plan to the last beginning nothing is awaited.
    for append in of_batch:
        append.refuse_if_broken()
    begun = [append.begin(change) for append, change in zip(appends, changes, strict=True)]
    errors = [commit for commit in begun if isinstance(commit, MillraceError)]
    futures = {
        commit: append for commit, append in zip(begun, appends, strict=True) if isinstance(commit, asyncio.Future)
    }
    if futures:
        # Who is cancelled leaves, and the commits go on.
        await asyncio.wait(futures)
    for future, append in futures.items():
        error = future.exception()
        if isinstance(error, MillraceError):
            _name(error, append.channel)
            errors.append(error)
        elif error is not None:
            raise error
    if errors:
        raise errors[0]


async def _planned_with_room(appends: Sequence[_Append]) -> list[Change]:
    """The plans of all commits, for which there is room at this very moment."""
    while True:
        changes = [append.plan() for append in appends]
        for append, change in zip(appends, changes, strict=True):
            if not append.may_begin(change):
                # Meanwhile others may take what room there was elsewhere, so all are asked anew.
                await append.wait_for_room()
                break
        else:
            return changes


async def _first_with_room(appends: Sequence[_Append]) -> _Append:
    """The first commit that has its turn and room; raises what the last one raises where none ever has."""
    waits = {asyncio.create_task(append.wait_for_room()): append for append in appends}
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
        # Each leaves its place in the line before anybody goes on.
        await asyncio.gather(*pending, return_exceptions=True)


def _name(error: MillraceError, channel: Channel) -> None:
    """Has an error say which channel it is about."""
    error.metadata.setdefault("channel", channel.name)
