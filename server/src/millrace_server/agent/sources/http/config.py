"""The table of a source of type `http`."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.sources.source import ListeningSourceConfig, Source, SourceContext, check_reach
from millrace_server.network.addresses import Address

_MIB = 1024 * 1024
_INFLIGHT_BODIES = 16

_RequestHeader = Annotated[str, Field(pattern=r"^(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+)$")]


class HttpSourceConfig(ListeningSourceConfig):
    """A source that takes events by POST.

    The body of a request is one of these, as its `Content-Type` says:

    - `application/json`: an array of events, each an object of `headers` and either `body`, text that is stored as
      UTF-8, or `body_base64`; or one such object.
    - `application/x-ndjson` or `application/jsonl`: such an object on each line.
    - Anything else: the body of one event.

    It may be packed with gzip or zstd. The answer is 200 once all events are stored in all required channels; 503 with
    `Retry-After` where they cannot be stored now; 400, 408, 409, 413, 415 or 422 with a
    sentence where the request is at fault.

    A request that is sent again after a lost answer, or after a 503, is stored a second time, unless it has an
    `Idempotency-Key` (1 to 256 characters, another one for each request): of the same key each event is stored once. A
    repeat must have the same events in the same order; a key that comes with others is answered with 422. The channels
    remember 100,000 producers, and each key is one; keys are forgotten before any others, so a repeat must not come
    much later.
    """

    type: Literal["http"]
    """Events that are sent by POST."""

    listen: str
    """`host:port`; port 0 takes any free one."""

    path: str = Field("/", pattern=r"^(?:/[!-z|~]*)$")
    """Where requests are to go; others get 404."""

    body_bytes_max: int = Field(16 * _MIB, ge=1024, le=1024 * _MIB)
    """A larger body is refused; one that is packed may be neither larger as it comes nor unpacked."""

    request_events_max: int = Field(100_000, ge=1, le=10_000_000)
    """A request with more events is refused. They are stored in batches of `batch_events_max`."""

    request_seconds_max: float = Field(60.0, gt=0, le=3_600, allow_inf_nan=False)
    """A request that has not come as a whole after so long is refused."""

    connections_max: int = Field(256, ge=1, le=100_000)
    """Beyond it requests are refused, and beyond twice as many connections are closed at once."""

    inflight_bytes_max: int = Field(
        default_factory=lambda fields: _INFLIGHT_BODIES * fields["body_bytes_max"], ge=1024, le=1024 * 1024 * _MIB
    )
    """Bytes of bodies in work, as they came and unpacked; beyond it requests are told to come again."""

    request_headers: dict[_RequestHeader, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    """Headers of a request that its events get, unless they have them, and what they are called there."""

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, text: str, info: ValidationInfo) -> str:
        try:
            address = Address.parse(text)
        except ValueError as error:
            raise ValueError(f"is {shown_value(text)}; {error}") from None
        check_reach(text, address, allow_plaintext=info.data.get("allow_plaintext"))
        return text

    @field_validator("inflight_bytes_max")
    @classmethod
    def _check_holds_a_body(cls, bytes_max: int, info: ValidationInfo) -> int:
        # A packed body is held twice for a moment.
        least = 2 * info.data.get("body_bytes_max", 0)
        if bytes_max < least:
            raise ValueError(f"is {bytes_max}; it must not be below twice body_bytes_max, {least}")
        return bytes_max

    def make(self, place: SourceContext) -> Source:
        from millrace_server.agent.sources.http.source import HttpSource

        return HttpSource(place.name, self)
