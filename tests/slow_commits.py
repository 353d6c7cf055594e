"""Commits of a channel in memory that last only once the test says so, as with a log."""

import asyncio

from millrace_server.channels.channel import Channel
from millrace_server.channels.commits import CommitEnd
from millrace_server.channels.contents import Change, Receipt
from millrace_server.errors import MillraceError


class SlowCommits:
    """Takes the place of a channel's own commits.

    Attributes:
        begun: What has begun and is not decided, in its order.
        refusal: What every beginning is refused with.
        fault: Why nothing can be committed.
    """

    def __init__(self, channel: Channel) -> None:
        self._contents = channel.contents
        self.fault: MillraceError | None = None
        self.refusal: MillraceError | None = None
        self.begun: list[tuple[Change, asyncio.Future[Receipt]]] = []
        channel.commits = self  # type: ignore[assignment] # it is as much of one as tests need

    def make(self, change: Change, _txn_ids: object, _end: CommitEnd) -> "Receipt | asyncio.Future[Receipt]":
        if self.refusal is not None:
            raise self.refusal
        begun = self._contents.begin(change)
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self.begun.append((change, future))
        future.add_done_callback(
            lambda done: self._contents.finish(begun) if done.exception() is None else self._contents.undo(begun)
        )
        return future

    def let_last(self) -> None:
        """What has begun lasts."""
        for _, future in self.begun:
            future.set_result(Receipt())
        self.begun.clear()

    def refuse(self, error: MillraceError) -> None:
        """What has begun is undone, the last first."""
        for _, future in reversed(self.begun):
            future.set_exception(error)
        self.begun.clear()
