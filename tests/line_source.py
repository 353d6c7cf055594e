"""A source for real daemons that reads numbered lines of a file, and can read them again."""

import asyncio
from itertools import accumulate
from pathlib import Path

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.events import EventTable
from millrace_server.agent.sources.source import SourceContext
from millrace_server.channels.stamps import Stamp

_PRODUCER_ID = "lines"


class LineSource:
    """Delivers the lines of a file in small batches, without those that are already stored.

    Args:
        context: The context of the source.
        path: The file.
        batch_lines: Lines of one batch.
    """

    def __init__(self, context: SourceContext, path: str, batch_lines: int = 7) -> None:
        self._path = Path(path)
        self._batch_lines = batch_lines

    async def run(self, writer: ChannelWriter) -> None:
        lines = await asyncio.to_thread(lambda: self._path.read_bytes().splitlines(keepends=True))
        starts = list(accumulate(map(len, lines), initial=0))
        writer.report_running()
        while True:
            ends = [ranges[-1][1] + 1 if ranges else 0 for ranges in writer.stored_ranges(_PRODUCER_ID)]
            first = starts.index(min(ends))
            border = starts.index(min([end for end in ends if end > min(ends)], default=starts[-1]))
            last = min(first + self._batch_lines, border)
            if first == last:
                break
            bodies = [line.rstrip(b"\n") for line in lines[first:last]]
            await writer.deliver(EventTable(bodies), Stamp(_PRODUCER_ID, starts[first], starts[last] - 1))
        writer.report_stopped("all lines are stored")
