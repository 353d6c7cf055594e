"""Commits of a channel in memory that become durable when the test allows it, as with a log."""

from millrace_server.channels.channel import Channel
from millrace_server.channels.commit import Commit
from millrace_server.errors import MillraceError


class SlowCommits:
    """Replaces the committer of a channel.

    Attributes:
        in_flight: The commits that were prepared and have not ended, in order.
        refusal: The error of every submission.
        fault: The error that prevents all commits.
    """

    def __init__(self, channel: Channel) -> None:
        self._contents = channel._contents
        self.fault: MillraceError | None = None
        self.refusal: MillraceError | None = None
        self.in_flight: list[Commit] = []
        channel._core.committer = self  # type: ignore[assignment] # it is as much of one as tests need

    def refuse_unfit(self, _commit: Commit) -> None:
        """Only the submission refuses it."""

    def submit(self, commit: Commit) -> None:
        if self.refusal is not None:
            raise self.refusal
        self._contents.prepare(commit)
        self.in_flight.append(commit)

    def record_rollback(self, txn_id: str, *, has_expired: bool) -> None:
        """Nothing is stored."""

    def let_last(self) -> None:
        """Makes everything in flight durable."""
        for commit in self.in_flight:
            self._contents.apply(commit)
            commit.complete()
        self.in_flight.clear()

    def refuse(self, error: MillraceError) -> None:
        """Aborts everything in flight, the last commit first."""
        for commit in reversed(self.in_flight):
            self._contents.abort(commit)
        for commit in self.in_flight:
            commit.fail(error)
        self.in_flight.clear()
