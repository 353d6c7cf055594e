"""The table of a source of type `syslog`."""

import re
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.sources.source import ListeningSourceConfig, Source, SourceContext, check_reach
from millrace_server.network.addresses import Address

MESSAGE_BYTES_LOWEST, MESSAGE_BYTES_HIGHEST = 480, 16 * 1024 * 1024
"""RFC 5424 has every receiver accept 480 bytes."""

_LISTENER = re.compile(r"(?P<transport>tcp|udp)://(?P<address>.+)")

Framing = Literal["auto", "newline", "octet_counting"]
LongMessages = Literal["truncate", "drop"]
KeptField = Literal["all", "priority", "version", "timestamp", "hostname", "tag", "structured_data"]


class Transport(StrEnum):
    """How messages come."""

    TCP = "tcp"
    UDP = "udp"


class Listener(NamedTuple):
    """Where messages come in."""

    transport: Transport
    address: Address

    @classmethod
    def parse(cls, text: str) -> "Listener":
        """Reads `tcp://host:port` or `udp://host:port`.

        Raises:
            ValueError: It is no such thing; a sentence for the configuration's problems.
        """
        if (match := _LISTENER.fullmatch(text)) is None:
            raise ValueError(f'is {shown_value(text)}; it must be "tcp://host:port" or "udp://host:port"')
        try:
            return cls(Transport(match["transport"]), Address.parse(match["address"]))
        except ValueError as error:
            raise ValueError(f"is {shown_value(text)}; behind the //, {error}") from None

    def __str__(self) -> str:
        return f"{self.transport}://{self.address}"


def _check_listener(text: str) -> str:
    Listener.parse(text)
    return text


def _check_time_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError, ValueError):
        if name != "UTC":
            raise ValueError(
                f'is {shown_value(name)}; it must be a time zone that this machine knows, such as "Europe/Berlin"'
            ) from None
    return name


class SyslogSourceConfig(ListeningSourceConfig):
    """A source of syslog messages.

    Each message is one event. Its headers say what stood in front of the message, as far as it did: `facility` and
    `severity` as numbers, `timestamp` in milliseconds since 1970, `hostname`, `app_name`, `procid`, `msgid`, and
    `structured_data` as a JSON object of objects. What cannot be read as either RFC is kept whole, and its header
    `syslog_malformed` says why; one that was cut has the header `syslog_truncated`.
    """

    type: Literal["syslog"]
    """Messages of RFC 5424 and RFC 3164 over TCP and UDP. Neither tells a sender whether its messages are stored."""

    listen: Annotated[list[Annotated[str, AfterValidator(_check_listener)]], Field(min_length=1, max_length=64)]
    """Where it listens: `tcp://host:port` and `udp://host:port`; port 0 takes any free one."""

    framing: Framing = "auto"
    """How TCP's messages are told apart: by `newline`, by `octet_counting`, or each by how it begins (RFC 6587)."""

    message_bytes_max: int = Field(64 * 1024, ge=MESSAGE_BYTES_LOWEST, le=MESSAGE_BYTES_HIGHEST)
    """A longer message is cut or dropped."""

    long_messages: LongMessages = "truncate"
    """What becomes of a longer message: its beginning is kept, or nothing."""

    keep_fields: list[KeptField] = Field(default_factory=list)
    """What stays in front of the message in an event's body, as it came; `all` keeps everything."""

    client_ip_header: str | None = Field(None, min_length=1)
    """The header that gets the address of who sent the message; none without it."""

    port_header: str | None = Field(None, min_length=1)
    """The header that gets the port on which the message came; none without it."""

    time_zone: Annotated[str, AfterValidator(_check_time_zone)] = "UTC"
    """Where senders are whose times say nothing of a zone, as those of RFC 3164."""

    linger_seconds: float = Field(0.1, ge=0, le=60, allow_inf_nan=False)
    """A batch is stored this long after its first message, should it not be full before."""

    connections_max: int = Field(1_000, ge=1, le=100_000)
    """TCP connections at once; more are closed as they come."""

    udp_receive_buffer_bytes: int = Field(4 * 1024 * 1024, ge=4_096, le=1024 * 1024 * 1024)
    """Room in the system for datagrams that have not been read yet; the system may grant less, and the log says so."""

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, texts: list[str], info: ValidationInfo) -> list[str]:
        listeners = [Listener.parse(text) for text in texts]
        for text, listener in zip(texts, listeners, strict=True):
            check_reach(text, listener.address, allow_plaintext=info.data.get("allow_plaintext"))
            if listener.address.port and listeners.count(listener) > 1:
                raise ValueError(f"names {shown_value(text)} twice; each may come once")
        return texts

    def make(self, place: SourceContext) -> Source:
        from millrace_server.agent.sources.syslog.source import SyslogSource

        return SyslogSource(place.name, self)
