"""A certificate authority for trying out TLS and for tests. Keys use the curve P-256; files are in PEM."""

import errno
import inspect
import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from millrace_server.files import write_atomically

_DAYS = 365.0
_CERTIFICATE_MODE = 0o644
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_.-]{1,253}")
_KEY_USAGES = tuple(inspect.signature(x509.KeyUsage).parameters)
_SERVER = ExtendedKeyUsageOID.SERVER_AUTH
_CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH


class Authority:
    """A certificate authority in memory; its key is never written to a file."""

    def __init__(self, name: str = "Millrace dev-certificates") -> None:
        self.subject = _subject(name)
        self.key = ec.generate_private_key(ec.SECP256R1())

    @cached_property
    def certificate(self) -> bytes:
        usage = x509.KeyUsage(**dict.fromkeys(_KEY_USAGES, False) | {"key_cert_sign": True})
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        extensions = [(usage, True), (constraints, True), (self._key_identifier, False)]
        return self._signed(self.subject, self.key.public_key(), extensions, -1.0, _DAYS)

    def issue(  # noqa: PLR0913 - what a certificate says
        self,
        folder: Path,
        name: str,
        days: float = _DAYS,
        *,
        hosts: Iterable[str] = _LOCAL_HOSTS,
        usages: Iterable[x509.ObjectIdentifier] = (_SERVER, _CLIENT),
        age_days: float = 2.0,
    ) -> tuple[Path, Path]:
        """Writes a certificate and its key as `NAME.pem` and `NAME.key`; returns both paths.

        The certificate is valid from `age_days` ago until `days` from now; with a negative number it has expired.
        Raises ValueError if a host is neither a name nor an address.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.ExtendedKeyUsage(usages), False),
            (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._key_identifier), False),
        ]
        if names := [_general_name(host) for host in hosts]:
            extensions.append((x509.SubjectAlternativeName(names), False))
        signed = self._signed(_subject(name), key.public_key(), extensions, -age_days, days)
        certificate, private_key = folder / f"{name}.pem", folder / f"{name}.key"
        write_atomically(private_key, key_in_pem(key))
        write_atomically(certificate, signed, mode=_CERTIFICATE_MODE)
        return certificate, private_key

    @property
    def _key_identifier(self) -> x509.SubjectKeyIdentifier:
        return x509.SubjectKeyIdentifier.from_public_key(self.key.public_key())

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        extensions: Iterable[tuple[x509.ExtensionType, bool]],
        *days: float,
    ) -> bytes:
        start, end = (datetime.now(UTC) + timedelta(days=count) for count in days)
        builder = (
            x509.CertificateBuilder()
            .issuer_name(self.subject)
            .subject_name(subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
        )
        for extension, is_critical in extensions:
            builder = builder.add_extension(extension, is_critical)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def key_in_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Returns a key in PEM, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


class DevCertificates(NamedTuple):
    """The files of a server and a client that trust the same authority."""

    ca: Path
    certificate: Path
    private_key: Path
    client_certificate: Path
    client_key: Path


def make_dev_certificates(folder: Path, names: Iterable[str]) -> DevCertificates:
    """Makes an authority, a certificate of a server on this machine with additional names, and one of a client.

    Raises FileExistsError, and writes nothing, if one of the files exists; another OSError if they cannot be written;
    and ValueError if a name is neither a host name nor an address.
    """
    names_of_files = ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")
    files = DevCertificates(*(folder / name for name in names_of_files))
    if existing := [path for path in files if path.exists()]:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(existing[0]))
    hosts = dict.fromkeys([*_LOCAL_HOSTS, *_own_name(), *names])
    for host in hosts:
        _general_name(host)
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority()
    write_atomically(files.ca, authority.certificate, mode=_CERTIFICATE_MODE)
    # Also for clients: the nodes of an engine connect to each other with the same certificate.
    authority.issue(folder, files.certificate.stem, hosts=hosts, usages=[_SERVER, _CLIENT])
    authority.issue(folder, files.client_certificate.stem, hosts=(), usages=[_CLIENT])
    return files


def _own_name() -> Iterator[str]:
    with suppress(ValueError):
        _general_name(name := socket.gethostname())
        yield name


def _general_name(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    if not _HOST.fullmatch(host):
        raise ValueError(f"{host!r} is neither a host name nor an IP address")
    return x509.DNSName(host)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
