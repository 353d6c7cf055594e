"""Settings of the source `exec`."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.lines.config import LinesConfig
from millrace_server.agent.sources.source import Source, SourceConfig, SourceContext
from millrace_server.channels.config import NamedPath

_SHELL = "/bin/sh"
_EXAMPLE = '["tail", "-F", "/var/log/messages"]'


def _refuse_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError(f"is {shown_value(text)}; no program can be given a NUL character")
    return text


ArgumentText = Annotated[str, AfterValidator(_refuse_nul)]
VariableName = Annotated[str, Field(pattern=r"^(?:[^=\x00]+)$")]


class ExecSourceConfig(LinesConfig, SourceConfig):
    """A source that runs a command and stores the lines of its output.

    Its guarantee is weak: output that is not stored yet is lost in a crash, since it cannot be read again. For files
    use `taildir` or `spooldir`, which lose nothing.
    """

    type: Literal["exec"]
    """The lines that a command writes."""

    shell: bool = False
    """Whether `command` is a string for the shell, /bin/sh."""

    command: list[ArgumentText]
    """The program and its arguments; a string if `shell` is true."""

    environment: dict[VariableName, ArgumentText] = Field(default_factory=dict)
    """Environment variables in addition to the daemon's."""

    directory: NamedPath | None = None
    """The working directory. Default: the daemon's."""

    restart: Literal["always", "on_failure", "never"] = "on_failure"
    """When to restart a command that has ended, each time after a longer delay: "always", "on_failure" (an exit code
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
            raise ValueError("is an array; where shell is true it must be text")
        if value in ([], [""]):
            raise ValueError(f"names no program; it must be an array such as {_EXAMPLE}")
        return value

    def make(self, place: SourceContext) -> Source:
        from millrace_server.agent.sources.exec.source import ExecSource

        return ExecSource(place.name, self)
