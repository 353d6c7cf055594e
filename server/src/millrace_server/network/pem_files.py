"""Certificates and private keys in files that settings name."""

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from millrace_server.files import read_named

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

RSA_BITS_MIN = 2_048
"""Smaller RSA keys are not accepted, neither of the server nor of clients or issuers."""

_FILE_BYTES_MAX = 1 << 20


def read_certificates(path: Path) -> "tuple[bytes, list[Certificate]]":
    """Returns a file and its certificates; raises ValueError if it holds none, or one that is not valid now."""
    # Slow to import, and not needed without TLS.
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


def read_server_certificates(path: Path) -> "tuple[bytes, list[Certificate]]":
    """Like `read_certificates`; also raises ValueError if the first certificate is not for servers."""
    content, certificates = read_certificates(path)
    if not _is_for_servers(certificates[0]):
        raise ValueError(
            f"is {json.dumps(str(path))}, whose certificate {certificates[0].subject.rfc4514_string()} is not for "
            "servers, so that no client would accept it; get one whose extended key usages contain serverAuth"
        )
    return content, certificates


def _is_for_servers(certificate: "Certificate") -> bool:
    from cryptography.x509 import ExtendedKeyUsage, ExtensionNotFound
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        usages = certificate.extensions.get_extension_for_class(ExtendedKeyUsage).value
    except (ExtensionNotFound, ValueError):
        return True
    return ExtendedKeyUsageOID.SERVER_AUTH in usages or ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE in usages


def read_private_key(path: Path, certificate: "Certificate | None") -> bytes:
    """Returns a private key; raises ValueError if it is world-readable, invalid, or not that of the certificate."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    shown = json.dumps(str(path))
    content = read_named(path, _FILE_BYTES_MAX, is_secret=True)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except TypeError:
        raise ValueError(f"is {shown}, which is protected by a password; it must not have one") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"is {shown}, which holds no private key in PEM") from None
    if not _is_supported(key):
        raise ValueError(
            f"is {shown}, whose type gRPC clients do not accept; it must be an RSA key of at least "
            f"{RSA_BITS_MIN} bits, or use the curve P-256 or P-384; get a certificate for such a key"
        )
    if certificate is not None and _public_key(certificate) != key.public_key():
        raise ValueError(
            f"is {shown}, which is not the key of {certificate.subject.rfc4514_string()}, the first certificate in the "
            "file of certificates; the server's own must come first, with its key here"
        )
    return content


def _is_supported(key: object) -> bool:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if isinstance(key, rsa.RSAPrivateKey):
        return key.key_size >= RSA_BITS_MIN
    return isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1)


def _public_key(certificate: "Certificate") -> object:
    from cryptography.exceptions import UnsupportedAlgorithm

    with suppress(ValueError, UnsupportedAlgorithm):
        return certificate.public_key()
    return None
