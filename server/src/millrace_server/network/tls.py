"""TLS of listening sockets: its settings, and its files, which are read again when they change.

Certificates are in PEM. The versions are TLS 1.2 and 1.3.
"""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import structlog
from pydantic import BaseModel, Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.files import FileWatch, NamedPath, follow
from millrace_server.network.pem_files import read_certificates, read_private_key, read_server_certificates

if TYPE_CHECKING:
    import grpc

_WARNING_DAYS = 14
_DAY = timedelta(days=1)
_NEVER = datetime.min.replace(tzinfo=UTC)

_log = structlog.stdlib.get_logger(__name__)


class TlsSettings(BaseModel, frozen=True, extra="forbid"):
    """The server's certificate, and the client certificates that it accepts. The files are reread when they change."""

    verify_mode: ClassVar[ssl.VerifyMode] = ssl.CERT_OPTIONAL
    """Optional, since probes of `/healthz` have no certificate; the application refuses all other requests without
    one."""

    # Validators of later fields compare them with earlier ones, which are missing if they are invalid.

    certificate: NamedPath
    """File of the server's certificate, followed by the intermediate ones, in PEM."""

    private_key: NamedPath
    """File of the certificate's key, in PEM, without a password. It must not be world-readable."""

    client_ca: NamedPath | None = None
    """File of CA certificates, in PEM, for verifying clients' certificates."""

    client_certificate: Literal["off", "required"] = Field("off", validate_default=True)
    """Whether clients must have a certificate. Over HTTP, `/healthz` needs none."""

    @field_validator("certificate")
    @classmethod
    def _check_certificate(cls, path: Path) -> Path:
        read_server_certificates(path)
        return path

    @field_validator("private_key")
    @classmethod
    def _check_key(cls, path: Path, info: ValidationInfo) -> Path:
        certificate = info.data.get("certificate")
        read_private_key(path, certificate and read_certificates(certificate)[1][0])
        return path

    @field_validator("client_ca")
    @classmethod
    def _check_ca(cls, path: Path | None) -> Path | None:
        if path is not None:
            read_certificates(path)
        return path

    @field_validator("client_certificate")
    @classmethod
    def _check_has_ca(cls, mode: str, info: ValidationInfo) -> str:
        if mode == "required" and "client_ca" in info.data and info.data["client_ca"] is None:
            raise ValueError(f"is {shown_value(mode)}; it needs client_ca, the authority of clients' certificates")
        if mode == "off" and info.data.get("client_ca") is not None:
            # An authority alone could be mistaken for a requirement of certificates.
            raise ValueError(
                f'is {shown_value(mode)}, so client_ca has no effect; set it to "required", or remove client_ca'
            )
        return mode


class SourceTlsSettings(TlsSettings, frozen=True, extra="forbid"):
    """The certificate of a source that listens, and whose clients it admits, with files that are read again too."""

    verify_mode: ClassVar[ssl.VerifyMode] = ssl.CERT_REQUIRED

    client_certificate: Literal["off", "required"] = Field("off", validate_default=True)
    """Whether clients must have a certificate."""


class TlsMaterial(NamedTuple):
    """The contents of the files when they were last read."""

    chain: bytes
    key: bytes
    client_ca: bytes | None
    http_context: ssl.SSLContext
    expiry_times: dict[Path, datetime]
    """When the first certificate in each file expires."""


_followed = set["TlsFiles"]()


def expiry_times() -> dict[Path, datetime]:
    """Returns when the first certificate in each file expires, for the files of all listeners in this process."""
    return {path: when for files in _followed for path, when in files.material.expiry_times.items()}


