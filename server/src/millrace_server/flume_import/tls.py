"""TLS: the conversion of Java keystores to files in PEM."""

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from millrace_server.flume_import.options import Options, Table

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_STORE_BYTES_MAX = 16 << 20
_GLOBAL = {
    "key": ("javax.net.ssl.keyStore", "FLUME_SSL_KEYSTORE_PATH"),
    "key_password": ("javax.net.ssl.keyStorePassword", "FLUME_SSL_KEYSTORE_PASSWORD"),
    "trust": ("javax.net.ssl.trustStore", "FLUME_SSL_TRUSTSTORE_PATH"),
    "trust_password": ("javax.net.ssl.trustStorePassword", "FLUME_SSL_TRUSTSTORE_PASSWORD"),
}
"""Where Flume looks for the keystores if a component has no setting: system properties, then the environment."""


class StoreNames(NamedTuple):
    """The properties that name a component's keystores."""

    key: str = "keystore"
    key_password: str = "keystore-password"  # noqa: S105 - the name of a property
    trust: str = "truststore"
    trust_password: str = "truststore-password"  # noqa: S105 - the name of a property


_NAMES = StoreNames()

_FROM_JKS = "keytool -importkeystore -srckeystore {store} -destkeystore {stem}.p12 -deststoretype PKCS12"
_TO_PEM = (
    "openssl pkcs12 -in {p12} -nodes -nokeys -out {stem}.pem; "
    "openssl pkcs12 -in {p12} -nodes -nocerts -out {stem}.key; chmod 600 {stem}.key"
)
_TRUSTED = "keytool -exportcert -rfc -keystore {store} -alias ALIAS -file {stem}.pem"


class StoreError(Exception):
    """Raised when a keystore cannot be converted; the message says why."""


class _Store(NamedTuple):
    """The contents of a keystore, in PEM."""

    key: bytes | None
    chain: bytes
    trusted: bytes


def server_tls(options: Options, *flags: str) -> Table | None:
    """Returns the table `tls` of a source, and accounts for its properties; None if it serves plain text."""
    if not _is_wanted(options, ("ssl", *flags)):
        return None
    store, password = _said(options, _NAMES, "key"), _said(options, _NAMES, "key_password")
    return _own_certificate(options, _NAMES.key, store, password or options.text("keystorePassword"))


def client_tls(options: Options) -> Table | None:
    """Returns the table `tls` of a sink, and accounts for its properties; None if it connects in plain text."""
    return store_tls(options, _NAMES) if _is_wanted(options, ("ssl",)) else None


def store_tls(options: Options, names: StoreNames) -> Table:
    """Returns the table `tls` of a client with a truststore, and optionally its own keystore."""
    trusted, password = _said(options, names, "trust"), _said(options, names, "trust_password")
    own, own_password = _said(options, names, "key"), _said(options, names, "key_password")
    table: Table = {}
    if trusted:
        stem = _stem(options, trusted)
        if (failure := _convert(options, trusted, password, stem)) is not None:
            command = _TRUSTED.format(store=trusted, stem=stem)
            options.changed(names.trust, f"trusted certificates are a file in PEM{failure}: {command}", "tls")
        table["ca"] = f"{stem}.pem"
    if own:
        table |= _own_certificate(options, names.key, own, own_password)
    return table


def _own_certificate(options: Options, key: str, store: str, password: str) -> Table:
    stem = _stem(options, store)
    if (failure := _convert(options, store, password, stem)) is not None:
        p12 = f"{stem}.p12"
        commands = f"{_FROM_JKS.format(store=store or 'KEYSTORE', stem=stem)}; {_TO_PEM.format(p12=p12, stem=stem)}"
        options.changed(key, f"certificate and key are files in PEM{failure}: {commands}", "tls")
    return {"certificate": f"{stem}.pem", "private_key": f"{stem}.key"}


def _is_wanted(options: Options, flags: Iterable[str]) -> bool:
    # All are read, so that all are accounted for. One that has to be filled in counts as true: nothing becomes plain
    # text by mistake.
    wanted = [(flag in options and options.flag(flag)) for flag in flags]
    return any(value is None or value for value in wanted)


def _said(options: Options, names: StoreNames, what: str) -> str:
    """Returns a component's setting for its keystore, or else the setting for all keystores of the process."""
    definition, variable = _GLOBAL[what]
    key: str = getattr(names, what)
    resolver = options.shared.resolver
    return options.text(key) or resolver.definitions.get(definition) or resolver.environment.get(variable, "")


def _stem(options: Options, store: str) -> str:
    """Returns the path of the files in PEM without a suffix, in the directory for them or next to the keystore."""
    name = PurePosixPath(store or options.location.name)
    directory = options.shared.settings.tls_directory
    return str(directory / f"{options.location.name}-{name.stem}" if directory else name.with_suffix(""))


def _convert(options: Options, store: str, password: str, stem: str) -> str | None:
    """Writes the contents of a keystore to files in PEM; returns why this was not done, or None."""
    if options.shared.settings.tls_directory is None:
        return ", see --tls-directory"
    try:
        found = _read(store, password)
        _write(options, Path(f"{stem}.pem"), found.chain if found.key else found.trusted, 0o644)
        if found.key:
            _write(options, Path(f"{stem}.key"), found.key, 0o600)
    except StoreError as error:
        return f" ({error})"
    return None


def _read(store: str, password: str) -> _Store:
    """Reads a PKCS #12 keystore, which Java also accepts as type JKS."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12

    try:
        with Path(store).open("rb") as file:
            content = file.read(_STORE_BYTES_MAX)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a path"
        raise StoreError(f"{store} cannot be read: {reason}") from None
    try:
        found = pkcs12.load_pkcs12(content, password.encode() or None)
    except ValueError:
        raise StoreError(f"{store} is no keystore of PKCS #12, or has another password") from None
    others = [each.certificate for each in found.additional_certs]
    chain = [found.cert.certificate, *others] if found.cert else others
    key = None
    if found.key is not None:
        key = found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return _Store(key, _pem(chain), _pem(others))


def _pem(certificates: "Iterable[Certificate]") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def _write(options: Options, path: Path, content: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        options.shared.written_files.append(path)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - of a descriptor, so that the mode is right from the start
            file.write(content)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from None
