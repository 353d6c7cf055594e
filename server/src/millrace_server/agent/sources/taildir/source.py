"""The source `taildir` at work."""

import asyncio

from millrace_server.agent.events import EventTable
from millrace_server.agent.intake import Intake
from millrace_server.agent.sources.source import SourcePlace
from millrace_server.agent.sources.taildir.config import TaildirSourceConfig
from millrace_server.agent.sources.taildir.first_sight import AcceptedRanges
from millrace_server.agent.sources.taildir.register import FileRegister, shown_path
from millrace_server.agent.sources.taildir.tailed_file import TailedFile
from millrace_server.agent.sources.taildir.turns import Portion, Turns
from millrace_server.agent.work_thread import WorkThread
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

    def __init__(self, config: TaildirSourceConfig, place: SourcePlace) -> None:
        self._config = config
        self._place = place

    async def run(self, intake: Intake) -> None:
        """Brings lines until it is cancelled.

        Raises:
            ComponentFailedError: Another version of the server has saved its positions.
            OSError: Its positions cannot be read.
            MillraceError: A channel does not exist any more.
        """
        loop = asyncio.get_running_loop()

        async def ask(producer_id: str) -> AcceptedRanges:
            return intake.accepted(producer_id)

        def accepted(producer_id: str) -> AcceptedRanges:
            return asyncio.run_coroutine_threadsafe(ask(producer_id), loop).result(_ANSWER_SECONDS_MAX)

        register = FileRegister(self._config, self._place, accepted)
        turns = Turns(self._config, register)
        thread = WorkThread(f"taildir {self._place.name}")
        await thread.do(register.begin)
        try:
            intake.note_ready()
            await self._pump(intake, thread, turns)
        finally:
            # Behind what the thread is doing.
            closing = thread.do(turns.close)
            thread.end()
            await closing

    async def _pump(self, intake: Intake, thread: WorkThread, turns: Turns) -> None:
        upcoming = thread.do(turns.next_portion)
        try:
            while True:
                portion = await upcoming
                if portion is None:
                    await asyncio.sleep(turns.wait_seconds)
                upcoming = thread.do(turns.next_portion)
                if portion is not None:
                    await self._deliver(intake, portion)
        finally:
            upcoming.cancel()

    async def _deliver(self, intake: Intake, portion: Portion) -> None:
        headers = self._headers_of(portion.file)
        for lines in portion.parts:
            for part in lines.parts(intake.events_max, intake.body_bytes_max):
                table = EventTable(part.bodies, headers)
                if self._config.byte_offset_header is not None:
                    table.headers[self._config.byte_offset_header] = list(map(str, part.offsets))
                await intake.deliver(table, Stamp(portion.file.producer_id, part.start, part.end - 1))
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
