"""The source `taildir`."""

import asyncio

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.events import EventTable
from millrace_server.agent.sources.source import SourceContext
from millrace_server.agent.sources.stored_ranges import asked_by_threads
from millrace_server.agent.sources.taildir.config import TaildirSourceConfig
from millrace_server.agent.sources.taildir.file_scheduler import FileChunk, FileScheduler
from millrace_server.agent.sources.taildir.register import FileRegister, printable_path
from millrace_server.agent.sources.taildir.tailed_file import TailedFile
from millrace_server.agent.worker_thread import WorkerThread
from millrace_server.channels.stamps import Stamp


class TaildirSource:
    """Stores the lines of growing files, each exactly once and in order.

    Each file is a producer, and the stamp of a batch says which bytes of the file the batch covers. So the channels
    themselves know what they have stored: a batch that only some of them have stored is stored in the others when it is
    read again.

    A single thread performs all file operations of the source. It reads the next chunk while the previous one is being
    stored.
    """

    def __init__(self, config: TaildirSourceConfig, context: SourceContext) -> None:
        self._config = config
        self._context = context

    async def run(self, writer: ChannelWriter) -> None:
        stored_ranges = asked_by_threads(writer, asyncio.get_running_loop())
        register = FileRegister(self._config, self._context, stored_ranges)
        scheduler = FileScheduler(self._config, register)
        thread = WorkerThread(f"taildir {self._context.name}")
        await thread.submit(register.load)
        try:
            writer.report_running()
            await self._pump(writer, thread, scheduler)
        finally:
            # Runs after the current operation of the thread.
            closing = thread.submit(scheduler.close)
            thread.shutdown()
            await closing

    async def _pump(self, writer: ChannelWriter, thread: WorkerThread, scheduler: FileScheduler) -> None:
        upcoming = thread.submit(scheduler.next_chunk)
        try:
            while True:
                chunk = await upcoming
                if chunk is None:
                    await asyncio.sleep(scheduler.wait_seconds)
                upcoming = thread.submit(scheduler.next_chunk)
                if chunk is not None:
                    await self._deliver(writer, chunk)
        finally:
            upcoming.cancel()

    async def _deliver(self, writer: ChannelWriter, chunk: FileChunk) -> None:
        headers = self._headers_of(chunk.file)
        for lines in chunk.parts:
            for part in lines.parts(writer.events_max, writer.body_bytes_max):
                table = EventTable(part.bodies, headers)
                if self._config.byte_offset_header is not None:
                    table.headers[self._config.byte_offset_header] = list(map(str, part.offsets))
                await writer.deliver(table, Stamp(chunk.file.producer_id, part.start, part.end - 1))
                chunk.file.stored = part.end

    def _headers_of(self, file: TailedFile) -> dict[str, str]:
        config = self._config
        headers = dict(config.path_headers.get(file.pattern, {}))
        path = printable_path(file.path)
        if config.file_header is not None:
            headers[config.file_header] = path
        if config.basename_header is not None:
            headers[config.basename_header] = path.rpartition("/")[2]
        return headers
