"""The source `taildir` at work."""

import asyncio

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.events import EventTable
from millrace_server.agent.sources.source import SourceContext
from millrace_server.agent.sources.taildir.config import TaildirSourceConfig
from millrace_server.agent.sources.taildir.discovery import AcceptedRanges
from millrace_server.agent.sources.taildir.file_scheduler import FileScheduler, Portion
from millrace_server.agent.sources.taildir.register import FileRegister, shown_path
from millrace_server.agent.sources.taildir.tailed_file import TailedFile
from millrace_server.agent.worker_thread import WorkerThread
from millrace_server.channels.stamps import Stamp

_ANSWER_SECONDS_MAX = 60.0
"""The event loop answers its threads sooner, as long as it runs."""


class TaildirSource:
    """Brings the lines of files that grow, each exactly once and in order.

    Each file is a producer of its own, and a batch's stamp says which of its bytes the batch covers. So the channels
    themselves know what they have stored: a batch that was stored in some of them only is stored in the others once it
    is read again.

    All that touches files is done by one thread of the source's own. It reads the next block while the one before is
    being stored.
    """

    def __init__(self, config: TaildirSourceConfig, place: SourceContext) -> None:
        self._config = config
        self._place = place

    async def run(self, writer: ChannelWriter) -> None:
        """Brings lines until it is cancelled.

        Raises:
            ComponentFailedError: Another version of the server has saved its positions.
            OSError: Its positions cannot be read.
            MillraceError: A channel does not exist any more.
        """
        loop = asyncio.get_running_loop()

        async def ask(producer_id: str) -> AcceptedRanges:
            return writer.stored_ranges(producer_id)

        def accepted(producer_id: str) -> AcceptedRanges:
            return asyncio.run_coroutine_threadsafe(ask(producer_id), loop).result(_ANSWER_SECONDS_MAX)

        register = FileRegister(self._config, self._place, accepted)
        scheduler = FileScheduler(self._config, register)
        thread = WorkerThread(f"taildir {self._place.name}")
        await thread.submit(register.begin)
        try:
            writer.report_running()
            await self._pump(writer, thread, scheduler)
        finally:
            # Behind what the thread is doing.
            closing = thread.submit(scheduler.close)
            thread.shutdown()
            await closing

    async def _pump(self, writer: ChannelWriter, thread: WorkerThread, scheduler: FileScheduler) -> None:
        upcoming = thread.submit(scheduler.next_portion)
        try:
            while True:
                portion = await upcoming
                if portion is None:
                    await asyncio.sleep(scheduler.wait_seconds)
                upcoming = thread.submit(scheduler.next_portion)
                if portion is not None:
                    await self._deliver(writer, portion)
        finally:
            upcoming.cancel()

    async def _deliver(self, writer: ChannelWriter, portion: Portion) -> None:
        headers = self._headers_of(portion.file)
        for lines in portion.parts:
            for part in lines.parts(writer.events_max, writer.body_bytes_max):
                table = EventTable(part.bodies, headers)
                if self._config.byte_offset_header is not None:
                    table.headers[self._config.byte_offset_header] = list(map(str, part.offsets))
                await writer.deliver(table, Stamp(portion.file.producer_id, part.start, part.end - 1))
                portion.file.stored = part.end

    def _headers_of(self, file: TailedFile) -> dict[str, str]:
        config = self._config
        headers = dict(config.path_headers.get(file.pattern, {}))
        path = shown_path(file.path)
        if config.file_header is not None:
            headers[config.file_header] = path
        if config.basename_header is not None:
            headers[config.basename_header] = path.rpartition("/")[2]
        return headers
