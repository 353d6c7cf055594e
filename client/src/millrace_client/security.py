"""TLS and tokens of clients."""

import ipaddress
import os
import re
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc

from millrace_client.errors import BadArgumentError

_CHECK_SECONDS = 1.0
"""Changed files are noticed within this time."""

PLAINTEXT_VARIABLE = "MILLRACE_ALLOW_PLAINTEXT"

SYSTEM = "system"
"""In place of a file of authorities: those of the operating system."""

_SYSTEM_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where Debian, Fedora, SUSE, and Alpine and macOS have them."""

File = str | os.PathLike[str]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """A connection over TLS: whose servers are trusted, and the client's own certificate.

    Files are in PEM. They are read with the first call, and again when they change: calls from then on use a connection
    with the new ones, while streams that are open continue.

    Raises:
        BadArgumentError: There is a certificate without its key, or the other way round.
    """

    ca: File | None = None
    """File of the CA certificates, in PEM, with which servers' certificates are verified; `system`: the operating
    system's. None: those that come with gRPC."""

    certificate: File | None = None
    """File of the client's certificate, followed by the intermediate ones. None: the client has none."""

    private_key: File | None = None
    """File of the certificate's key, without a password."""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.private_key is None):
            missing = "private_key" if self.private_key is None else "certificate"
            raise BadArgumentError(f"tls: {missing} is missing; certificate and private_key must be given together")

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files; raises BadArgumentError if one of them cannot be read, or if they do not fit together."""
        before = self.state()
        contents = [_read(file) for file in self._files()]
        if self.ca is not None and self.ca != SYSTEM:
            _check_authorities(self.ca)
        if self.certificate is not None:
            _check_pair(self.certificate, self.private_key)
        # gRPC would accept files of which one was replaced in the meantime, and never get a connection.
        return grpc.ssl_channel_credentials(*contents) if self.state() == before else self.credentials()

    def state(self) -> tuple[object, ...]:
        """Returns what differs once a file was changed or replaced."""
        return tuple(map(_state, self._files()))

    def _files(self) -> tuple[File | None, ...]:
        is_system = self.ca is not None and os.fspath(self.ca) == SYSTEM
        return _system_file() if is_system else self.ca, self.private_key, self.certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """The client's token: a text, or a file, which is reread when it changes."""

    text: str | None = field(default=None, repr=False)
    file: File | None = None

    @classmethod
    def given(cls, text: str | None, file: File | None) -> "Token | None":
        """Returns the token of a caller's arguments; raises BadArgumentError if both are given."""
        if text is not None and file is not None:
            raise BadArgumentError("token: was given together with token_file; set only one of them")
        return None if text is None and file is None else cls(text=text, file=file)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the metadata of a call; raises BadArgumentError if the file cannot be read, or is no token."""
        text = (_read_token(self.file) if self.text is None else self.text).strip()
        if not text or not all("!" <= character <= "~" for character in text):
            source = "token" if self.file is None else f"token_file: {self.file}"
            # The text itself may be a secret that is only miswritten.
            raise BadArgumentError(f"{source} is not a token, which is printable ASCII without spaces")
        return (("authorization", f"Bearer {text}"),)

    def state(self) -> object:
        """Returns what differs once the file was changed or replaced."""
        return _state(self.file)


def check_encryption(token: Token | None, endpoint: str, *, is_encrypted: bool) -> None:
    """Raises BadArgumentError if a token would be sent unencrypted beyond this machine.

    Loopback addresses and Unix sockets are allowed. If the network itself encrypts, as a service mesh does,
    `MILLRACE_ALLOW_PLAINTEXT=true` in the environment allows it everywhere.
    """
    if token is None or is_encrypted or _is_local(endpoint) or os.environ.get(PLAINTEXT_VARIABLE) == "true":
        return
    raise BadArgumentError(
        f"token: would be sent to {endpoint} unencrypted; connect over TLS, or set {PLAINTEXT_VARIABLE}=true in the "
        "environment if the network itself encrypts"
    )


def _is_local(endpoint: str) -> bool:
    if endpoint.startswith(("unix:", "unix-abstract:")):
        return True
    host = re.sub(r"^(?:dns|ipv4|ipv6):(?://[^/]*/)?", "", endpoint).rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ChannelWithMetadata:
    """A channel of `grpc` or `grpc.aio` whose calls carry metadata."""

    def __init__(self, channel: Any, metadata: tuple[tuple[str, str], ...]) -> None:
        self._channel = channel
        self._metadata = metadata

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def unary_unary(self, *method: Any, **others: Any) -> Any:
        return self._with_metadata(self._channel.unary_unary(*method, **others))

    def unary_stream(self, *method: Any, **others: Any) -> Any:
        return self._with_metadata(self._channel.unary_stream(*method, **others))

    def stream_stream(self, *method: Any, **others: Any) -> Any:
        return self._with_metadata(self._channel.stream_stream(*method, **others))

    def _with_metadata(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Returns what makes a call with this metadata, and with that of the call itself."""

        def call(*arguments: Any, metadata: tuple[tuple[str, str], ...] | None = None, **others: Any) -> Any:
            own = self._metadata
            return make(*arguments, metadata=own if metadata is None else (*own, *metadata), **others)

        return call


class FileWatch:
    """Detects files that have changed since it was created; cheap enough to ask before each call."""

    def __init__(self, *watched: Tls | Token) -> None:
        self._watched = watched
        self._state = self._states()
        self._check_at = time.monotonic() + _CHECK_SECONDS

    def look_now(self) -> None:
        """Makes the next question look at the files, however soon it comes."""
        self._check_at = 0.0

    def has_changed(self) -> bool:
        now = time.monotonic()
        if now < self._check_at:
            return False
        self._check_at = now + _CHECK_SECONDS
        return self._states() != self._state

    def _states(self) -> list[object]:
        return [one.state() for one in self._watched]


def renewed(connect: Callable[[], T], former: T | None) -> T:
    """Returns a new connection, or the former one where files cannot be used: not all of them may be replaced yet."""
    try:
        return connect()
    except BadArgumentError:
        if former is None:
            raise
        return former


def _system_file() -> str:
    configured = ssl.get_default_verify_paths().cafile
    for path in (configured, *_SYSTEM_FILES):
        if path and Path(path).is_file():
            return path
    raise BadArgumentError("tls: ca is system, whose authorities are not found; name their file by SSL_CERT_FILE")


def _read(file: File | None) -> bytes | None:
    try:
        return None if file is None else Path(file).read_bytes()
    except OSError as error:
        raise BadArgumentError(f"tls: {file} cannot be read: {error.strerror}") from None


def _read_token(file: File | None) -> str:
    try:
        return "" if file is None else Path(file).read_text("ascii")
    except OSError as error:
        raise BadArgumentError(f"token_file: {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        return ""


def _check_authorities(ca: File) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(ca)
    except OSError:
        # gRPC would write to standard error, and never get a connection.
        raise BadArgumentError(f"tls: {ca} has no certificate in PEM") from None


def _check_pair(certificate: File, private_key: File | None) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, private_key, password=_refuse_password)
    except (OSError, ValueError) as error:
        raise BadArgumentError(
            f"tls: {certificate} and {private_key} are not a certificate and its unencrypted private key: {error}"
        ) from None


def _refuse_password() -> str:
    raise ValueError("the key is protected by a password")


def _state(file: File | None) -> object:
    try:
        found = None if file is None else Path(file).stat()
    except OSError:
        return None
    return found and (found.st_ino, found.st_size, found.st_mtime_ns)
