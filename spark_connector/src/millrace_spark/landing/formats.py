"""The formats of lines: the table `[parse]`, and the regular expressions behind it."""

import re
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, Field, field_validator, model_validator

_QUOTED = r'"(?P<{name}>[^"\\]*+(?:\\.[^"\\]*+)*+)"'

ACCESS_LOG = (
    r"(?P<client>\S++) \S++ (?P<user>\S++) \[(?P<time>[^\]]++)\] "
    + _QUOTED.format(name="request")
    + r" (?P<status>\d{3}) (?P<bytes>\d++|-)(?: "
    + _QUOTED.format(name="referrer")
    + " "
    + _QUOTED.format(name="agent")
    + r")?\s*+"
)
"""Common and combined log format, as Apache and nginx write them."""

SYSLOG_5424 = (
    r"<(?P<priority>\d{1,3})>1 (?P<time>\S++) (?P<host>\S++) (?P<app>\S++) (?P<process_id>\S++) (?P<message_id>\S++) "
    r'(?P<structured_data>-|(?:\[(?:[^"\]\\]|"(?:[^"\\]|\\.)*+")*+\])++)(?: (?:\uFEFF)?(?P<message>(?s:.*)))?'
)
"""RFC 5424; what is not there is a dash."""

SYSLOG_3164 = (
    r"(?:<(?P<priority>\d{1,3})>)?(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?P<host>\S++) "
    r"(?:(?P<app>[^\s\[\]:]++)(?:\[(?P<process_id>[^\]\s]*+)\])?: ?)?(?P<message>(?s:.*))"
)
"""RFC 3164, as daemons write it and as it lies in /var/log, where the priority is left out."""

_SIMPLE_GROUP = re.compile(r"\(\?P?<(?P<name>[A-Za-z_][A-Za-z0-9_]*)>")
_BACK_REFERENCE = re.compile(r"\(\?P=(?P<name>\w+)\)")


class PatternError(ValueError):
    """Returned when an expression is none; the message says what is wrong."""


class NumberedPattern(NamedTuple):
    """An expression whose groups are told apart by their numbers.

    Java's names of groups have letters and digits only, and a name may stand for one match only where each is asked
    for by itself.
    """

    text: str
    names: dict[str, int]
    """For each named group its number."""
    group_count: int


def numbered_pattern(pattern: str) -> NumberedPattern:
    """Takes the names out of an expression; `(?<name>...)` is one too, as in Java.

    Raises:
        PatternError: It is no expression that Python reads.
    """
    named, numbered = [], []
    position = 0
    is_in_set = False
    while position < len(pattern):
        found = None if is_in_set else _SIMPLE_GROUP.match(pattern, position)
        if found:
            named.append(f"(?P<{found['name']}>")
            numbered.append("(")
            position = found.end()
            continue
        length = 2 if pattern[position] == "\\" else 1
        part = pattern[position : position + length]
        is_in_set = part == "[" or (is_in_set and part != "]")
        named.append(part)
        numbered.append(part)
        position += length
    try:
        compiled = re.compile("".join(named))
    except re.error as error:
        raise PatternError(f"is no regular expression: {error}") from None
    names = dict(compiled.groupindex)
    text = _BACK_REFERENCE.sub(lambda found: rf"\{names[found['name']]}", "".join(numbered))
    return NumberedPattern(text, names, compiled.groups)


def python_pattern(pattern: str) -> re.Pattern[str]:
    """The expression as Python's engine matches it; see `re.Pattern.fullmatch`."""
    return re.compile(pattern)


def java_pattern(numbered: NumberedPattern) -> str:
    r"""The expression as Java's engine matches it against a whole line.

    In Java `.` and `$` know more ends of lines than `\n` unless told otherwise.
    """
    return rf"(?d)\A(?:{numbered.text})\z"


TYPES = ("string", "int", "bigint", "double", "boolean", "date", "timestamp")
"""What a group of a regular expression may be."""

ACCESS_LOG_COLUMNS = tuple(
    "client user time method path protocol request status bytes referrer agent".split(),  # noqa: SIM905 - shorter
)
"""What a line of an access log becomes."""

