"""The sink `null`: events that nobody needs."""

from collections.abc import Sequence
from typing import Literal

from millrace_server.agent.sinks.sink import BatchSink, Sink, SinkPlace, TakingSinkConfig
from millrace_server.channels.batches import StoredBatch


class NullSinkConfig(TakingSinkConfig):
    """A sink that drops what it takes."""

    type: Literal["null"]
    """Drops all events."""

    def make(self, _place: SinkPlace) -> Sink:
        return _NullSink()


class _NullSink(BatchSink):
    async def write(self, batches: Sequence[StoredBatch]) -> None:
        """Nothing is to be done."""
