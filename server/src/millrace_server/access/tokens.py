"""Bearer tokens, of which the server stores only hashes, in lines `NAME:sha256:HEX` of the tokens file."""

import errno
import hashlib
import hmac
import io
import json
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import structlog

from millrace_server.files import FileWatch, read_named

FILE_BYTES_MAX = 16 << 20
NAME_LENGTH_MAX = 255

TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,8192}")
"""The syntax of a bearer token, according to RFC 6750."""

_TOKEN_BYTES = 32
_KIND = "sha256"
_HASH = re.compile("[0-9a-f]{64}")
_FILE_MODE = 0o600

_log = structlog.stdlib.get_logger(__name__)


def check_identity(name: str) -> None:
    """Raises ValueError if a name is not a valid name of an identity."""
    if not 0 < len(name) <= NAME_LENGTH_MAX or not name.isprintable() or any(map(str.isspace, name)):
        raise ValueError(f"a name must have 1 to {NAME_LENGTH_MAX} printable characters, and no spaces")


def hash_of(token: str) -> str:
    """Returns the stored form of a token: the SHA-256 of its text, in hexadecimal digits."""
    return hashlib.sha256(token.encode()).hexdigest()


class TokensFile:
    """The current tokens. If the file becomes invalid or is removed, the previous tokens stay in use."""

    reload_message = "tokens reloaded"
    """Logged once changed tokens are in use."""

    def __init__(self, path: Path) -> None:
        """Reads the file; raises ValueError, with the file and what is wrong, if it is invalid."""
        self.path = path
        self._watch = FileWatch(path)
        # The time of a dictionary lookup depends on the key; a keyed hash prevents callers from using that.
        self._key = secrets.token_bytes()
        self._names = self._indexed(read_tokens(path))

    def refresh(self) -> bool:
        """Reads the file again if it has changed; returns whether its tokens are now in use. Blocks on the disk."""
        if not self._watch.has_changed():
            return False
        try:
            tokens = read_tokens(self.path)
        except ValueError as error:
            _log.error("changed tokens are invalid; the previous ones stay in use", why=f"auth.tokens_file: {error}")
            return False
        self._names = self._indexed(tokens)
        return True

    def name_of(self, token_hash: str) -> str | None:
        """Returns the name of the token with this hash, in a time that reveals nothing about similar hashes."""
        found = self._names.get(self._keyed(token_hash))
        return found[1] if found is not None and hmac.compare_digest(found[0], token_hash) else None

    def has_name(self, name: str) -> bool:
        return any(known == name for _, known in self._names.values())

    def _indexed(self, tokens: dict[str, str]) -> dict[bytes, tuple[str, str]]:
        return {self._keyed(token_hash): (token_hash, name) for token_hash, name in tokens.items()}

    def _keyed(self, token_hash: str) -> bytes:
        return hashlib.blake2b(token_hash.encode(), key=self._key).digest()


def read_tokens(path: Path) -> dict[str, str]:
    """Returns names by the hashes of their tokens; raises ValueError, with the file and what is wrong.

    A world-readable file is refused: names are confidential, and hashes allow offline guessing.
    """
    shown = json.dumps(str(path))
    content = read_named(path, FILE_BYTES_MAX, is_secret=True)
    try:
        return dict(_parsed(shown, content.decode()))
    except UnicodeDecodeError:
        raise ValueError(f"is {shown}, which is not UTF-8") from None


def _parsed(shown: str, text: str) -> Iterator[tuple[str, str]]:
    owners: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not (entry := line.strip()) or entry.startswith("#"):
            continue
        # Names such as spiffe://example/web contain colons.
        name, kind, token_hash = (["", "", *entry.rsplit(":", 2)])[-3:]
        try:
            check_identity(name)
        except ValueError as error:
            raise ValueError(f"is {shown}, whose line {number} is not NAME:sha256:HEX: {error}") from None
        if kind != _KIND or not _HASH.fullmatch(token_hash):
            raise ValueError(
                f"is {shown}, whose line {number} is not NAME:sha256:HEX, with 64 hexadecimal digits; make it with: "
                f"millraced token make NAME"
            )
        if owners.setdefault(token_hash, name) != name:
            raise ValueError(f"is {shown}, whose line {number} gives the token of {owners[token_hash]} to {name}")
        yield token_hash, name


def make_token(path: Path, name: str) -> str:
    """Adds a new token to a tokens file, which it creates if there is none, and returns the token.

    Raises ValueError if the name or the file is not valid, and OSError if the file cannot be written.
    """
    check_identity(name)
    if path.exists():
        read_tokens(path)
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, _FILE_MODE)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        before = b"\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""
        line = before + f"{name}:{_KIND}:{hash_of(token)}\n".encode()
        try:
            _write_whole(file, line)
            os.fsync(descriptor)
        except OSError:
            # With a part of a line, a server would not start.
            file.truncate(size)
            raise
    return token


def _write_whole(file: io.FileIO, line: bytes) -> None:
    # In one write, so that a server never reads a part of the line.
    if file.write(line) < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
