"""A claim, for threads."""

from collections.abc import Iterator
from typing import Self

from millrace_client import _calls
from millrace_client._call_sequences import ClaimCalls
from millrace_client._connection import Connection
from millrace_client.events import Batch


class GrantedClaim:
    """A claim as the server granted it last; base of both APIs' claims."""

    def __init__(self, sequences: ClaimCalls) -> None:
        self._sequences = sequences

    @property
    def channel(self) -> str:
        return self._sequences.channel

    @property
    def reader_id(self) -> str:
        return self._sequences.reader_id

    @property
    def first_sequence(self) -> int:
        """The oldest sequence that was not acknowledged when the claim was granted or renewed last.

        Equals `next_sequence` if the channel was empty.
        """
        return self._sequences.grant.first_sequence

    @property
    def next_sequence(self) -> int:
        """The sequence of the next event to be committed at that time."""
        return self._sequences.grant.next_sequence

    @property
    def epoch(self) -> int:
        """The claim's epoch, which grows with each new claim on the channel."""
        return self._sequences.grant.epoch

    @property
    def channel_id(self) -> str:
        """The channel's unique id, which changes if the channel is deleted and created again."""
        return self._sequences.grant.channel_id

    @property
    def lease_seconds(self) -> float:
        """How long the claim lives without a call."""
        return self._sequences.grant.lease_seconds

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.reader_id} on {self.channel}, epoch {self.epoch}>"


class Claim(GrantedClaim):
    """One reader's exclusive right to a channel. Threads may share it. Released at the end of its `with` block.

    It lives as long as calls are made within its lease; without `release` its lease ends it.
    """

    def __init__(self, connection: Connection, sequences: ClaimCalls) -> None:
        super().__init__(sequences)
        self._connection = connection

    def read(self, from_sequence: int = 0, to_sequence: int = 0) -> Iterator[Batch]:
        """Reads a range, also repeatedly; see `Channel.read`."""
        call = _calls.read(self.channel, self.reader_id, from_sequence, to_sequence, self.epoch)
        return self._connection.stream(call)

    def acknowledge(self, through_sequence: int) -> int:
        """Removes all events up to a sequence, inclusive; see `Channel.acknowledge`."""
        return self._connection.run(_calls.acknowledge(self.channel, self.reader_id, through_sequence, self.epoch))

    def renew(self, wait_seconds: float = 0.0) -> float:
        """Renews the lease, as every other call does, and updates `first_sequence` and `next_sequence`.

        Args:
            wait_seconds: How long the server may wait for an event beyond `next_sequence`. The lease does not run
                in the meantime.

        Returns:
            The lease in seconds.

        Raises:
            LeaseExpiredError: The claim has ended; another reader may have read since.
        """
        return self._connection.drive(self._sequences.renew(wait_seconds))

    def release(self) -> None:
        """Ends the claim; events that are not acknowledged keep their positions."""
        self._connection.drive(self._sequences.release())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._connection.drive(self._sequences.leave(error))
