"""Parses options: case-insensitive names, and values of each type."""

import difflib
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from millrace_spark.errors import OptionError
from millrace_spark.shards import sharing_servers

if TYPE_CHECKING:
    from millrace_client import Client, Tls

Value = TypeVar("Value")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(ms|s|m|h|d)?")
_SECONDS_OF_UNIT = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_ADVICE = {
    "path": "does not name channels; call load() and save() without a path, and name the channels by options",
    "provider": "tables in Spark's catalog are not supported; use CREATE TEMPORARY VIEW ... USING millrace",
}
"""Advice about options that Spark sets for calls that channels do not support."""

LEASE_SECONDS_MAX = 3_600.0
"""The longest lease that servers grant."""

RETRY_SECONDS_MAX = 86_400.0
"""The longest `retrySeconds`."""

TLS_OPTIONS: Mapping[str, str] = {
    "tls.ca.file": (
        "TLS: file of the authorities that sign the servers' certificates, in PEM, or system for the operating "
        "system's; default with TLS: those that come with gRPC"
    ),
    "tls.certificate.file": "TLS: file of the client's certificate, followed by the intermediate ones, in PEM",
    "tls.key.file": "TLS: file of its private key, without a password, in PEM",
}
SECURITY_OPTIONS: Mapping[str, str] = {
    **TLS_OPTIONS,
    "token.file": "file of the job's token; it is reread when it changes",
    "token": (
        "the token itself; Spark redacts it in plans and logs but sends it to executors in clear text, so prefer "
        "token.file"
    ),
}
"""The options of TLS and tokens, for reading and writing, with their descriptions."""