class TlsFiles:
    """The current TLS files of a listener. If changed files are invalid, the previous ones stay in use."""

    def __init__(self, settings: TlsSettings, setting: str = "server.tls") -> None:
        """Reads the files of a setting; raises ValueError if one of them is no longer valid."""
        self.settings = settings
        self._setting = setting
        self._watch = FileWatch(settings.certificate, settings.private_key, settings.client_ca)
        self.material = _read_material(settings)
        self._warned_at: dict[Path, datetime] = {}

    async def follow(self) -> None:
        """Reads changed files again, and warns of their expiry, until it is cancelled."""
        _followed.add(self)
        try:
            await follow(self._check, "the TLS files")
        finally:
            _followed.discard(self)

    def _check(self) -> None:
        self.refresh()
        self.warn_of_expiry()

    @property
    def requires_client_certificate(self) -> bool:
        return self.settings.client_certificate == "required"

    def refresh(self) -> None:
        """Reads the files again if they have changed. May be called in any thread."""
        if not self._watch.has_changed():
            return
        try:
            material = _read_material(self.settings)
        except ValueError as error:
            _log.error("changed TLS files are invalid; the previous ones stay in use", why=f"{self._setting}: {error}")
            return
        self.material = material
        expiry_time = min(material.expiry_times.values())
        _log.info("TLS files reloaded", expiry_time=expiry_time.isoformat())

    def days_left(self) -> dict[Path, float]:
        """Returns the days until the first certificate in each file expires."""
        now = datetime.now(UTC)
        return {path: (expiry_time - now) / _DAY for path, expiry_time in self.material.expiry_times.items()}

    def warn_of_expiry(self) -> None:
        """Warns of each file with a certificate that expires soon, or has expired, once a day."""
        now = datetime.now(UTC)
        for path, days in self.days_left().items():
            if days < _WARNING_DAYS and now - self._warned_at.get(path, _NEVER) >= _DAY:
                self._warned_at[path] = now
                state = "has expired" if days < 0 else "expires soon"
                _log.warning(
                    f"a certificate {state}; replace the file; the server rereads it",
                    file=str(path),
                    expiry_time=self.material.expiry_times[path].isoformat(),
                    days_left=round(days, 1),
                )

    def grpc_credentials(self) -> "grpc.ServerCredentials":
        """Returns credentials that use the current files for each new connection."""
        # Imported here, since embedded agents use TLS without a gRPC server.
        import grpc

        used = self._grpc_configuration()
        last = [self.material]

        def fetch() -> Any:
            # gRPC calls this for each handshake, on its own thread; None keeps the previous files.
            if self.material is last[0]:
                return None
            last[0] = self.material
            return self._grpc_configuration()

        return grpc.dynamic_ssl_server_credentials(
            used, fetch, require_client_authentication=self.requires_client_certificate
        )

    def http_context(self) -> ssl.SSLContext:
        """Returns a context that uses the current files for each new connection."""
        return _CurrentContext(self)

    def _grpc_configuration(self) -> "grpc.ServerCertificateConfiguration":
        import grpc

        material = self.material
        return grpc.ssl_server_certificate_configuration([(material.key, material.chain)], material.client_ca)


class _CurrentContext(ssl.SSLContext):
    """Creates each connection from the current context.

    A TLS session belongs to its context. It must not be resumed under a later one, which would admit clients without
    checking certificates that are no longer valid.
    """

    def __new__(cls, _files: TlsFiles) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, files: TlsFiles) -> None:
        self._files = files

    def wrap_bio(self, *given: Any, **others: Any) -> ssl.SSLObject:
        return self._files.material.http_context.wrap_bio(*given, **others)


def _read_material(settings: TlsSettings) -> TlsMaterial:
    """Reads all files; raises ValueError, with the file and what to do, if they are invalid or do not match."""
    # Each file is read once, so that the bytes that were checked are used.
    chain, certificates = read_server_certificates(settings.certificate)
    by_file = {settings.certificate: certificates}
    client_ca = None
    if settings.client_ca is not None:
        client_ca, by_file[settings.client_ca] = read_certificates(settings.client_ca)
    return TlsMaterial(
        chain=chain,
        key=read_private_key(settings.private_key, certificates[0]),
        client_ca=client_ca,
        http_context=_http_context(settings),
        expiry_times={path: min(one.not_valid_after_utc for one in held) for path, held in by_file.items()},
    )


def _http_context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Each renegotiation costs the server far more than the client; some versions of OpenSSL allow them.
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(settings.certificate, settings.private_key)
        if settings.client_certificate == "required":
            context.load_verify_locations(settings.client_ca)
            context.verify_mode = settings.verify_mode
    except (OSError, ValueError) as error:
        # One of them has been replaced since it was checked.
        raise ValueError(f"{settings.certificate} and {settings.private_key} do not match: {error}") from None
    return context
