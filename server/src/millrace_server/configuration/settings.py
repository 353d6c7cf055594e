"""The configuration: one TOML file, validated as a whole."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator

from millrace.setting_file import SettingsError, load_settings_file
from millrace.setting_problems import describe_problems, shown_value
from millrace.setting_units import ByteSize
from millrace.units import GIB, KIB, MIB
from millrace_server.access.settings import (
    AuthSettings,
    IdentityPattern,
    IdentitySettings,
    RoleSettings,
    access_problems,
)
from millrace_server.agent.setting_types import ChannelName
from millrace_server.agent.settings import AnySinkConfig, AnySourceConfig
from millrace_server.agent.sink_group_config import SinkGroupConfig, group_problems
from millrace_server.agent.sources.grpc.config import name_problems
from millrace_server.agent.sources.stdin import stdin_problems
from millrace_server.channels.config import AnyChannelConfig
from millrace_server.configuration.addresses import address_conflicts, anonymous_addresses, unreachable_owner
from millrace_server.configuration.audit_conflicts import audit_conflicts
from millrace_server.configuration.channel_references import unknown_channels
from millrace_server.configuration.engines import missing_engines, with_engine
from millrace_server.extras import is_installed
from millrace_server.files import NamedPath
from millrace_server.network import Address
from millrace_server.network.http_requests import HostName
from millrace_server.network.tls import TlsSettings
from millrace_server.replication.engine_settings import EngineSettings

_INFLIGHT_MESSAGES = 8
_INFLIGHT_MESSAGES_PER_CONNECTION = 2

ComponentName = ChannelName


class TracingSettings(BaseModel, frozen=True, extra="forbid"):
    """Traces. OpenTelemetry's environment variables, `OTEL_*`, set where spans are sent and which are sampled."""

    event_context: bool = False
    """Sources add the W3C headers `traceparent` and `tracestate` to events that have none, so that the spans of
    consumers are linked to the source's batch."""


