"""The settings of the engine that replicates channels; they do not import its library, which may not be installed."""

from functools import partial
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from millrace.setting_problems import shown_value
from millrace.setting_units import ByteSize
from millrace.units import GIB, MIB
from millrace_server.extras import check_installed
from millrace_server.network import is_loopback
from millrace_server.replication.engine_access import EngineAccess

LEASE_SECONDS_MAX = 600.0
"""No server holds a lease for longer, whatever its entry in the engine says."""

_BYTES_MAX = 1 << 50

RENEWALS_PER_LEASE = 5
"""So many renewals fit into a lease: an owner may miss some of them, and the engine may elect a leader in the
meantime."""


def _checked_url(url: str, schemes: tuple[str, ...], example: str) -> str:
    wrong = ValueError(f"is {shown_value(url)}; it must be a URL such as {example}")
    try:
        parts = urlsplit(url)
        is_complete = parts.scheme in schemes and parts.hostname and parts.port != 0
    except ValueError:
        raise wrong from None
    if not is_complete:
        raise wrong
    if "@" in parts.netloc:
        # Not shown: it is secret.
        raise ValueError("has a user name or a password, which a URL must not have")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(f"is {shown_value(url)}; it must end after the host and the port")
    return url


ServerUrl = Annotated[
    str, AfterValidator(partial(_checked_url, schemes=("nats", "tls"), example="nats://n1.example:4222"))
]
MonitoringUrl = Annotated[
    str, AfterValidator(partial(_checked_url, schemes=("http", "https"), example="http://n1.example:8222"))
]


class EngineSettings(EngineAccess):
    """The engine that stores the logs of replicated channels: NATS JetStream, with nats-server 2.12 or newer.

    All servers that share a channel have the same settings.
    """

    type: Literal["jetstream"]
    """NATS JetStream."""

    servers: list[ServerUrl] = Field(min_length=1)
    """URLs of the engine's servers, such as `nats://n1.example:4222`. The server connects to any that it can reach."""

    monitoring_urls: list[MonitoringUrl] = Field(default_factory=list)
    """URLs at which the engine's servers show their state, such as `http://n1.example:8222`. The server then warns
    about those that do not sync their writes, since a power failure of a majority of them would lose acknowledged
    events."""

    replicas: Literal[1, 3, 5] = 3
    """Number of engine servers that store each event. A commit is acknowledged once more than half of them have
    it."""

    stream_bytes_max: ByteSize = Field(10 * GIB, ge=4 * MIB, le=_BYTES_MAX)
    """Bytes reserved for one channel's log and checkpoints on each engine server. They hold about `byte_capacity`, the
    headers of the events, and everything that is kept until the next checkpoint but one."""

    lease_seconds: float = Field(15.0, ge=1.0, le=LEASE_SECONDS_MAX, allow_inf_nan=False)
    """Seconds after which another server takes over if the owner has not renewed its lease. Below 10 s, the election of
    a leader in the engine can cost a server its channels, but loses no events."""

    @field_validator("type")
    @classmethod
    def _check_is_installed(cls, type_name: Literal["jetstream"]) -> Literal["jetstream"]:
        check_installed(type_name, "nats-py", "jetstream", "nats")
        return type_name

    @model_validator(mode="after")
    def _check_is_secret(self) -> Self:
        if not self.sends_secret:
            return self
        for url in self.servers:
            host = urlsplit(url).hostname or ""
            if not is_loopback(host):
                raise ValueError(
                    f"sends its secret to {url} in plain text; set tls, or MILLRACE_ALLOW_PLAINTEXT=true in the "
                    "environment where the network is secret"
                )
        return self

    @field_validator("servers", "monitoring_urls")
    @classmethod
    def _check_apart(cls, urls: list[str]) -> list[str]:
        for url in urls:
            if urls.count(url) > 1:
                raise ValueError(f"has {shown_value(url)} more than once")
        return urls

    @property
    def renew_seconds(self) -> float:
        """How often a server gives a sign of life."""
        return self.lease_seconds / RENEWALS_PER_LEASE
