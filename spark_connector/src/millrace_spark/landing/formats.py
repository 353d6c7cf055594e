"""The formats of lines: the table `[parse]`, and the regular expressions behind it."""

import re
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from millrace.setting_units import ByteSize

# Repeated groups are possessive (`*+`), since Java's engine recurses while it can backtrack, and a long line would
# overflow its stack.
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
"""The common and combined log formats of Apache and nginx."""

SYSLOG_5424 = (
    r"<(?P<priority>\d{1,3})>1 (?P<time>\S++) (?P<host>\S++) (?P<app>\S++) (?P<process_id>\S++) (?P<message_id>\S++) "
    r'(?P<structured_data>-|(?:\[(?:[^"\]\\]|"(?:[^"\\]|\\.)*+")*+\])++)(?: (?:\uFEFF)?(?P<message>(?s:.*)))?'
)
"""RFC 5424; missing fields are a dash."""

SYSLOG_3164 = (
    r"(?:<(?P<priority>\d{1,3})>)?(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?P<host>\S++) "
    r"(?:(?P<app>[^\s\[\]:]++)(?:\[(?P<process_id>[^\]\s]*+)\])?: ?)?(?P<message>(?s:.*))"
)
"""RFC 3164, as daemons send it, and as in /var/log, without the priority."""

_SIMPLE_GROUP = re.compile(r"\(\?P?<(?P<name>[A-Za-z_][A-Za-z0-9_]*)>")
_BACK_REFERENCE = re.compile(r"\(\?P=(?P<name>\w+)\)")


class PatternError(ValueError):
    """Raised for an invalid regular expression; the message says what is wrong."""


class NumberedPattern(NamedTuple):
    """A regular expression with numbered groups in place of named ones.

    Java's group names have letters and digits only, and Spark reads all groups of a match by number.
    """

    text: str
    names: dict[str, int]
    """The number of each named group."""
    group_count: int


def numbered_pattern(pattern: str) -> NumberedPattern:
    """Replaces the named groups of an expression, `(?P<name>...)`, or `(?<name>...)` as in Java, by numbered ones."""
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
        raise PatternError(f"is not a valid regular expression: {error}") from None
    names = dict(compiled.groupindex)
    text = _BACK_REFERENCE.sub(lambda found: rf"\{names[found['name']]}", "".join(numbered))
    return NumberedPattern(text, names, compiled.groups)


def java_pattern(numbered: NumberedPattern) -> str:
    r"""Returns an expression that Java matches against a whole line.

    By default, `.` and `$` in Java recognize more line terminators than `\n`.
    """
    return rf"(?d)\A(?:{numbered.text})\z"


TYPES = ("string", "int", "bigint", "double", "boolean", "date", "timestamp")
"""The types of the groups of a regular expression."""

ACCESS_LOG_COLUMNS = tuple(
    "client user time method path protocol request status bytes referrer agent".split(),  # noqa: SIM905 - shorter
)
"""The columns of an access log."""

SYSLOG_COLUMNS = tuple(
    "time host app process_id message_id structured_data facility severity message".split(),  # noqa: SIM905 - shorter
)
"""The columns of a syslog message."""

_DECIMAL = re.compile(r"decimal\([1-9][0-9]?,[0-9]{1,2}\)")


class _Format(BaseModel, frozen=True, extra="forbid"):
    invalid_utf8: Literal["bad", "replace"] = "bad"
    """How to treat a line that is not UTF-8: as a bad line, or with invalid bytes replaced by U+FFFD."""

    line_bytes_max: ByteSize = Field(65_536, ge=1, le=1 << 30)
    """The longest line; a longer one is a bad line. This bounds the cost of a regular expression."""


class TextFormat(_Format):
    """Lines as text: the column `line`."""

    type: Literal["text"]


class JsonFormat(_Format):
    """JSON objects, one per line, with the columns of a schema. Other fields are ignored."""

    type: Literal["json"]

    columns: str | None = None
    """The schema as Spark DDL, such as `id bigint, time timestamp, tags array<string>`."""

    columns_file: str | None = None
    """A file with the schema, as DDL or as `df.schema.json()` writes it."""

    required: list[str] = Field(default_factory=list)
    """Columns that every line must have."""

    time_format: str | None = None
    """The pattern of timestamps, in Spark's pattern letters; default: ISO 8601."""

    @model_validator(mode="after")
    def _check_one_schema(self) -> Self:
        if (self.columns is None) == (self.columns_file is None):
            raise ValueError("must have columns, or columns_file, and not both")
        return self


class RegexFormat(_Format):
    """Lines that match a regular expression as a whole; its named groups are the columns."""

    type: Literal["regex"]

    pattern: str
    """The regular expression, in the syntax common to Python and Java, with groups `(?P<name>...)`."""

    types: dict[str, str] = Field(default_factory=dict)
    """The types of groups that are not strings: int, bigint, double, boolean, decimal(P,S), date or timestamp."""

    time_format: str = "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]"
    """The pattern of timestamps, in Spark's pattern letters."""

    date_format: str = "yyyy-MM-dd"
    """The pattern of dates, in Spark's pattern letters."""

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        try:
            names = numbered_pattern(pattern).names
        except PatternError as error:
            raise ValueError(str(error)) from None
        if not names:
            raise ValueError("has no named group; write (?P<name>...) around each column")
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
            raise ValueError(f"types: {unknown[0]} is not a group of the pattern; its groups are {', '.join(names)}")
        return self


class AccessLogFormat(_Format):
    """Lines of a web server's access log, in the common or combined format."""

    type: Literal["access_log"]


class SyslogFormat(_Format):
    """Syslog messages in the format of RFC 5424 or RFC 3164, with or without the priority."""

    type: Literal["syslog"]


LineFormat = Annotated[
    TextFormat | JsonFormat | RegexFormat | AccessLogFormat | SyslogFormat, Field(discriminator="type")
]
"""A format; the field `type` is the discriminator."""


def columns_of(line_format: LineFormat) -> tuple[str, ...] | None:
    """Returns the columns of a format; None for JSON, whose schema only Spark parses."""
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
