"""The source `sequence`, which generates numbered events, for testing flows."""

import asyncio
from typing import Literal

from pydantic import Field

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.events import EventTable, HeaderValues
from millrace_server.agent.sources.source import Source, SourceConfig, SourceContext
from millrace_server.agent.sources.stored_ranges import StoredRanges
from millrace_server.channels.stamps import Stamp

_NUMBER = "{number}"
_NUMBER_MAX = 10**15
_BATCHES_PER_SECOND = 10
"""If there is a rate, the size of batches is chosen for about this frequency."""


class SequenceSourceConfig(SourceConfig):
    """A source of numbered events, from 0, for testing flows.

    The numbers are used in stamps: after a restart, the source continues after the last number that its channels have
    stored, if they are of type `file`. With channels in memory, it begins at 0 again.
    """

    type: Literal["sequence"]
    """Numbered events, for testing flows."""

    count: int | None = Field(None, ge=1, le=_NUMBER_MAX)
    """The source stops after this many events, including those before a restart. None: it never stops."""

    events_per_second: float | None = Field(None, gt=0, le=10_000_000, allow_inf_nan=False)
    """The rate, which is not exceeded to make up for a time during which a channel was full. None: as fast as the
    channels store them."""

    body: str = Field(_NUMBER, max_length=1_000_000)
    """The body of an event; `{number}` is replaced by its number."""

    headers: dict[str, str] = Field(default_factory=dict)
    """The headers of an event; in values, `{number}` is replaced by its number."""

    def make(self, context: SourceContext) -> Source:
        return SequenceSource(context.name, self)


class SequenceSource:
    """Continues after the numbers that are stored."""

    def __init__(self, name: str, config: SequenceSourceConfig) -> None:
        self._config = config
        self._producer_id = f"sequence/{name}"

    async def run(self, writer: ChannelWriter) -> None:
        stored = StoredRanges(writer.stored_ranges(self._producer_id))
        count = self._config.count or _NUMBER_MAX
        rate = self._config.events_per_second
        clock = asyncio.get_running_loop().time
        writer.report_running()
        number, due_at = stored.position, clock()
        while number < count:
            # If a channel has already stored later numbers, a batch must not partly overlap them.
            end = min(number + self._batch_size(writer), count, stored.next_boundary(number) or count)
            await writer.deliver(self._table(range(number, end)), Stamp(self._producer_id, number, end - 1))
            if rate is not None:
                due_at = max(due_at + (end - number) / rate, clock())
                await asyncio.sleep(due_at - clock())
            else:
                # A channel in memory responds without letting other tasks run.
                await asyncio.sleep(0)
            number = end
        writer.report_stopped(f"all {count} events are stored")

    def _batch_size(self, writer: ChannelWriter) -> int:
        rate = self._config.events_per_second
        if rate is None:
            return writer.events_max
        return max(min(writer.events_max, int(rate / _BATCHES_PER_SECOND)), 1)

    def _table(self, numbers: range) -> EventTable:
        bodies = [text.encode(errors="replace") for text in _filled(self._config.body, numbers)]
        headers: dict[str, HeaderValues] = {
            key: _filled(value, numbers) if _NUMBER in value else value for key, value in self._config.headers.items()
        }
        return EventTable(bodies, headers)


def _filled(template: str, numbers: range) -> list[str]:
    parts = template.split(_NUMBER)
    return [str(number).join(parts) for number in numbers]
