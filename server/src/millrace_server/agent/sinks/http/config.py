"""Settings of the sink `http`."""

import re
import ssl
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, PlainSerializer, Secret, field_validator

from millrace.setting_problems import shown_value
from millrace.setting_units import ByteSize
from millrace.units import GIB, MIB
from millrace_server.agent.setting_types import valid_for
from millrace_server.agent.sinks.sink import Sink, SinkConfig, SinkContext, sink_class
from millrace_server.agent.supervision import ComponentError

Format = Literal["json", "json_lines", "single"]
Verdict = Literal["settle", "retry", "reject"]

_URL = re.compile(r"[!-~]+")
_OWN_HEADERS = {"connection", "content-encoding", "content-length", "host", "idempotency-key", "transfer-encoding"}

_Status = Annotated[str, Field(pattern=r"^(?:[2-5](?:[0-9]{2}|xx))$")]
_HeaderName = Annotated[str, Field(pattern=r"^(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+)$")]
_HeaderValue = Annotated[str, Field(pattern=r"^(?:[!-~]([ -~]*[!-~])?)$")]

# Statuses that concern the address, the credentials or a temporary condition, not the events.
_RETRIED = {401, 403, 404, 405, 407, 408, 425, 429}


def split_url(text: str) -> SplitResult:
    """Returns the parts of a URL. Raises ValueError with a sentence about the setting if it is not an HTTP URL."""
    parts = _split(text) if _URL.fullmatch(text) else None
    if parts is None or parts.scheme not in {"http", "https"} or not parts.hostname or "#" in text:
        raise ValueError(
            f'is {shown_value(shown_url(text))}; it must be an HTTP URL in ASCII, such as "https://example.com/events"'
        )
    if parts.username is not None:
        # The message does not show the URL, which contains a secret.
        raise ValueError("has a user name before its host; use headers.Authorization for credentials")
    return parts


def _split(text: str) -> SplitResult | None:
    try:
        parts = urlsplit(text)
        # Reading the port validates it.
        is_valid = parts.port is None or parts.port > 0
    except ValueError:
        return None
    return parts if is_valid else None


def shown_url(text: str) -> str:
    """Returns a URL without its query, which may contain a secret."""
    return text.partition("?")[0]


class HttpSinkConfig(SinkConfig):
    """A sink that posts events to a URL.

    Each request has an `Idempotency-Key` that identifies its events. Events of an accepted request are not sent again,
    and a request without a response is repeated unchanged. So a receiver that remembers keys stores each event once; a
    receiver that does not may store some events twice. After a crash of the sink's own server, events that were being
    sent may be repeated in other requests, and may then be stored twice in either case.
    """

    type: Literal["http"]
    """Posts events to a URL."""

    url: Annotated[str, valid_for(split_url), PlainSerializer(shown_url)]
    """The URL; redirects are not followed."""

    format: Format = "json"
    """`json`: an array of all events in a delivery, as a source of type `http` expects it. `json_lines`: the same
    objects, one per line. `single`: a request for each event, with only its body."""

    headers: dict[_HeaderName, Secret[_HeaderValue]] = Field(default_factory=dict)
    """Headers of each request, such as `Authorization` or another `Content-Type`; their values are never shown."""

    compression: Literal["none", "gzip"] = "none"
    """How the requests' bodies are compressed."""

    request_bytes_max: ByteSize = Field(MIB, ge=1, le=GIB)
    """The maximum bytes of the events' bodies in a request, before encoding; a larger event is sent alone."""

    connect_seconds_max: float = Field(10.0, gt=0, le=3_600, allow_inf_nan=False)
    """How long connecting may take."""

    answer_seconds_max: float = Field(30.0, gt=0, le=3_600, allow_inf_nan=False)
    """How long a request may take, from its first byte to the last byte of its response."""

    statuses: dict[_Status, Verdict] = Field(default_factory=dict)
    """The meaning of a response's status, such as `409` or `5xx`, if it differs from the default.

    `settle`: the events are safe. `retry`: they are sent again, after `Retry-After` (at most 30 seconds) if the
    response has it. `reject`: the receiver will never accept them; see `deliveries_max`. By default 2xx settles, 4xx
    rejects except for 401, 403, 404, 405, 407, 408, 425 and 429, and all others retry.
    """

    ca_file: str | None = Field(None, min_length=1)
    """File of the CA certificates, in PEM, for verifying the receiver's certificate; by default the operating
    system's."""

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, Secret[str]]) -> dict[str, Secret[str]]:
        for name in headers:
            if name.lower() in _OWN_HEADERS:
                raise ValueError(f"lists {name}, which the sink sets itself")
        if len({name.lower() for name in headers}) != len(headers):
            raise ValueError("lists a header twice; the names of headers are case-insensitive")
        return headers

    def verdict(self, status: int) -> Verdict:
        """Returns what to do with the events of a request that got this status."""
        named = self.statuses.get(str(status)) or self.statuses.get(f"{status // 100}xx")
        if named is not None:
            return named
        match status // 100:
            case 2:
                return "settle"
            case 4 if status not in _RETRIED:
                return "reject"
            case _:
                return "retry"

    def tls_context(self) -> ssl.SSLContext | None:
        """Reads the authorities of an https URL. Raises ComponentError."""
        if split_url(self.url).scheme != "https":
            return None
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            raise ComponentError(f"ca_file {self.ca_file} cannot be read: {error}") from None

    def check_files(self) -> None:
        self.tls_context()

    def make(self, _context: SinkContext) -> Sink:
        return sink_class(self.type)(self)
