"""The tables `[auth]`, `[roles.NAME]` and `[identities."PATTERN"]` of the configuration."""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, field_validator

from millrace.setting_problems import Problem, shown_path, shown_value
from millrace.setting_units import ByteSize
from millrace_server.access.jwt import JwtSettings
from millrace_server.access.permissions import Grant, ambiguous_patterns, check_pattern
from millrace_server.access.tokens import read_tokens
from millrace_server.files import NamedPath


def _check_grant(text: str) -> str:
    try:
        Grant.parse(text)
    except ValueError as error:
        raise ValueError(f"is {shown_value(text)}; {error}") from None
    return text


def _check_identity_pattern(pattern: str) -> str:
    try:
        check_pattern(pattern)
    except ValueError as error:
        raise ValueError(f"is not the name of an identity: {error}") from None
    return pattern


IdentityPattern = Annotated[str, AfterValidator(_check_identity_pattern)]


class AuthSettings(BaseModel, frozen=True, extra="forbid"):
    """How callers authenticate. With this table, even if it is empty, every call needs a role that allows it."""

    tokens_file: NamedPath | None = None
    """File with lines `NAME:sha256:HEX`, written by `millraced token make NAME`; it is reread when it changes."""

    jwt: JwtSettings | None = None
    """The table `[auth.jwt]`: accepts JSON Web Tokens of another issuer, such as those of Kubernetes service
    accounts."""

    audit_file: NamedPath | None = None
    """File to which the log's `audit` entries are also appended; after it is renamed, a new one is created."""

    @field_validator("audit_file")
    @classmethod
    def _check_audit(cls, path: Path | None) -> Path | None:
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"is {shown_value(str(path))}; its directory does not exist")
        if path is not None and path.is_dir():
            raise ValueError(f"is {shown_value(str(path))}, which is a directory; it must be a file")
        return path

    @field_validator("tokens_file")
    @classmethod
    def _check_tokens(cls, path: Path | None) -> Path | None:
        if path is not None:
            read_tokens(path)
        return path


class RoleSettings(BaseModel, frozen=True, extra="forbid"):
    """What the identities with a role may do."""

    allow: list[Annotated[str, AfterValidator(_check_grant)]]
    """`PERMISSION:PATTERN`: `append`, `take`, `read`, `peek`, `describe`, `operate`, `admin` or `*`, and the channels.

    In patterns, `*` matches any text, including dots, and `?` one character.
    """


class QuotaSettings(BaseModel, frozen=True, extra="forbid"):
    """Limits of each identity, across all its connections."""

    bytes_per_second: ByteSize | None = Field(None, ge=1)
    """Bytes of its requests. Above it, calls are refused and appends in a stream wait.

    One second's bytes may arrive at once; a larger message delays the next one in proportion to its size.
    """

    read_bytes_per_second: ByteSize | None = Field(None, ge=1)
    """Bytes of the responses to it. Above it, streams wait, and calls that take or list are refused."""

    open_transactions: int | None = Field(None, ge=1)
    """Maximum number of its open transactions."""


class IdentitySettings(BaseModel, frozen=True, extra="forbid"):
    """What identities may do. An identity's exact name takes precedence, then the longest matching pattern."""

    roles: list[str] = Field(min_length=1)
    """Names of roles; a call is allowed if one of them allows it."""

    quota: QuotaSettings | None = None
    """Limits of each identity that matches the pattern, across all its connections; by default there are none."""


def access_problems(tables: Mapping[str, Any]) -> list[Problem]:
    """Returns a problem for each unknown role, and for each other inconsistency of the tables."""
    return list(_problems(tables))


def _problems(tables: Mapping[str, Any]) -> Iterator[Problem]:
    identities, roles = (_table(tables.get(key)) for key in ("identities", "roles"))
    for pattern, table in identities.items():
        named = _table(table).get("roles")
        for index, role in enumerate(named if isinstance(named, list) else []):
            if isinstance(role, str) and role not in roles:
                yield Problem(("identities", pattern, "roles", index), _unknown(role, list(roles)))
    for one, other in ambiguous_patterns(identities):
        yield Problem(
            ("identities", other),
            f"has the same length as {shown_value(one)} and matches the same names; one of them must be longer, as the "
            "longest pattern applies",
        )
    if "auth" not in tables:
        for key in ("roles", "identities"):
            if key in tables:
                yield Problem((key,), "has no effect without a table auth; add one")
    elif isinstance(auth := tables["auth"], dict) and not ({*auth} & _PROOFS or _has_certificates(tables)):
        yield Problem(
            ("auth",),
            "no caller could authenticate; there must be a tokens_file or a table jwt, or "
            'server.tls.client_certificate must be "required"',
        )


_PROOFS = {"tokens_file", "jwt"}


def _unknown(role: str, roles: list[str]) -> str:
    if close := difflib.get_close_matches(role, roles, n=1):
        return f"is {shown_value(role)}; it must be a role; did you mean {shown_value(close[0])}?"
    return f"is {shown_value(role)}; it must be a role, so there must be a table {shown_path(('roles', role))}"


def _has_certificates(tables: Mapping[str, Any]) -> bool:
    return bool(_table(_table(tables.get("server")).get("tls")).get("client_certificate") == "required")


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
