"""Settings of the sink `avro`."""

import ssl
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace.setting_units import ByteSize
from millrace.units import MIB
from millrace_server.agent.client_certificate import ClientCertificateConfig
from millrace_server.agent.setting_types import Endpoints, check_fastavro
from millrace_server.agent.sinks.sink import NonRejectingSinkConfig, Sink, SinkContext, sink_class
from millrace_server.agent.supervision import ComponentError
from millrace_server.files import NamedPath


class AvroTlsConfig(ClientCertificateConfig, frozen=True, extra="forbid"):
    """How the sink connects over TLS 1.2 or 1.3. The files are in PEM, and are reread for each connection."""

    ca: NamedPath | None = None
    """File of the CA certificates, in PEM, for verifying the servers' certificates; by default the operating
    system's."""

    check_host_name: bool = True
    """Whether a server's certificate must contain the host name of its endpoint. Flume's sink does not check this, so
    the certificates of existing receivers may all have the same name; `false` then accepts every certificate signed by
    `ca`."""

    def context(self) -> ssl.SSLContext:
        """Reads the files. Raises ComponentError."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:
            raise ComponentError(f"tls.ca: {self.ca} has no readable PEM certificate: {error}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_host_name
        if self.certificate is not None:
            self._load_certificate(context, self.certificate)
        return context

    def _load_certificate(self, context: ssl.SSLContext, certificate: Path) -> None:
        try:
            # Without the callback, OpenSSL would ask for a password on the terminal.
            context.load_cert_chain(certificate, self.private_key, password=_refuse_password)
        except (OSError, ValueError) as error:
            raise ComponentError(
                f"tls: {certificate} and {self.private_key} are not a certificate and its unencrypted private key: "
                f"{error}"
            ) from None


def _refuse_password() -> str:
    raise ValueError("the key is protected by a password")


class AvroSinkConfig(NonRejectingSinkConfig):
    """A sink that sends events to Flume's Avro sources, or to sources `avro` of Millrace, each event at least once.

    A batch leaves the channel once its receiver has responded OK. After FAILED, an error, or a missing response, the
    whole batch is sent again; the receiver may then have some of its events twice.
    """

    type: Literal["avro"]
    """Sends to Flume's Avro sources."""

    endpoints: Endpoints
    """The receivers, each as `host:port`. One at a time receives the events: the first reachable one, until it fails;
    then the next."""

    batch_events_max: int = Field(100, ge=1, le=1_000_000)
    """The maximum number of events in a batch; fewer if the channel's `transaction_capacity` is smaller. It must not
    exceed the transaction capacity of the receiver's channel, which for Flume's memory channel is 100 by default:
    otherwise that channel refuses the batch forever."""

    batch_bytes_max: ByteSize = Field(4 * MIB, ge=1, le=64 * MIB)
    """Bytes of bodies in a batch; a larger event is sent alone."""

    compression: Literal["none", "deflate"] = "none"
    """How the connection is compressed; the receiver must have the same `compression-type`."""

    compression_level: int = Field(6, ge=0, le=9)
    """From 1, the fastest, to 9, the smallest result; 0 does not compress."""

    tls: AvroTlsConfig | None = None
    """The table `tls`: how to connect over TLS; without it, the sink connects in plain text."""

    connect_timeout_seconds: float = Field(20.0, gt=0, le=3_600, allow_inf_nan=False)
    """How long connecting may take, including the TLS handshake."""

    timeout_seconds: float = Field(20.0, gt=0, le=86_400, allow_inf_nan=False)
    """How long a receiver may take to respond to a batch."""

    reset_connection_seconds: float | None = Field(None, gt=0, le=86_400, allow_inf_nan=False)
    """The connection is closed after this time, between two batches. The next connection starts with the first
    endpoint, whose name is resolved again, so that new receivers behind a load balancer get their share. None: never.
    """

    _check_is_installed = field_validator("type")(check_fastavro)

    @field_validator("compression_level")
    @classmethod
    def _check_has_effect(cls, level: int, info: ValidationInfo) -> int:
        if info.data.get("compression") == "none":
            raise ValueError(f'is {shown_value(level)}, which has no effect; compression must be "deflate"')
        return level

    def check_files(self) -> None:
        if self.tls is not None:
            self.tls.context()

    def make(self, _context: SinkContext) -> Sink:
        return sink_class(self.type)(self)
