"""The settings of a connection to the engine: over TLS, and who the server says it is. Files are in PEM."""

import json
import os
import ssl
from itertools import pairwise
from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field, SecretStr, ValidationInfo, field_validator, model_validator

from millrace_server.files import NamedPath, read_named
from millrace_server.network.pem_files import read_certificates, read_private_key
from millrace_server.replication.nkeys import Nkey

_FILE_BYTES_MAX = 64 << 10
_TOKENS = ("credentials_file", "nkey_file", "password_file", "token_file")


class EngineTls(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """How the server connects to the engine over TLS. The files are reread for each connection."""

    ca: NamedPath | None = None
    """File of the CA certificates, in PEM, for verifying the certificates of the engine's servers; by default the
    operating system's."""

    certificate: NamedPath | None = None
    """File of this server's certificate, followed by the intermediate ones, if the engine requires one."""

    private_key: NamedPath | None = Field(None, validate_default=True)
    """File of its key, without a password. It must not be world-readable."""

    @field_validator("ca", "certificate")
    @classmethod
    def _check_certificates(cls, path: Path | None) -> Path | None:
        if path is not None:
            read_certificates(path)
        return path

    @field_validator("private_key")
    @classmethod
    def _check_pair(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if "certificate" not in info.data:
            return path
        certificate = info.data["certificate"]
        if (path is None) != (certificate is None):
            raise ValueError("certificate and private_key must be given together; one of them is missing")
        if path is not None:
            read_private_key(path, read_certificates(certificate)[1][0])
        return path

    def context(self) -> ssl.SSLContext:
        """Returns what connections are made with; raises ValueError if a file cannot be used any more."""
        context = ssl.create_default_context(cafile=self.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.private_key)
            except OSError as error:
                raise ValueError(f"{self.certificate} and {self.private_key} do not match: {error}") from None
        return context


class EngineAccess(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """How the server connects to the engine, and proves who it is: by one of these files, or by none."""

    tls: EngineTls | None = None
    """The table `tls`: how to connect over TLS. With it, engine servers without TLS are refused."""

    credentials_file: NamedPath | None = None
    """File of a user's JWT and its key, as `nsc` writes it. The key is never sent."""

    nkey_file: NamedPath | None = None
    """File of a user's NKEY seed, which begins with `SU`. It is never sent."""

    user: str | None = Field(None, min_length=1)
    """The name of a user with a password."""

    password_file: NamedPath | None = None
    """File of that user's password, in one line."""

    token_file: NamedPath | None = None
    """File of a token, in one line. Like passwords, tokens are sent without TLS to loopback addresses only, unless
    `MILLRACE_ALLOW_PLAINTEXT=true` is set in the environment."""

    @field_validator(*_TOKENS)
    @classmethod
    def _check_secret(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if path is None:
            return None
        if info.field_name == "credentials_file":
            Credentials.read(path)
        elif info.field_name == "nkey_file":
            Nkey.parse(read_line(path).get_secret_value(), path)
        else:
            read_line(path)
        return path

    @model_validator(mode="after")
    def _check_is_one(self) -> Self:
        given = [name for name in _TOKENS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"has {' and '.join(given)}; the engine takes one of them")
        if (self.user is None) != (self.password_file is None):
            raise ValueError("has one of user and password_file; they come together")
        return self

    @property
    def sends_secret(self) -> bool:
        """Whether a secret is sent as it is, which needs TLS."""
        is_allowed = os.environ.get("MILLRACE_ALLOW_PLAINTEXT") == "true"
        return self.tls is None and not is_allowed and (self.password_file or self.token_file) is not None

    def proof(self, nonce: str) -> dict[str, str]:
        """Returns what proves to the engine who this server is; the files are read now.

        Args:
            nonce: What the engine wants to be signed.

        Raises:
            ValueError: A file cannot be used any more.
        """
        if self.credentials_file is not None:
            credentials = Credentials.read(self.credentials_file)
            return {"jwt": credentials.jwt.get_secret_value(), "sig": credentials.key.sign(nonce)}
        if self.nkey_file is not None:
            key = Nkey.parse(read_line(self.nkey_file).get_secret_value(), self.nkey_file)
            return {"nkey": key.public, "sig": key.sign(nonce)}
        if self.user is not None and self.password_file is not None:
            return {"user": self.user, "pass": read_line(self.password_file).get_secret_value()}
        if self.token_file is not None:
            return {"auth_token": read_line(self.token_file).get_secret_value()}
        return {}


class Credentials(BaseModel, frozen=True, arbitrary_types_allowed=True):
    """A user's JWT and key."""

    jwt: SecretStr
    key: Nkey

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a file that `nsc` has written; raises ValueError, which shows nothing of the content."""
        lines = _read_text(path).splitlines()
        # Each of the two is the line after one that begins with dashes and BEGIN.
        found = [following.strip() for line, following in pairwise(lines) if "-BEGIN " in line]
        if len(found) != len(("JWT", "seed")):
            raise ValueError(f"is {json.dumps(str(path))}, which does not hold a user's JWT and seed as nsc writes it")
        jwt, seed = found
        return cls(jwt=SecretStr(jwt), key=Nkey.parse(seed, path))


def read_line(path: Path) -> SecretStr:
    """Reads a file that holds a secret in one line; raises ValueError, which shows nothing of the content."""
    text = _read_text(path).strip()
    if not text or len(text.splitlines()) > 1:
        raise ValueError(f"is {json.dumps(str(path))}, which must hold one line")
    return SecretStr(text)


def _read_text(path: Path) -> str:
    try:
        return read_named(path, _FILE_BYTES_MAX, is_secret=True).decode()
    except UnicodeDecodeError:
        raise ValueError(f"is {json.dumps(str(path))}, which is not valid UTF-8") from None
