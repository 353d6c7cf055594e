"""How clients reach a server over TLS."""

import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc

from millrace_client.errors import BadArgumentError

_CHECK_SECONDS = 1.0
"""How late a changed file is noticed."""

File = str | os.PathLike[str]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """A connection over TLS: whose servers are trusted, and the client's own certificate.

    Files are in PEM. They are read with the first call, and again when they change: calls from then on use a connection
    with the new ones, while streams that are open go on.

    Raises:
        BadArgumentError: There is a certificate without its key, or the other way round.
    """

    ca: File | None = None
    """File of the certificates that servers' certificates must be signed with. None: those that come with gRPC."""

    certificate: File | None = None
    """File of the client's certificate, followed by the intermediate ones. None: the client has none."""

    private_key: File | None = None
    """File of the certificate's key, without a password."""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.private_key is None):
            missing = "private_key" if self.private_key is None else "certificate"
            raise BadArgumentError(f"tls: {missing} is missing; certificate and private_key come together")

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files; raises BadArgumentError if one of them cannot be read, or if they do not fit together."""
        before = self.state()
        contents = [_read(file) for file in (self.ca, self.private_key, self.certificate)]
        if self.certificate is not None:
            _check_pair(self.certificate, self.private_key)
        # gRPC would accept files of which one was replaced meanwhile, and never get a connection.
        return grpc.ssl_channel_credentials(*contents) if self.state() == before else self.credentials()

    def state(self) -> tuple[object, ...]:
        """Returns what differs once a file was changed or replaced."""
        return tuple(map(_state, (self.ca, self.private_key, self.certificate)))


class TlsWatch:
    """Tells whether the files have changed since it was created; cheap enough to ask before each call."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._state = tls.state()
        self._check_at = time.monotonic() + _CHECK_SECONDS

    def has_changed(self) -> bool:
        now = time.monotonic()
        if now < self._check_at:
            return False
        self._check_at = now + _CHECK_SECONDS
        return self._tls.state() != self._state


def renewed(connect: Callable[[], T], former: T | None) -> T:
    """Returns a new connection, or the former one where files cannot be used: not all of them may be replaced yet."""
    try:
        return connect()
    except BadArgumentError:
        if former is None:
            raise
        return former


def _read(file: File | None) -> bytes | None:
    try:
        return None if file is None else Path(file).read_bytes()
    except OSError as error:
        raise BadArgumentError(f"tls: {file} cannot be read: {error.strerror}") from None


def _check_pair(certificate: File, private_key: File | None) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, private_key, password=_refuse_password)
    except (OSError, ValueError) as error:
        raise BadArgumentError(
            f"tls: {certificate} and {private_key} are not a certificate and its key without a password: {error}"
        ) from None


def _refuse_password() -> str:
    raise ValueError("the key is protected by a password")


def _state(file: File | None) -> object:
    try:
        found = None if file is None else Path(file).stat()
    except OSError:
        return None
    return found and (found.st_ino, found.st_size, found.st_mtime_ns)
