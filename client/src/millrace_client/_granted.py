"""What claims are in both faces."""

from millrace_client._flows import ClaimFlows


class GrantedClaim:
    """What the server granted."""

    def __init__(self, flows: ClaimFlows) -> None:
        self._flows = flows

    @property
    def channel(self) -> str:
        """The channel's name."""
        return self._flows.channel

    @property
    def reader_id(self) -> str:
        """Who reads."""
        return self._flows.reader_id

    @property
    def first_sequence(self) -> int:
        """The oldest sequence that was not acknowledged when the claim was made or renewed last.

        `next_sequence` where the channel was empty.
        """
        return self._flows.grant.first_sequence

    @property
    def next_sequence(self) -> int:
        """The sequence that the next committed event was to get then."""
        return self._flows.grant.next_sequence

    @property
    def epoch(self) -> int:
        """Grows with each new claim on the channel."""
        return self._flows.grant.epoch

    @property
    def channel_id(self) -> str:
        """Names this making of the channel: another one where it was deleted and made again."""
        return self._flows.grant.channel_id

    @property
    def lease_seconds(self) -> float:
        """How long the claim lives without a call."""
        return self._flows.grant.lease_seconds

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.reader_id} on {self.channel}, epoch {self.epoch}>"
