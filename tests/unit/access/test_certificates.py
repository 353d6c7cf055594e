"""Whom a client's certificate names, and whether its key is accepted."""

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from millrace_server.access.certificates import ClientCertificate, read_certificate
from millrace_server.access.control import credentials_of
from millrace_server.errors import UnauthenticatedError
from tests.odd_certificates import DNS, IP, MAIL, URI, Names, issued

SPIFFE = b"spiffe://example.org/web"


@pytest.mark.parametrize("encoding", [Encoding.PEM, Encoding.DER])
@pytest.mark.parametrize(
    ("alternative", "common", "name"),
    [
        ([(DNS, b"web"), (URI, SPIFFE)], ["common"], SPIFFE.decode()),
        ([(URI, SPIFFE), (URI, b"https://example.org"), (DNS, b"web"), (DNS, b"other")], ["common"], "web"),
        ([(URI, b"https://example.org"), (MAIL, b"a@b.example"), (IP, bytes(4))], ["common", "other"], "common"),
        ([], ["Alice Smith"], "Alice Smith"),
        ([(MAIL, b"a@b.example")], [], None),
        # A name that is not good does not make way for the next one.
        ([(DNS, b"boss\0.evil.example")], ["common"], None),
        ([(URI, b"spiffe://boss\0")], ["common"], None),
        ([(DNS, b"\xff")], ["common"], None),
        ([(DNS, b"")], ["common"], None),
        ([(DNS, b"a\r\nb")], ["common"], None),
        ([], ["boss\0"], None),
        ([], ["x" * 256], None),
        ([(IP, b"1")], ["common"], None),
    ],
)
def test_certificate_names_one_identity(encoding: Encoding, alternative: Names, common: Any, name: str | None) -> None:
    """Its SPIFFE ID, else its first DNS name, else its common name; never what only resembles one of them."""
    assert read_certificate(issued(alternative, common).public_bytes(encoding)).name == name


@given(
    st.lists(st.tuples(st.sampled_from([DNS, IP, MAIL, URI, 0xA0]), st.binary(max_size=300)), max_size=4),
    st.lists(st.text(max_size=300).filter(lambda text: text.encode(errors="ignore").decode() == text), max_size=2),
)
def test_certificate_with_any_names_names_printable_text_or_nobody(alternative: Names, common: list[str]) -> None:
    """Whatever an authority signs, it does not forge log lines, nor end in an error."""
    name = read_certificate(issued(alternative, common).public_bytes(Encoding.DER)).name
    assert name is None or (name.isprintable() and 0 < len(name) <= 255)
    shown = [content.decode("latin-1") for kind, content in alternative if kind in {DNS, URI}]
    assert name is None or name.encode().decode("latin-1") in shown or name in common


@given(st.binary())
def test_certificate_that_is_none_names_nobody(certificate: bytes) -> None:
    """Not even a part of one is taken."""
    assert read_certificate(certificate) == ClientCertificate()
    whole = issued([], ["web"]).public_bytes(Encoding.DER)
    assert read_certificate(whole[: min(len(certificate) + 1, len(whole) - 1)]) == ClientCertificate()


@pytest.mark.parametrize(("bits", "is_accepted"), [(1_024, False), (2_047, False), (2_048, True)])
def test_certificate_with_a_short_rsa_key_proves_nothing(bits: int, *, is_accepted: bool) -> None:
    """Such a key can be broken; the sentence says what is needed."""
    key = generate_private_key(public_exponent=65_537, key_size=bits)
    certificate = issued([], ["web"], key=key.public_key()).public_bytes(Encoding.PEM)
    if is_accepted:
        assert credentials_of([], certificate).certificate_name == "web"
    else:
        with pytest.raises(UnauthenticatedError, match=f"has an RSA key of {bits} bits, and 2048 are needed"):
            credentials_of(["Bearer token"], certificate)
