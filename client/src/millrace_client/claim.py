"""A claim, synchronously."""

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from millrace_client import _calls
from millrace_client._connection import Connection
from millrace_client._flows import ClaimFlows
from millrace_client._granted import GrantedClaim
from millrace_client.events import Batch


class Claim(GrantedClaim):
    """One reader's exclusive right to a channel; threads may share it. Released when its `with` block is left.

    It lives as long as calls come within its lease; a claim that is dropped without `release` ends by that.
    """

    def __init__(self, connection: Connection, flows: ClaimFlows) -> None:
        super().__init__(flows)
        self._connection = connection

    def read(self, from_sequence: int = 0, to_sequence: int = 0) -> Iterator[Batch]:
        """Reads a range, as often as one likes; see `Channel.read`."""
        call = _calls.read(self.channel, self.reader_id, from_sequence, to_sequence, self.epoch)
        return self._connection.stream(call)

    def acknowledge(self, through_sequence: int) -> int:
        """Removes all events up to a sequence, included; see `Channel.acknowledge`."""
        return self._connection.run(_calls.acknowledge(self.channel, self.reader_id, through_sequence, self.epoch))

    def renew(self, wait_seconds: float = 0.0) -> float:
        """Begins the lease anew, as every other call does too, and looks what there is.

        `first_sequence` and `next_sequence` are up to date then.

        Args:
            wait_seconds: How long the answer may wait for an event beyond `next_sequence`. The lease does not run
                meanwhile.

        Returns:
            The lease in seconds.

        Raises:
            LeaseExpiredError: The claim has ended; somebody else may have read since.
        """
        return self._connection.drive(self._flows.renew(wait_seconds))

    def release(self) -> None:
        """Ends the claim; what is not acknowledged stays where it is."""
        self._connection.drive(self._flows.release())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._connection.drive(self._flows.leave(error))
