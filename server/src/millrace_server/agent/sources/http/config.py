"""Settings of the source `http`."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from millrace.setting_units import ByteSize
from millrace.units import GIB, MIB, TIB
from millrace_server.agent.sources.listening import AddressSourceConfig, check_holds_two
from millrace_server.network.http_requests import HostName

_INFLIGHT_BODIES = 16

_RequestHeader = Annotated[str, Field(pattern=r"^(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+)$")]


class HttpSourceConfig(AddressSourceConfig):
    """A source that receives events by POST.

    The `Content-Type` of a request determines how its body is read:

    - `application/json`: an array of events, each an object with `headers` and either `body`, text that is stored as
    UTF-8, or `body_base64`; or one such object.
    - `application/x-ndjson` or `application/jsonl`: such an object on each line.
    - Anything else: the body is the body of one event.

    The body may be compressed with gzip or zstd. The response is 200 once all events are stored in all required
    channels; 503 with `Retry-After` if they cannot be stored at the moment; 400, 408, 409, 413, 415 or 422 with a
    sentence if the request is invalid; 403 or 421 if it is cross-origin; 431 if its headers are too large.

    A request that is repeated after a lost response, or after a 503, is stored a second time unless it has an
    `Idempotency-Key` (1 to 256 characters, unique for each request): with the same key, each event is stored once. A
    repeated request must contain the same events in the same order; a key that is reused with other events gets 422.
    The channels remember 100,000 producers, and each key counts as one. Keys are forgotten before other producers, so a
    request must be repeated soon.
    """

    type: Literal["http"]
    """Events that are sent by POST."""

    path: str = Field("/", pattern=r"^(?:/[!-z|~]*)$")
    """The path of requests; any other path gets 404."""

    http_hosts: list[HostName] = Field(default_factory=list)
    """Additional `Host` names, without a port, that browsers may use besides the address it listens on and `localhost`.
    Requests with `Origin` or `Sec-Fetch-Site` count as browsers'; they must come from the same origin, and get 403 or
    421 otherwise. Other programs may use any name."""

    body_bytes_max: ByteSize = Field(16 * MIB, ge=1024, le=GIB)
    """A larger body is refused; for a compressed body, the limit applies both before and after decompression."""

    request_events_max: int = Field(100_000, ge=1, le=10_000_000)
    """A request with more events is refused. Events are stored in batches of `batch_events_max`."""

    request_seconds_max: float = Field(60.0, gt=0, le=3_600, allow_inf_nan=False)
    """A request that is not complete after this time is refused."""

    connections_max: int = Field(256, ge=1, le=100_000)
    """The maximum number of connections. Each further one closes the connection that has been idle longest; if all have
    a request in progress, the request of the new one gets 503."""

    inflight_bytes_max: ByteSize = Field(
        default_factory=lambda fields: _INFLIGHT_BODIES * fields["body_bytes_max"], ge=1024, le=TIB
    )
    """The maximum size of all bodies that are being processed, both as received and decompressed; beyond it, requests
    are refused with 503."""

    request_headers: dict[_RequestHeader, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    """Request headers to copy to those of its events that lack them, each with the name of the event header."""

    @field_validator("inflight_bytes_max")
    @classmethod
    def _check_holds_a_body(cls, bytes_max: int, info: ValidationInfo) -> int:
        # A compressed body is in memory twice for a short time.
        return check_holds_two(bytes_max, "body_bytes_max", info.data)