SYSLOG_COLUMNS = tuple(
    "time host app process_id message_id structured_data facility severity message".split(),  # noqa: SIM905 - shorter
)
"""What a message of syslog becomes."""

_DECIMAL = re.compile(r"decimal\([1-9][0-9]?,[0-9]{1,2}\)")


class _Format(BaseModel, frozen=True, extra="forbid"):
    invalid_utf8: Literal["bad", "replace"] = "bad"
    """What becomes of a line that is not UTF-8: it is a bad line, or what cannot be read is replaced by U+FFFD."""

    line_bytes_max: int = Field(65_536, ge=1, le=1 << 30)
    """A longer line is a bad line; it bounds what a regular expression may cost."""


class TextFormat(_Format):
    """Lines as they are: the column `line`."""

    type: Literal["text"]


class JsonFormat(_Format):
    """Objects of JSON, one a line, with the columns of a schema. What the schema does not name is left out."""

    type: Literal["json"]

    columns: str | None = None
    """The schema in Spark's DDL, such as `id bigint, time timestamp, tags array<string>`."""

    columns_file: str | None = None
    """A file that holds the schema, in DDL or as `df.schema.json()` writes it."""

    required: list[str] = Field(default_factory=list)
    """Columns that no line may leave out."""

    time_format: str | None = None
    """The pattern of timestamps in it, in Spark's letters; ISO 8601 without it."""

    @model_validator(mode="after")
    def _check_one_schema(self) -> Self:
        if (self.columns is None) == (self.columns_file is None):
            raise ValueError("must have columns, or columns_file, and not both")
        return self


class RegexFormat(_Format):
    """Lines that a regular expression matches as a whole; its named groups become columns."""

    type: Literal["regex"]

    pattern: str
    """The expression, in the syntax that Python and Java share, with groups `(?P<name>...)`."""

    types: dict[str, str] = Field(default_factory=dict)
    """The type of a group that is no string: int, bigint, double, boolean, decimal(P,S), date or timestamp."""

    time_format: str = "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]"
    """The pattern of timestamps, in Spark's letters."""

    date_format: str = "yyyy-MM-dd"
    """The pattern of dates, in Spark's letters."""

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        try:
            names = numbered_pattern(pattern).names
        except PatternError as error:
            raise ValueError(str(error)) from None
        if not names:
            raise ValueError("has no named group; write (?P<name>...) around what is to be a column")
        return pattern

    @field_validator("types")
    @classmethod
    def _check_types(cls, types: dict[str, str]) -> dict[str, str]:
        for name, kind in types.items():
            if kind not in TYPES and not _DECIMAL.fullmatch(kind):
                raise ValueError(f"{name} is {kind!r}; it must be {', '.join(TYPES)} or decimal(P,S)")
        return types

    @model_validator(mode="after")
    def _check_types_have_groups(self) -> Self:
        names = numbered_pattern(self.pattern).names
        if unknown := sorted(set(self.types) - set(names)):
            raise ValueError(f"types: {unknown[0]} is no group of the pattern; its groups are {', '.join(names)}")
        return self


class AccessLogFormat(_Format):
    """Lines of a web server's access log, in the common or the combined format."""

    type: Literal["access_log"]


class SyslogFormat(_Format):
    """Messages of syslog, as RFC 5424 or RFC 3164 have them, with or without the priority in front."""

    type: Literal["syslog"]


LineFormat = Annotated[
    TextFormat | JsonFormat | RegexFormat | AccessLogFormat | SyslogFormat, Field(discriminator="type")
]
"""One of them, told apart by `type`."""


def columns_of(line_format: LineFormat) -> tuple[str, ...] | None:
    """The columns that lines of a format become; None for JSON, whose schema only Spark reads."""
    match line_format:
        case TextFormat():
            return ("line",)
        case RegexFormat():
            return tuple(numbered_pattern(line_format.pattern).names)
        case AccessLogFormat():
            return ACCESS_LOG_COLUMNS
        case SyslogFormat():
            return SYSLOG_COLUMNS
        case _:
            return None
