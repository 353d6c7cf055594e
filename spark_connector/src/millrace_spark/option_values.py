"""How options are read: their names in any case, and values of each kind."""

import difflib
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from millrace_spark.errors import OptionError

Value = TypeVar("Value")

_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\],]+):[0-9]{1,5}")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(ms|s|m|h|d)?")
_SECONDS_OF_UNIT = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_ADVICE = {
    "path": "does not say where channels are; call load() and save() without a path, and name them by options",
    "provider": "tables in Spark's catalog are not supported; use CREATE TEMPORARY VIEW ... USING millrace",
}
"""What is said of options that Spark sets by itself, for a call that does not go with channels."""

_IS_RESERVED = re.compile(r"tls.*|token.*", re.IGNORECASE)


class OptionValues:
    """The options that a user gave, each under its name as it is documented.

    Args:
        options: As they were given; names in any case.
        known: All names there are.

    Raises:
        OptionError: A name is unknown.
    """

    def __init__(self, options: Mapping[str, str], known: Collection[str]) -> None:
        self._values = {known_name(name, known): value.strip() for name, value in options.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    @property
    def names(self) -> list[str]:
        """What was given, sorted."""
        return sorted(self._values)

    def text(self, name: str) -> str:
        """An option's value as it was given; empty where it was not."""
        return self._values.get(name, "")

    def value(self, name: str, parse: Callable[[str], Value], default: Value) -> Value:
        """An option's value.

        Args:
            name: Which.
            parse: Makes the value of the text, or raises a ValueError that says what is allowed.
            default: What holds without the option.
        """
        if name not in self._values:
            return default
        try:
            return parse(self._values[name])
        except ValueError as error:
            raise OptionError(f"option {name}: is {self._values[name]!r}; it must be {error}") from None


def known_name(name: str, known: Collection[str]) -> str:
    """An option's name as it is documented.

    Raises:
        OptionError: There is none of that name; says which is near.
    """
    by_lower = {option.lower(): option for option in known}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    if _IS_RESERVED.fullmatch(name):
        raise OptionError(
            f"option {name}: is reserved for TLS and tokens, which Millrace does not have yet; leave it out and keep "
            "to a network of your own"
        )
    if name.lower() in _ADVICE:
        raise OptionError(f"option {name}: {_ADVICE[name.lower()]}")
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    hint = f"did you mean {by_lower[near[0]]}?" if near else f"the options are {', '.join(known)}"
    raise OptionError(f"option {name}: is unknown; {hint}")


def parse_endpoints(text: str) -> tuple[str, ...]:
    """Servers, with commas between.

    Raises:
        OptionError: One is no `host:port`, comes twice, or there is none.
    """
    endpoints = [endpoint.strip() for endpoint in text.split(",")]
    for endpoint in endpoints:
        if not _ENDPOINT.fullmatch(endpoint):
            raise OptionError(f"option endpoints: {endpoint!r} is no host:port such as 127.0.0.1:7070")
        if endpoints.count(endpoint) > 1:
            raise OptionError(f"option endpoints: {endpoint} comes twice; its events would too")
    return tuple(endpoints)


def parse_count(text: str) -> int:
    """A count of at least 1."""
    if not re.fullmatch(r"[0-9]{1,18}", text) or not int(text):
        raise ValueError("a whole number from 1 on")
    return int(text)


def parse_seconds(text: str) -> float:
    """A duration above 0: seconds, or with a unit such as `500ms`, `90s`, `15m`, `2h`."""
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) * _SECONDS_OF_UNIT[match[2]] if match else math.nan
    if not 0 < seconds < math.inf:
        raise ValueError("a number of seconds above 0, or a time such as 500ms, 90s, 15m, 2h")
    return seconds


def parse_flag(text: str) -> bool:
    """True or false, in any case."""
    if text.lower() not in {"true", "false"}:
        raise ValueError("true or false")
    return text.lower() == "true"


def parse_choice(*choices: str) -> Callable[[str], str]:
    """One of some words, in any case."""

    def parse(text: str) -> str:
        for choice in choices:
            if text.lower() == choice.lower():
                return choice
        raise ValueError(" or ".join(choices))

    return parse


def parse_json_object(text: str) -> dict[str, object]:
    """A JSON object."""
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError("a JSON object")  # noqa: TRY004 - the text is wrong, not its type
    return parsed
