"""The source `exec`: its settings, and the source itself."""

import asyncio
import signal
from contextlib import suppress
from typing import Annotated, Literal

import structlog
from pydantic import AfterValidator, Field, Secret, ValidationInfo, field_serializer, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.lines.config import LinesConfig
from millrace_server.agent.setting_types import revealed
from millrace_server.agent.sources.exec.command import Job, RunningCommand, StderrLog
from millrace_server.agent.sources.line_stream import LineStream
from millrace_server.agent.sources.source import Source, SourceConfig, SourceContext
from millrace_server.agent.supervision import ComponentError, ComponentFailedError
from millrace_server.files import NamedPath

_DRAIN_SECONDS = 1.0
"""When the source stops: how long storing the remaining lines may take once the command has ended."""

_STABLE_SECONDS = 10.0
"""A restarted command counts as running once it has run for this long, or its lines are stored."""

_log = structlog.stdlib.get_logger(__name__)

_SHELL = "/bin/sh"
_EXAMPLE = '["tail", "-F", "/var/log/messages"]'


def _refuse_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains a NUL character, which cannot be passed to a program")
    return text


ArgumentText = Annotated[str, AfterValidator(_refuse_nul)]
VariableName = Annotated[str, Field(pattern=r"^(?:[^=\x00]+)$")]


class ExecSourceConfig(LinesConfig, SourceConfig):
    """A source that runs a command and stores the lines of its output.

    Its guarantee is weak: a crash loses output that is not stored yet, since it cannot be read again. For files, use
    `taildir` or `spooldir`, which lose nothing.
    """

    type: Literal["exec"]
    """The lines that a command writes."""

    shell: bool = False
    """Whether `command` is a string for the shell, /bin/sh."""

    command: list[ArgumentText]
    """The program and its arguments, or a string if `shell` is true."""

    environment: dict[VariableName, Secret[ArgumentText]] = Field(default_factory=dict)
    """Environment variables in addition to the daemon's. Put secrets here; their values are never shown."""

    directory: NamedPath | None = None
    """The working directory. Default: the daemon's."""

    restart: Literal["always", "on_failure", "never"] = "on_failure"
    """When to restart a command that has exited, with an increasing delay: "always", "on_failure" (an exit code
    other than 0, or a signal) or "never"."""

    linger_seconds: float = Field(0.2, ge=0, le=3600, allow_inf_nan=False)
    """A batch is stored this long after its first event, even if it is not full."""

    grace_seconds: float = Field(5.0, ge=0, le=3600, allow_inf_nan=False)
    """How long the command and its descendants may take to end after SIGTERM, before SIGKILL."""

    @field_validator("command", mode="before")
    @classmethod
    def _check_command(cls, value: object, info: ValidationInfo) -> object:
        shell = info.data.get("shell")
        if isinstance(value, str) and shell is False:
            raise ValueError(f"is {shown_value(value)}; it must be an array such as {_EXAMPLE}, or shell must be true")
        if isinstance(value, str) and not value.strip():
            raise ValueError(f"is {shown_value(value)}; it must be a command")
        if isinstance(value, str):
            return [_SHELL, "-c", value]
        if isinstance(value, list) and shell:
            raise ValueError("is an array; if shell is true, it must be text")
        if value in ([], [""]):
            raise ValueError(f"has no program; it must be an array such as {_EXAMPLE}")
        return value

    @field_serializer("command")
    def _written(self, command: list[str]) -> str | list[str]:
        return command[-1] if self.shell else command

    def make(self, context: SourceContext) -> Source:
        return ExecSource(context.name, self)


class ExecSource:
    """Runs a command, restarts it as configured, and stores its lines."""

    def __init__(self, name: str, config: ExecSourceConfig) -> None:
        self._config = config
        directory = str(config.directory or "") or None
        self._job = Job(config.command, revealed(config.environment), directory, config.grace_seconds)
        self._log = _log.bind(source=name)
        self._stream = LineStream(config, config.linger_seconds, self._log)
        self._has_warned = False
        self._is_restart = False

    async def run(self, writer: ChannelWriter) -> None:
        if not self._has_warned:
            self._log.warning(
                "a crash loses what this source has read but not stored; sources that read files lose nothing"
            )
            self._has_warned = True
        command = await self._start(writer)
        # A restarted command may fail again at once. The state must then not change, and the failure is already logged.
        ready_after = _STABLE_SECONDS if self._is_restart else 0.0
        becoming_ready = asyncio.get_running_loop().call_later(ready_after, writer.report_running)
        try:
            await self._stream.deliver_all(writer, command.read)
            exit_code = await command.wait()
        except asyncio.CancelledError:
            await self._shut_down(command, writer)
            raise
        finally:
            becoming_ready.cancel()
            await command.stop()
        self._end(exit_code, writer)

    async def _start(self, writer: ChannelWriter) -> RunningCommand:
        starting = asyncio.create_task(RunningCommand.start(self._job, StderrLog(self._log)))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The command may have started, and its output must be stored.
            with suppress(ComponentError):
                await self._shut_down(await starting, writer)
            raise
        except ComponentError as error:
            if self._config.restart == "never":
                raise ComponentFailedError(str(error)) from None
            raise

    async def _shut_down(self, command: RunningCommand, writer: ChannelWriter) -> None:
        command.terminate()
        await self._stream.drain(writer, command.read, self._config.grace_seconds + _DRAIN_SECONDS)
        await command.stop()

    def _end(self, exit_code: int | None, writer: ChannelWriter) -> None:
        """Handles the end of the command: restarts it as configured, or reports the end of the source."""
        how = f"the command {_describe_exit(exit_code)}"
        restart = self._config.restart
        if restart == "always" or (restart == "on_failure" and exit_code != 0):
            self._is_restart = True
            raise ComponentError(f"{how}; it is started again")
        self._log.warning("the source has ended", reason=how)
        writer.report_stopped(how)


def _describe_exit(exit_code: int | None) -> str:
    if exit_code is None:
        return "was killed"
    if exit_code < 0:
        # Real-time signals have no names.
        names = {number.value: number.name for number in signal.Signals}
        return f"was terminated by {names.get(-exit_code, f'signal {-exit_code}')}"
    return f"exited with code {exit_code}"
