"""The source `exec` at work."""

import asyncio
import signal
from contextlib import suppress

import structlog

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.sources.exec.command import ComplaintLog, Job, RunningCommand
from millrace_server.agent.sources.exec.config import ExecSourceConfig
from millrace_server.agent.sources.line_stream import LineStream
from millrace_server.agent.supervision import ComponentError, ComponentFailedError

_LAST_STORE_SECONDS = 1.0
"""How long storing may go on, when the source is to end, once the command has ended or was killed."""

_LIVING_SECONDS = 10.0
"""A command that was started again works once it has lived so long, or its lines are stored."""

_log = structlog.stdlib.get_logger(__name__)


class ExecSource:
    """Runs a command, again where it shall be, and stores its lines."""

    def __init__(self, name: str, config: ExecSourceConfig) -> None:
        self._config = config
        self._job = Job(config.command, config.environment, str(config.directory or "") or None, config.grace_seconds)
        self._log = _log.bind(source=name)
        self._stream = LineStream(config, config.linger_seconds, self._log)
        self._has_warned = False
        self._is_restarted = False

    async def run(self, writer: ChannelWriter) -> None:
        if not self._has_warned:
            self._log.warning(
                "what this source has read and not stored is lost in a crash; sources of files lose nothing"
            )
            self._has_warned = True
        running = await self._start(writer)
        # One that was started again may end again at once; then nothing has changed, and the log has said so.
        ready_after = _LIVING_SECONDS if self._is_restarted else 0.0
        becoming_ready = asyncio.get_running_loop().call_later(ready_after, writer.note_ready)
        try:
            await self._stream.bring(writer, running.read)
            exit_code = await running.wait()
        except asyncio.CancelledError:
            await self._wind_up(running, writer)
            raise
        finally:
            becoming_ready.cancel()
            await running.abandon()
        self._end(exit_code, writer)

    async def _start(self, writer: ChannelWriter) -> RunningCommand:
        starting = asyncio.create_task(RunningCommand.start(self._job, ComplaintLog(self._log)))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # It may have begun, and what it has written by then counts.
            with suppress(ComponentError):
                await self._wind_up(await starting, writer)
            raise
        except ComponentError as error:
            if self._config.restart == "never":
                raise ComponentFailedError(str(error)) from None
            raise

    async def _wind_up(self, running: RunningCommand, writer: ChannelWriter) -> None:
        """Ends the command, and stores what it writes until then."""
        running.terminate()
        await self._stream.bring_rest(writer, running.read, self._config.grace_seconds + _LAST_STORE_SECONDS)
        await running.abandon()

    def _end(self, exit_code: int | None, writer: ChannelWriter) -> None:
        """The command has ended by itself: says so, and has it started again where that is wanted."""
        how = f"the command {_described(exit_code)}"
        restart = self._config.restart
        if restart == "always" or (restart == "on_failure" and exit_code != 0):
            self._is_restarted = True
            raise ComponentError(f"{how}; it is started again")
        self._log.warning("the source has ended", reason=how)
        writer.note_ended(how)


def _described(exit_code: int | None) -> str:
    if exit_code is None:
        return "was killed"
    if exit_code < 0:
        # The real-time signals have no names of their own.
        names = {number.value: number.name for number in signal.Signals}
        return f"was ended by {names.get(-exit_code, f'signal {-exit_code}')}"
    return f"ended with exit code {exit_code}"
