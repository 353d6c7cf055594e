"""Certificates with any names, such as no sane authority would sign."""

import warnings
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

DNS, IP, MAIL, URI = 0x82, 0x87, 0x81, 0x86
"""Kinds of alternative names, as they are encoded."""

Names = list[tuple[int, bytes]]

_AUTHORITY = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Odd authority")])
_LENGTH_SHORT_MAX = 127
_DAY = timedelta(days=1)


@cache
def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def issued(
    alternative: Names, common: list[str], *, is_authority: bool = False, key: rsa.RSAPublicKey | None = None
) -> x509.Certificate:
    """Returns a certificate of the authority, or its own, which all have the same key unless another one is given."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_AUTHORITY if is_authority else _name(common))
        .issuer_name(_AUTHORITY)
        .public_key(key or _key().public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )
    if is_authority:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    if alternative:
        encoded = _encoded(0x30, b"".join(_encoded(kind, name) for kind, name in alternative))
        names = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, encoded)
        builder = builder.add_extension(names, critical=False)
    return builder.sign(_key(), hashes.SHA256())


def write_certificate(folder: Path, name: str, certificate: x509.Certificate) -> tuple[Path, Path]:
    """Writes `NAME.pem` and `NAME.key`; returns both paths."""
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    paths[0].write_bytes(certificate.public_bytes(Encoding.PEM))
    paths[1].touch(0o600)
    paths[1].write_bytes(_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return paths


def _name(common: list[str]) -> x509.Name:
    with warnings.catch_warnings():
        # It has at most 64 characters, says the library.
        warnings.simplefilter("ignore")
        attributes = [x509.NameAttribute(x509.NameOID.COMMON_NAME, name, _validate=False) for name in common]
    return x509.Name(attributes)


def _encoded(kind: int, content: bytes) -> bytes:
    size = len(content)
    digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
    length = bytes([size]) if size <= _LENGTH_SHORT_MAX else bytes([0x80 | len(digits)]) + digits
    return bytes([kind]) + length + content
