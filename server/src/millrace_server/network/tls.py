"""TLS of the addresses that the server listens on: its settings, and files that are read again when they change.

Certificates are in PEM. TLS is of version 1.2 or 1.3.
"""

import asyncio
import json
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import structlog
from pydantic import BaseModel, Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.files import NamedPath, file_stamp, read_named

if TYPE_CHECKING:
    import grpc
    from cryptography.x509 import Certificate

_FILE_BYTES_MAX = 1 << 20
_WARNING_DAYS = 14
_DAY = timedelta(days=1)
_CHECK_SECONDS = 1.0
"""How late a changed file is in force."""

_log = structlog.stdlib.get_logger(__name__)


class TlsSettings(BaseModel, frozen=True, extra="forbid"):
    """The server's certificate, and whose clients it admits. The files are read again when they change."""

    # Validators of later fields compare them with the earlier ones, which are missing if they are wrong.

    certificate: NamedPath
    """File of the server's certificate, followed by the intermediate ones, in PEM."""

    private_key: NamedPath
    """File of the certificate's key, in PEM, without a password. Others than its user and group must not read it."""

    client_ca: NamedPath | None = None
    """File of the certificates, in PEM, of those that sign the certificates of clients."""

    client_certificate: Literal["off", "required"] = Field("off", validate_default=True)
    """Whether clients must have a certificate. Over HTTP, `/healthz` needs none."""

    @field_validator("certificate")
    @classmethod
    def _check_certificate(cls, path: Path) -> Path:
        _read_certificates(path)
        return path

    @field_validator("private_key")
    @classmethod
    def _check_key(cls, path: Path, info: ValidationInfo) -> Path:
        certificate = info.data.get("certificate")
        _read_key(path, certificate and _read_certificates(certificate)[1][0])
        return path

    @field_validator("client_ca")
    @classmethod
    def _check_ca(cls, path: Path | None) -> Path | None:
        if path is not None:
            _read_certificates(path)
        return path

    @field_validator("client_certificate")
    @classmethod
    def _check_has_ca(cls, mode: str, info: ValidationInfo) -> str:
        if mode == "required" and "client_ca" in info.data and info.data["client_ca"] is None:
            raise ValueError(f"is {shown_value(mode)}; client_ca must say who signs the certificates of clients")
        return mode


class TlsMaterial(NamedTuple):
    """What the files held when they were last read."""

    chain: bytes
    key: bytes
    client_ca: bytes | None
    http_context: ssl.SSLContext
    expiry_time: datetime
    """When the first of the server's certificates expires."""


