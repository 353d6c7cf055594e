"""Certificate authorities and certificates for tests of TLS."""

import ipaddress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)


class Authority:
    """A certificate authority; `certificate` is its own certificate in PEM."""

    def __init__(self, name: str = "Test authority") -> None:
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    @cached_property
    def _key(self) -> ec.EllipticCurvePrivateKey:
        return ec.generate_private_key(ec.SECP256R1())

    @cached_property
    def certificate(self) -> bytes:
        own = self._builder(self._name, self._key, 100 * _DAY)
        signed = own.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        return signed.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, folder: Path, name: str, days: float = 30.0) -> tuple[Path, Path]:
        """Writes a certificate for this machine and its key as `NAME.pem` and `NAME.key`; returns both paths.

        A negative number of days makes a certificate that has expired.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        signed = self._builder(subject, key, days * _DAY).add_extension(
            x509.SubjectAlternativeName(hosts), critical=False
        )
        pem = signed.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        certificate, private_key = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_bytes(pem)
        private_key.touch(0o600)
        private_key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, private_key

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, lifetime: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 100 * _DAY)
            .not_valid_after(now + lifetime)
        )
