"""Settings of the sink `millrace`."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from millrace.setting_units import ByteSize
from millrace.units import GIB, MIB
from millrace_server.agent.client_certificate import ClientCertificateConfig
from millrace_server.agent.setting_types import ChannelName, Endpoints
from millrace_server.agent.sinks.sink import Sink, SinkConfig, SinkContext, sink_class
from millrace_server.agent.supervision import ComponentError
from millrace_server.files import NamedPath

if TYPE_CHECKING:
    from grpc import ChannelCredentials


class ClientTlsConfig(ClientCertificateConfig, frozen=True, extra="forbid"):
    """How a sink connects over TLS. The files are in PEM, and are reread for each connection."""

    ca: NamedPath | None = None
    """File of the CA certificates, in PEM, for verifying the servers' certificates; `system`: the operating system's;
    by default those that are included in gRPC."""

    def credentials(self) -> "ChannelCredentials":
        """Reads the files. Raises ComponentError."""
        # Imports gRPC's client only in servers that forward.
        from millrace_client.errors import BadArgumentError
        from millrace_client.security import Tls

        try:
            return Tls(ca=self.ca, certificate=self.certificate, private_key=self.private_key).credentials()
        except BadArgumentError as error:
            raise ComponentError(error.message) from None


class MillraceSinkConfig(SinkConfig):
    """A sink that appends to a channel of another server, each event exactly once and in order."""

    type: Literal["millrace"]
    """Forwards to another Millrace server."""

    endpoints: Endpoints
    """The servers. One at a time receives the events.

    The sink keeps its server, even across a restart, until the server has accepted nothing for `failover_seconds`; then
    it continues with the next one. Exactly once applies to a single server: if responses were lost before the sink
    changed its server, both servers may have the events of those batches.
    """

    tls: ClientTlsConfig | None = None
    """The table `tls`: how to connect over TLS; without it, the sink connects in plain text."""

    token_file: NamedPath | None = None
    """File of the sink's token, in one line; it is read for each connection. Without `tls`, it is sent to loopback
    addresses only, unless `MILLRACE_ALLOW_PLAINTEXT=true` is set in the environment."""

    target_channel: ChannelName
    """The channel on that server."""

    failover_seconds: float = Field(30.0, ge=0, le=86_400, allow_inf_nan=False)
    """How long a server must have accepted nothing before the sink continues with the next one."""

    inflight_batches_max: int = Field(8, ge=1, le=64)
    """Maximum number of deliveries in flight."""

    inflight_bytes_max: ByteSize = Field(32 * MIB, ge=1, le=GIB)
    """Maximum bytes of these deliveries, unless a single one has more."""

    batch_bytes_max: ByteSize = Field(4 * MIB, ge=1, le=64 * MIB)
    """The maximum bytes of bodies in a delivery; a larger event is delivered alone."""

    connect_timeout_seconds: float = Field(10.0, gt=0, le=3_600, allow_inf_nan=False)
    """How long a server may take to accept a connection."""

    timeout_seconds: float = Field(30.0, gt=0, le=86_400, allow_inf_nan=False)
    """How long a server may take to respond to a request. It should be longer than the target channel's
    `keep_alive_seconds`."""

    def token_metadata(self) -> tuple[tuple[str, str], ...]:
        """Reads the token's file; returns the metadata of calls, empty without a token. Raises ComponentError."""
        if self.token_file is None:
            return ()
        from millrace_client.errors import BadArgumentError
        from millrace_client.security import Token

        try:
            return Token(file=self.token_file).metadata()
        except BadArgumentError as error:
            raise ComponentError(error.message) from None

    def check_files(self) -> None:
        if self.tls is not None:
            self.tls.credentials()
        self.token_metadata()

    def make(self, context: SinkContext) -> Sink:
        # Imports gRPC's client only in servers that forward.
        return sink_class(self.type)(self, context.directory)