class ServerSettings(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """The server's addresses, data directory and limits."""

    # Checks between fields are validators of the later field, so that an invalid field does not hide other problems.

    allow_plaintext: bool = False
    """Listen without TLS on addresses that other machines can reach."""

    allow_anonymous: bool = False
    """Listen without `[auth]` on addresses that other machines can reach; anyone who can connect may do everything."""

    tls: TlsSettings | None = None
    """The certificate for serving gRPC and HTTP over TLS. Without it, they are served in plain text."""

    listen: str = "127.0.0.1:7070"
    """`host:port` of gRPC; port 0 means any free port."""

    http_listen: str = "127.0.0.1:7071"
    """`host:port` of HTTP: health, metrics, channels, the console; port 0 means any free port."""

    advertise: str | None = None
    """`host:port` at which clients and other servers reach gRPC, if it differs from `listen`: behind a forwarded
    address, or if `listen` is a wildcard address. HTTP requests may use its host, too."""

    http_hosts: list[HostName] = Field(default_factory=list)
    """Additional `Host` names, without a port, that HTTP requests may use besides the address it listens on and
    `localhost`. Against DNS rebinding, other requests get 421, except for `/healthz`."""

    console: bool = True
    """Serve the console, a page for operators, at `/` of `http_listen`. With `[auth]` it asks for a token; without,
    anyone who can connect may do everything with it, as over gRPC."""

    connections_max: int = Field(10_000, ge=1, le=1_000_000)
    """Maximum number of connections, separately for gRPC and HTTP; fewer if the process may not open as many files.
    gRPC closes excess connections; over HTTP, a new connection replaces the one that has been idle longest."""

    connections_per_address_max: int | None = Field(None, ge=1, le=1_000_000)
    """Maximum number of connections from one client address, separately for gRPC and HTTP. By default half of
    `connections_max`, so that one address cannot lock out others; behind a proxy that hides clients' addresses, set it
    to `connections_max`."""

    data_dir: NamedPath = Path("millrace-data")
    """Directory for the server's data. A relative path is resolved against the working directory."""

    message_bytes_max: ByteSize = Field(64 * MIB, ge=4 * KIB, le=1 * GIB)
    """Maximum size of a request or response message."""

    engine: EngineSettings | None = None
    """The `engine` of replicated channels without their own table, and of those that clients create."""

    channels_max: int = Field(1_000, ge=1, le=1_000_000)
    """Maximum number of channels that clients can create, including configured channels."""

    open_transactions_max: int = Field(10_000, ge=1, le=1_000_000)
    """Maximum number of open transactions in all channels."""

    inflight_bytes_max: ByteSize = Field(
        default_factory=lambda fields: _INFLIGHT_MESSAGES * fields["message_bytes_max"], ge=4 * KIB, le=1024 * GIB
    )
    """Maximum bytes of all requests in progress. With `[auth]` and without client certificates, also of what
    connections without a valid token have sent; above the limit, the connections that have sent most are closed."""

    inflight_bytes_per_connection_max: ByteSize = Field(
        default_factory=lambda fields: min(
            _INFLIGHT_MESSAGES_PER_CONNECTION * fields["message_bytes_max"], fields["inflight_bytes_max"]
        ),
        ge=4 * KIB,
        le=1024 * GIB,
    )
    """Maximum bytes of one connection's requests in progress, and of everything that it sends without a valid token."""

    reflection: bool = True
    """Enable gRPC server reflection."""

    channelz: bool = True
    """Enable gRPC channelz, which shows the server's connections."""

    tracing: TracingSettings | None = None
    """A table, which may be empty. With it, the server records spans of calls and of the agent, and exports them by
    OpenTelemetry; it needs `pip install 'millrace-server[opentelemetry]'`."""

    shutdown_grace_seconds: float = Field(10.0, ge=0, le=3600, allow_inf_nan=False)
    """Grace period when the server stops: for open transactions, and until other servers have taken its replicated
    channels."""

    @field_validator("listen", "http_listen")
    @classmethod
    def _check_address(cls, text: str, info: ValidationInfo) -> str:
        address = Address.of_setting(text)
        has_tls = "tls" not in info.data or info.data["tls"] is not None
        if not address.is_loopback and not has_tls and info.data.get("allow_plaintext") is False:
            raise ValueError(
                f"is {shown_value(text)}, which other machines can reach in plain text; there must be a table "
                "server.tls, or it must be a loopback address, or server.allow_plaintext must be true"
            )
        return text

    @field_validator("advertise")
    @classmethod
    def _check_reachable(cls, text: str | None) -> str | None:
        if text is not None:
            address = Address.of_setting(text)
            if not address.port or address.is_unspecified:
                raise ValueError(f"is {shown_value(text)}; it must be one that clients can connect to")
        return text

    @property
    def own_http_hosts(self) -> list[str]:
        """The hosts of `http_hosts` and of `advertise`."""
        advertised = [] if self.advertise is None else [self.advertise.rpartition(":")[0].lower()]
        return [*self.http_hosts, *advertised]

    @field_validator("http_listen")
    @classmethod
    def _check_apart(cls, text: str, info: ValidationInfo) -> str:
        if info.data.get("listen") == text and Address.parse(text).port != 0:
            raise ValueError(f"is {shown_value(text)}; it must be another address than server.listen")
        return text

    @field_validator("tracing")
    @classmethod
    def _check_is_installed(cls, tracing: TracingSettings | None) -> TracingSettings | None:
        if tracing is not None and not is_installed("opentelemetry.sdk"):
            raise ValueError("needs OpenTelemetry; install it with: pip install 'millrace-server[opentelemetry]'")
        return tracing

    @field_validator("inflight_bytes_max", "inflight_bytes_per_connection_max")
    @classmethod
    def _check_holds_a_message(cls, bytes_max: int, info: ValidationInfo) -> int:
        message_bytes_max = info.data.get("message_bytes_max", 0)
        if bytes_max < message_bytes_max:
            raise ValueError(f"is {bytes_max}; it must not be below server.message_bytes_max, {message_bytes_max}")
        return bytes_max

    @field_validator("inflight_bytes_per_connection_max")
    @classmethod
    def _check_within_all(cls, bytes_max: int, info: ValidationInfo) -> int:
        inflight_bytes_max = info.data.get("inflight_bytes_max", bytes_max)
        if bytes_max > inflight_bytes_max:
            raise ValueError(f"is {bytes_max}; it must not be above server.inflight_bytes_max, {inflight_bytes_max}")
        return bytes_max


class Settings(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """The whole configuration."""

    server: ServerSettings = Field(default_factory=ServerSettings)
    """The table `[server]`."""

    auth: AuthSettings | None = None
    """The table `[auth]`. Without it, every caller may do everything."""

    roles: dict[str, RoleSettings] = Field(default_factory=dict)
    """The tables `[roles.NAME]`, by name."""

    identities: dict[IdentityPattern, IdentitySettings] = Field(default_factory=dict)
    """The tables `[identities."PATTERN"]`, by pattern."""

    channels: dict[ChannelName, AnyChannelConfig] = Field(default_factory=dict)
    """The tables `[channels.NAME]`, by name."""

    sources: dict[ComponentName, AnySourceConfig] = Field(default_factory=dict)
    """The tables `[sources.NAME]`, by name."""

    sinks: dict[ComponentName, AnySinkConfig] = Field(default_factory=dict)
    """The tables `[sinks.NAME]`, by name."""

    sink_groups: dict[ComponentName, SinkGroupConfig] = Field(default_factory=dict)
    """The tables `[sink_groups.NAME]`, by name."""


def load_settings(path: Path | None = None, overrides: Mapping[str, str] | None = None) -> Settings:
    """Reads and validates a TOML file, or the defaults; `overrides` replace fields of `[server]`.

    Raises SettingsError, with all problems, if the file cannot be read, is not TOML, or is invalid.
    """
    if path is None:
        return check_settings({}, "command line", overrides)
    return load_settings_file(path, partial(check_settings, source=str(path), overrides=overrides, file=path))


def check_settings(
    tables: Mapping[str, Any], source: str, overrides: Mapping[str, str] | None = None, file: Path | None = None
) -> Settings:
    """Validates parsed TOML; `source` is its name in errors, and `file` the file, if there is one.

    Raises SettingsError with all problems.
    """
    server = tables.get("server", {})
    if overrides and isinstance(server, dict):
        tables = {**tables, "server": {**server, **overrides}}
    tables, given = with_engine(tables)
    listening = {name: ServerSettings.model_fields[name].default for name in ("listen", "http_listen")}
    inconsistent = [
        *unknown_channels(tables, Settings),
        *group_problems(tables),
        *stdin_problems(tables),
        *name_problems(tables),
        *address_conflicts(tables, listening),
        *access_problems(tables),
        *anonymous_addresses(tables),
        *unreachable_owner(tables, listening["listen"]),
        *missing_engines(tables),
        *audit_conflicts(tables, Settings, ServerSettings.model_fields["data_dir"].default, file),
    ]
    try:
        # Strict: TOML has types, so neither "100" nor true is a capacity.
        settings = Settings.model_validate(dict(tables), strict=True)
    except ValidationError as error:
        problems = [one for one in describe_problems(error, Settings) if one.path[:3] not in given]
        raise SettingsError(source, [*problems, *inconsistent]) from None
    if inconsistent:
        raise SettingsError(source, inconsistent)
    return settings
