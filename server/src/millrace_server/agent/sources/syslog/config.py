"""Settings of the source `syslog`."""

import re
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace.setting_units import ByteSize
from millrace.units import GIB, MIB
from millrace_server.agent.setting_types import TimeZoneName, valid_for
from millrace_server.agent.sources.listening import ListeningSourceConfig, check_plaintext_allowed
from millrace_server.network import Address

MESSAGE_BYTES_LOWEST, MESSAGE_BYTES_HIGHEST = 480, 16 * MIB
"""RFC 5424 requires receivers to accept 480 bytes."""

_LISTENER = re.compile(r"(?P<transport>tcp|udp)://(?P<address>.+)")

Framing = Literal["auto", "newline", "octet_counting"]
LongMessages = Literal["truncate", "drop"]
KeptField = Literal["all", "priority", "version", "timestamp", "hostname", "tag", "structured_data"]


class Transport(StrEnum):
    """The transport protocol of messages."""

    TCP = "tcp"
    UDP = "udp"


class Listener(NamedTuple):
    """A transport protocol and an address."""

    transport: Transport
    address: Address

    @classmethod
    def parse(cls, text: str) -> "Listener":
        """Parses `tcp://host:port` or `udp://host:port`."""
        if (match := _LISTENER.fullmatch(text)) is None:
            raise ValueError(f'is {shown_value(text)}; it must be "tcp://host:port" or "udp://host:port"')
        try:
            return cls(Transport(match["transport"]), Address.parse(match["address"]))
        except ValueError as error:
            raise ValueError(f"is {shown_value(text)}; after //, {error}") from None

    def __str__(self) -> str:
        return f"{self.transport}://{self.address}"


class SyslogSourceConfig(ListeningSourceConfig):
    """A source of syslog messages.

    Each message is one event. Its headers are the fields of the message, if present: `facility` and `severity` as
    numbers, `timestamp` in milliseconds since 1970, `hostname`, `app_name`, `procid`, `msgid`, and `structured_data` as
    a JSON object of objects. A message that conforms to neither RFC is kept whole, and its header `syslog_malformed`
    says why; a truncated message has the header `syslog_truncated`.
    """

    type: Literal["syslog"]
    """Messages of RFC 5424 and RFC 3164 over TCP, TLS (RFC 5425) and UDP, none of which acknowledges messages to their
    sender."""

    listen: Annotated[list[Annotated[str, valid_for(Listener.parse)]], Field(min_length=1, max_length=64)]
    """Where to listen: `tcp://host:port`, with TLS if there is a table `tls`, and `udp://host:port`, always plain text;
    port 0 selects any free port."""

    framing: Framing = "auto"
    """How messages over TCP are delimited: by `newline`, by `octet_counting`, or detected for each message (RFC 6587).
    """

    message_bytes_max: ByteSize = Field(64 * 1024, ge=MESSAGE_BYTES_LOWEST, le=MESSAGE_BYTES_HIGHEST)
    """A longer message is truncated or dropped."""

    long_messages: LongMessages = "truncate"
    """What to do with a longer message: `truncate` keeps its beginning, `drop` discards it."""

    keep_fields: list[KeptField] = Field(default_factory=list)
    """The fields that are kept before the message in the body, as received; `all` keeps the whole message."""

    client_ip_header: str | None = Field(None, min_length=1)
    """The header for the address of the sender; none by default."""

    port_header: str | None = Field(None, min_length=1)
    """The header for the port on which the message arrived; none by default."""

    time_zone: TimeZoneName = "UTC"
    """The time zone of timestamps without one, such as those of RFC 3164."""

    linger_seconds: float = Field(0.1, ge=0, le=60, allow_inf_nan=False)
    """A batch is stored this long after its first message, even if it is not full."""

    connections_max: int = Field(1_000, ge=1, le=100_000)
    """The maximum number of TCP connections; further ones are closed at once."""

    udp_receive_buffer_bytes: ByteSize = Field(4 * MIB, ge=4_096, le=GIB)
    """The size of the receive buffer for datagrams; the system may grant less, which is logged."""

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, texts: list[str], info: ValidationInfo) -> list[str]:
        listeners = [Listener.parse(text) for text in texts]
        for text, listener in zip(texts, listeners, strict=True):
            may_be_tls = listener.transport is Transport.TCP
            check_plaintext_allowed(text, listener.address, info.data, may_be_tls=may_be_tls)
            if listener.address.port and listeners.count(listener) > 1:
                raise ValueError(f"lists {shown_value(text)} twice; list each one once")
        return texts
