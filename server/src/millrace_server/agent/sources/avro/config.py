"""Settings of the source `avro`."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from millrace.setting_units import ByteSize
from millrace.units import GIB, MIB, TIB
from millrace_server.agent.avro_rpc.event_reader import TABLE_EVENTS_MAX
from millrace_server.agent.setting_types import check_fastavro, valid_for
from millrace_server.agent.sources.avro.ip_filter import IpFilterRule
from millrace_server.agent.sources.listening import AddressSourceConfig, check_holds_two

_INFLIGHT_REQUESTS = 8


class AvroSourceConfig(AddressSourceConfig):
    """A source that listens for Flume's Avro RPC: for sinks `avro`, Flume's client SDK and its log4j appenders.

    The response to a request is OK once its events are stored in all required channels, and FAILED if the channels
    cannot store them now; the sender then repeats the request. The protocol has no numbers by which a repeat could be
    recognized, so events are stored at least once. The headers and the body of an event are stored unchanged.
    """

    type: Literal["avro"]
    """Events that Flume's agents and clients send by Avro RPC."""

    compression: Literal["none", "deflate"] = "none"
    """How connections are compressed; all senders must have the same `compression-type`."""

    ip_filter_rules: list[Annotated[str, valid_for(IpFilterRule.parse)]] = Field(default_factory=list, max_length=1_000)
    """Which clients may connect, each rule like Flume's: `allow` or `deny`, then `ip` or `name`, then a pattern with
    the wildcards `*` and `?`, such as `allow:ip:127.*` or `deny:name:*.example.com`. The first matching rule decides;
    if none matches, the client may connect. The name of a client is the one that DNS returns for its address, if that
    name also resolves to the address; `name:localhost` is this machine."""

    batch_events_max: int = Field(TABLE_EVENTS_MAX, ge=1, le=1_000_000)
    """The maximum number of events in a transaction; fewer if the `transaction_capacity` of a channel is smaller. A
    request with more events, or with more than 1 MiB, is stored in several."""

    request_bytes_max: ByteSize = Field(16 * MIB, ge=1024, le=GIB)
    """The maximum size of a request, when decompressed; a larger one closes its connection."""

    request_seconds_max: float = Field(60.0, gt=0, le=3_600, allow_inf_nan=False)
    """If a request is not complete after this time, its connection is closed."""

    store_seconds_max: float = Field(15.0, gt=0, le=3_600, allow_inf_nan=False)
    """The response is FAILED if the channels have not stored a request after this time. It should be below the
    `request-timeout` of the senders, which is 20 seconds by default, and above the `keep_alive_seconds` of the
    channels."""

    connections_max: int = Field(1_000, ge=1, le=100_000)
    """The maximum number of connections. Each further one closes the connection that has been idle longest, and its
    sender reconnects with its next request; if all have a request in progress, the new connection is closed."""

    inflight_bytes_max: ByteSize = Field(
        default_factory=lambda fields: _INFLIGHT_REQUESTS * fields["request_bytes_max"], ge=2048, le=TIB
    )
    """The maximum size of all requests in memory: half of it for requests that are being stored, beyond which nothing
    more is read, and half for incomplete requests. If these use half of their share, only the oldest of them is read
    further, and its connection is closed if the request is not complete within a second."""

    _check_is_installed = field_validator("type")(check_fastavro)

    @field_validator("inflight_bytes_max")
    @classmethod
    def _check_holds_a_request(cls, bytes_max: int, info: ValidationInfo) -> int:
        return check_holds_two(bytes_max, "request_bytes_max", info.data)