class TlsFiles:
    """The files of a listener, as they are now. Files that do not fit together leave the former ones in force."""

    def __init__(self, settings: TlsSettings) -> None:
        """Reads the files; raises ValueError if one of them is not valid any more."""
        self.settings = settings
        self._stamp = self._stamps()
        self.material = _read_material(settings)
        self._warned_at = datetime.min.replace(tzinfo=UTC)

    async def follow(self) -> None:
        """Reads changed files again, and warns of the certificate's expiry, until it is cancelled."""
        while True:
            await asyncio.to_thread(self.refresh)
            self._warn_of_expiry()
            await asyncio.sleep(_CHECK_SECONDS)

    @property
    def requires_client_certificate(self) -> bool:
        return self.settings.client_certificate == "required"

    def refresh(self) -> None:
        """Reads the files again if they have changed. May be called in any thread."""
        stamp = self._stamps()
        if stamp == self._stamp:
            return
        # Noted first: files that are not valid are read again when they change again.
        self._stamp = stamp
        try:
            material = _read_material(self.settings)
        except ValueError as error:
            _log.error("changed TLS files are not in force; the former ones are", why=f"server.tls: {error}")
            return
        self.material = material
        _log.info("TLS files read again", expiry_time=material.expiry_time.isoformat())

    @property
    def days_left(self) -> float:
        """Days until the server's certificate expires."""
        return (self.material.expiry_time - datetime.now(UTC)) / _DAY

    def _warn_of_expiry(self) -> None:
        now = datetime.now(UTC)
        if self.days_left < _WARNING_DAYS and now - self._warned_at >= _DAY:
            self._warned_at = now
            _log.warning(
                "the server's certificate expires soon; replace the file, which is read again by itself",
                certificate=str(self.settings.certificate),
                expiry_time=self.material.expiry_time.isoformat(),
            )

    def grpc_credentials(self) -> "grpc.ServerCredentials":
        """Returns credentials that take the files of the moment for each new connection."""
        # Embedded agents have settings of TLS, too, and no gRPC server.
        import grpc

        used = self._grpc_configuration()
        last = [self.material]

        def fetch() -> Any:
            # gRPC calls this for each handshake, in a thread of its own; None keeps the former files.
            if self.material is last[0]:
                return None
            last[0] = self.material
            return self._grpc_configuration()

        return grpc.dynamic_ssl_server_credentials(
            used, fetch, require_client_authentication=self.requires_client_certificate
        )

    def http_context(self) -> ssl.SSLContext:
        """Returns a context that takes the files of the moment for each new connection."""

        def swap(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self.material.http_context

        # Called for every new connection, also for those that name no server.
        context = self.material.http_context
        context.sni_callback = swap
        return context

    def _grpc_configuration(self) -> "grpc.ServerCertificateConfiguration":
        import grpc

        material = self.material
        return grpc.ssl_server_certificate_configuration([(material.key, material.chain)], material.client_ca)

    def _stamps(self) -> tuple[object, ...]:
        settings = self.settings
        return tuple(map(file_stamp, (settings.certificate, settings.private_key, settings.client_ca)))


def _read_material(settings: TlsSettings) -> TlsMaterial:
    """Reads all files; raises ValueError, with the file and what to do, if they are not valid together."""
    # Each file is read once, so that what was checked is what is used.
    chain, certificates = _read_certificates(settings.certificate)
    return TlsMaterial(
        chain=chain,
        key=_read_key(settings.private_key, certificates[0]),
        client_ca=None if settings.client_ca is None else _read_certificates(settings.client_ca)[0],
        http_context=_http_context(settings),
        expiry_time=min(one.not_valid_after_utc for one in certificates),
    )


def _http_context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.certificate, settings.private_key)
        if settings.client_certificate == "required":
            context.load_verify_locations(settings.client_ca)
            # A probe of /healthz has no certificate; the application refuses everything else without one.
            context.verify_mode = ssl.CERT_OPTIONAL
    except (OSError, ValueError) as error:
        # One of them was replaced since it was checked.
        raise ValueError(f"{settings.certificate} and {settings.private_key} do not fit together: {error}") from None
    return context


def _read_certificates(path: Path) -> "tuple[bytes, list[Certificate]]":
    """Returns a file and its certificates; raises ValueError if it holds none, or one that is not valid now."""
    # Heavy, and not needed without TLS.
    from cryptography import x509

    shown = json.dumps(str(path))
    try:
        content = read_named(path, _FILE_BYTES_MAX)
        certificates = x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise ValueError(
            str(error) if shown in str(error) else f"is {shown}, which holds no certificates in PEM"
        ) from None
    now = datetime.now(UTC)
    for certificate in certificates:
        name = certificate.subject.rfc4514_string()
        if certificate.not_valid_after_utc <= now:
            raise ValueError(
                f"is {shown}, whose certificate {name} expired at {certificate.not_valid_after_utc}; replace it"
            )
        if certificate.not_valid_before_utc > now:
            raise ValueError(
                f"is {shown}, whose certificate {name} is valid from {certificate.not_valid_before_utc} only; check "
                "this machine's clock, or replace the file"
            )
    return content, certificates


def _read_key(path: Path, certificate: "Certificate | None") -> bytes:
    """Returns a key; raises ValueError if others may read it, if it is none, or if it is not the certificate's."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    shown = json.dumps(str(path))
    content = read_named(path, _FILE_BYTES_MAX, is_secret=True)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except TypeError:
        raise ValueError(f"is {shown}, which is protected by a password; it must be without one") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"is {shown}, which holds no private key in PEM") from None
    if certificate is not None and certificate.public_key() != key.public_key():
        raise ValueError(
            f"is {shown}, which is not the key of {certificate.subject.rfc4514_string()}, the first certificate in the "
            "file of certificates; the server's own must come first, with its key here"
        )
    return content
