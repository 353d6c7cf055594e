"""Certificates of clients: their names, when they expire, and the strength of their keys."""

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from millrace_server.access.tokens import NAME_LENGTH_MAX
from millrace_server.errors import UnauthenticatedError
from millrace_server.network.pem_files import RSA_BITS_MIN

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_CERTIFICATES_MAX = 1_024


class ClientCertificate(NamedTuple):
    """The contents of a client's certificate. One that cannot be read has no name and counts as expired."""

    name: str | None = None
    expiry_time: float = 0.0
    """In seconds since the epoch."""
    rsa_bits: int | None = None
    """The size of its key; None if it is not an RSA key."""

    def refuse_if_weak(self) -> None:
        """Raises UnauthenticatedError if the key is too short, which gRPC does not check."""
        if self.rsa_bits is not None and self.rsa_bits < RSA_BITS_MIN:
            raise UnauthenticatedError(
                f"the certificate of the connection has an RSA key of {self.rsa_bits} bits, and {RSA_BITS_MIN} are "
                "needed; connect with another one"
            )


@lru_cache(_CERTIFICATES_MAX)
def read_certificate(certificate: bytes) -> ClientCertificate:
    """Reads a certificate in PEM or DER.

    Its name is its SPIFFE ID, else its first DNS name, else its common name; None if that is not printable text.
    """
    # Slow to import, and not needed without certificates.
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import rsa

    is_pem = certificate.startswith(b"-----BEGIN")
    try:
        parsed = (x509.load_pem_x509_certificate if is_pem else x509.load_der_x509_certificate)(certificate)
        key = parsed.public_key()
        rsa_bits = key.key_size if isinstance(key, rsa.RSAPublicKey) else None
        return ClientCertificate(_name_in(parsed), parsed.not_valid_after_utc.timestamp(), rsa_bits)
    except Exception:  # noqa: BLE001 - a certificate that cannot be read identifies no one
        return ClientCertificate()


def _name_in(certificate: "Certificate") -> str | None:
    # gRPC and `ssl` parse these names too, but gRPC cuts them at a NUL, and `ssl` fails if they are not UTF-8.
    try:
        name = next(_names(certificate), "")
    except Exception:  # noqa: BLE001 - as above
        return None
    return name if name.isprintable() and 0 < len(name) <= NAME_LENGTH_MAX else None


def _names(certificate: "Certificate") -> Iterator[str]:
    from cryptography import x509

    for extension in certificate.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            uris = extension.value.get_values_for_type(x509.UniformResourceIdentifier)
            # A certificate with several URIs is not a SPIFFE certificate.
            yield from (uri for uri in uris if len(uris) == 1 and uri.startswith("spiffe://"))
            yield from extension.value.get_values_for_type(x509.DNSName)
    yield from (str(one.value) for one in certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME))
