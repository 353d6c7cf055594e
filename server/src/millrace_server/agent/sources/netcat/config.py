"""Settings of the source `netcat`."""

from typing import Literal

from pydantic import Field

from millrace.setting_units import ByteSize
from millrace.units import KIB, MIB
from millrace_server.agent.lines.config import CharsetConfig, LinesConfig
from millrace_server.agent.sources.listening import AddressSourceConfig

CONNECTIONS_HIGHEST = 5_000
"""Each connection may leave a gap in the numbers of stored events, and channels remember 10,000 gaps."""


class NetcatSourceConfig(CharsetConfig, AddressSourceConfig):
    """A source of lines over TCP, as `nc` sends them.

    Each line is an event, without its line end, LF or CR LF. The response is `OK` once it is stored in all required
    channels, or `FAILED: ` and a sentence if it is not; responses are lines of ASCII, in the order of the lines. A line
    without a response may be stored or not; if its sender repeats it, it may be stored twice.
    """

    type: Literal["netcat"]
    """Lines over TCP or TLS, each acknowledged with OK once it is stored."""

    ack_every_event: bool = True
    """Whether each stored line is acknowledged with `OK`. Set it to false for senders that do not read responses;
    `FAILED` is sent in any case."""

    line_bytes_max: ByteSize = Field(64 * KIB, ge=16, le=16 * MIB)
    """A line with more bytes, including its line end, is refused with `FAILED`; the lines after it are stored."""

    line_seconds_max: float = Field(60.0, gt=0, le=3_600, allow_inf_nan=False)
    """A connection is closed if a line is not complete this long after its first byte, or if responses are not read for
    this long."""

    idle_seconds_max: float = Field(3_600.0, gt=0, le=604_800, allow_inf_nan=False)
    """A connection is closed if no line has arrived for this long."""

    connections_max: int = Field(256, ge=1, le=CONNECTIONS_HIGHEST)
    """The maximum number of connections; further ones are closed at once."""

    client_ip_header: str | None = Field(None, min_length=1)
    """The header for the address of the sender; none by default."""

    @property
    def lines(self) -> LinesConfig:
        """How lines are split. A line that is too long is truncated, and recognized by its size."""
        return LinesConfig(
            charset=self.charset,
            decode_errors=self.decode_errors,
            line_bytes_max=self.line_bytes_max,
            long_lines="truncate",
        )