@dataclass(frozen=True, kw_only=True)
class Security:
    """How to connect to servers, and the proof of who calls; paths are those of files on the driver and executors."""

    tls: "Tls | None" = None
    token_file: str | None = None
    token: str | None = field(default=None, repr=False)
    sharing_servers: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The servers of each endpoint that stands for several."""

    def connect(self, endpoint: str, **settings: Any) -> "Client":
        """Creates a client; see `millrace_client.connect`."""
        import millrace_client

        servers = self.sharing_servers.get(endpoint, endpoint)
        return millrace_client.connect(servers, tls=self.tls, token=self.token, token_file=self.token_file, **settings)

    @property
    def options(self) -> dict[str, str]:
        """The options that give it."""
        tls = self.tls
        files = (None, None, None) if tls is None else (tls.ca, tls.certificate, tls.private_key)
        given = zip(SECURITY_OPTIONS, (*files, self.token_file, self.token), strict=True)
        found = {name: str(value) for name, value in given if value is not None}
        if self.sharing_servers:
            found["endpoints"] = ",".join(servers.replace(",", "/") for servers in self.sharing_servers.values())
        return found


PLAINTEXT = Security()
"""Plain text, without a proof."""


class OptionValues:
    """The options of a read or write, by their documented names."""

    def __init__(self, options: Mapping[str, str], known: Collection[str]) -> None:
        self._values = {known_name(name, known): value.strip() for name, value in options.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    @property
    def names(self) -> list[str]:
        """The names of the options that are set, sorted."""
        return sorted(self._values)

    def text(self, name: str) -> str:
        """Returns the text of an option; empty if it is not set."""
        return self._values.get(name, "")

    def value(self, name: str, parse: Callable[[str], Value], default: Value) -> Value:
        """Returns the value of an option; `parse` raises a ValueError that describes the allowed values."""
        if name not in self._values:
            return default
        try:
            return parse(self._values[name])
        except ValueError as error:
            raise OptionError(f"option {name}: is {self._values[name]!r}; it must be {error}") from None


def known_name(name: str, known: Collection[str]) -> str:
    """Returns the documented name of an option, or raises an OptionError with a similar name."""
    by_lower = {option.lower(): option for option in known}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    if name.lower() in _ADVICE:
        raise OptionError(f"option {name}: {_ADVICE[name.lower()]}")
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    hint = f"did you mean {by_lower[near[0]]}?" if near else f"the options are {', '.join(known)}"
    raise OptionError(f"option {name}: is unknown; {hint}")


def security_of(values: OptionValues) -> Security:
    """Returns how to connect; with paths of files, which tasks read."""
    tls = _tls_of(values)
    token_file, token = values.value("token.file", _parse_path, None), values.text("token") or None
    if "token" in values and (token is None or token_file is not None):
        raise OptionError("option token: is empty, or there is token.file too; set one of them")
    return Security(
        tls=tls, token_file=token_file, token=token, sharing_servers=sharing_servers(values.text("endpoints"))
    )


def _tls_of(values: OptionValues) -> "Tls | None":
    paths = [values.value(name, _parse_path, None) for name in TLS_OPTIONS]
    if not any(paths):
        return None
    # Imports gRPC.
    from millrace_client import BadArgumentError, Tls

    ca, certificate, private_key = paths
    try:
        return Tls(ca=ca, certificate=certificate, private_key=private_key)
    except BadArgumentError:
        given, missing = sorted(("tls.certificate.file", "tls.key.file"), key=values.text, reverse=True)
        raise OptionError(f"option {given}: needs {missing}; set both, or neither") from None


def _parse_path(text: str) -> str | None:
    if not text:
        # Most likely a variable that is not set; plain text would come unnoticed.
        raise ValueError("the path of a file")
    return text


def parse_count(text: str) -> int:
    """Parses a whole number of at least 1."""
    if not re.fullmatch(r"[0-9]{1,18}", text) or not int(text):
        raise ValueError("a whole number from 1 on")
    return int(text)


def parse_seconds(text: str) -> float:
    """Parses a duration above 0: seconds, or with a unit such as `500ms`, `90s`, `15m`, `2h`."""
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) * _SECONDS_OF_UNIT[match[2]] if match else math.nan
    if not 0 < seconds < math.inf:
        raise ValueError("a number of seconds above 0, or a time such as 500ms, 90s, 15m, 2h")
    return seconds


def parse_lease(text: str) -> float:
    """Parses a lease in the same form."""
    seconds = parse_seconds(text)
    if seconds > LEASE_SECONDS_MAX:
        raise ValueError(f"at most {LEASE_SECONDS_MAX:,.0f} seconds, the longest lease that servers grant")
    return seconds


def parse_retry(text: str) -> float:
    """Parses `retrySeconds` in the same form."""
    seconds = parse_seconds(text)
    if seconds > RETRY_SECONDS_MAX:
        raise ValueError(f"at most {RETRY_SECONDS_MAX:,.0f} seconds, which is a day")
    return seconds


def parse_timestamp(text: str) -> datetime:
    """Parses a time in ISO 8601 with a zone, or milliseconds since 1970."""
    try:
        is_number = text.isascii() and text.isdigit()
        time = _EPOCH + timedelta(milliseconds=int(text)) if is_number else datetime.fromisoformat(text)
        # In other zones, the first and the last day of the calendar have times outside of it.
        in_utc = None if time.utcoffset() is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        in_utc = None
    if in_utc is None:
        raise ValueError("a time in ISO 8601 with a zone, such as 2026-01-31T08:00:00Z, or milliseconds since 1970")
    return in_utc


def parse_flag(text: str) -> bool:
    """Parses true or false, in any case."""
    if text.lower() not in {"true", "false"}:
        raise ValueError("true or false")
    return text.lower() == "true"


def parse_choice(*choices: str) -> Callable[[str], str]:
    """Returns a parser of one of these words, in any case."""

    def parse(text: str) -> str:
        for choice in choices:
            if text.lower() == choice.lower():
                return choice
        raise ValueError(" or ".join(choices))

    return parse


def parse_json_object(text: str) -> dict[str, object]:
    """Parses a JSON object."""
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError("a JSON object")  # noqa: TRY004 - the text is wrong, not its type
    return parsed
