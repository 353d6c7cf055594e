"""The table of a sink of type `http`."""

import re
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.sinks.sink import Sink, SinkConfig, SinkContext

Format = Literal["json", "json_lines", "single"]
Verdict = Literal["settle", "retry", "reject"]

_URL = re.compile(r"[!-~]+")
_OWN_HEADERS = {"connection", "content-encoding", "content-length", "host", "idempotency-key", "transfer-encoding"}

_Status = Annotated[str, Field(pattern=r"^(?:[2-5](?:[0-9]{2}|xx))$")]
_HeaderName = Annotated[str, Field(pattern=r"^(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+)$")]
_HeaderValue = Annotated[str, Field(pattern=r"^(?:[!-~]([ -~]*[!-~])?)$")]

# These tell of the address, of credentials or of the moment, and nothing about the events.
_RETRIED = {401, 403, 404, 405, 407, 408, 425, 429}


def split_url(text: str) -> SplitResult:
    """The parts of a URL.

    Raises:
        ValueError: It is none, or not one of HTTP; a sentence for the configuration's problems.
    """
    parts = _split(text) if _URL.fullmatch(text) else None
    if parts is None or parts.scheme not in {"http", "https"} or not parts.hostname or "#" in text:
        raise ValueError(
            f'is {shown_value(text)}; it must be a URL of HTTP in ASCII, such as "https://example.com/events"'
        )
    if parts.username is not None:
        # Nothing of the URL is shown here: it holds a secret.
        raise ValueError("has a user name before its host; use headers.Authorization for credentials")
    return parts


def _split(text: str) -> SplitResult | None:
    try:
        parts = urlsplit(text)
        # Looking at the port is what checks it.
        is_good = parts.port is None or parts.port > 0
    except ValueError:
        return None
    return parts if is_good else None


def _check_url(text: str) -> str:
    split_url(text)
    return text


class HttpSinkConfig(SinkConfig):
    """A sink that posts events to a URL.

    Each request has an `Idempotency-Key` that names its events for ever. Events whose request was answered well are not
    sent again, and a request without an answer is sent again as it was. So a receiver that remembers keys stores each
    event once; one that does not may store some again. After the sink's own server was killed, those that were on their
    way may come in requests of other events, and be stored again in either case.
    """

    type: Literal["http"]
    """Posts events to a URL."""

    url: Annotated[str, AfterValidator(_check_url)]
    """Where; redirects are not followed."""

    format: Format = "json"
    """`json`: an array of all events of a delivery, as a source of type `http` takes it. `json_lines`: the same, one
    event a line. `single`: each event's body by itself, without its headers."""

    headers: dict[_HeaderName, _HeaderValue] = Field(default_factory=dict)
    """Headers of each request, such as `Authorization` or another `Content-Type`."""

    compression: Literal["none", "gzip"] = "none"
    """How the requests' bodies are packed."""

    request_bytes_max: int = Field(1024 * 1024, ge=1, le=1024 * 1024 * 1024)
    """Bytes of bodies in a request, before they are written as JSON; a larger event goes alone."""

    connect_seconds_max: float = Field(10.0, gt=0, le=3_600, allow_inf_nan=False)
    """How long connecting may take."""

    answer_seconds_max: float = Field(30.0, gt=0, le=3_600, allow_inf_nan=False)
    """How long a request may take, from its first byte to the last byte of its answer."""

    statuses: dict[_Status, Verdict] = Field(default_factory=dict)
    """What an answer's status, such as `409` or `5xx`, means where that is not the usual.

    `settle`: the events are safe. `retry`: they are sent again, after `Retry-After` (at most 30 seconds) where the
    answer has it. `reject`: the receiver will never take them; see `deliveries_max`. Usually 2xx settles, 4xx rejects
    but for 401, 403, 404, 405, 407, 408, 425 and 429, and these and all others retry.
    """

    ca_file: str | None = Field(None, min_length=1)
    """The certificates that vouch for the receiver's, in PEM; those of the system without it."""

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name in headers:
            if name.lower() in _OWN_HEADERS:
                raise ValueError(f"names {name}, which the sink sets itself")
        if len({name.lower() for name in headers}) != len(headers):
            raise ValueError("names a header twice; capital letters make no difference")
        return headers

    def verdict(self, status: int) -> Verdict:
        """What becomes of the events of a request that was answered so."""
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

    def make(self, _place: SinkContext) -> Sink:
        from millrace_server.agent.sinks.http_sink import HttpSink

        return HttpSink(self)
