"""How a source cuts what it reads into events: the settings."""

import codecs
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from millrace.setting_problems import shown_value
from millrace_server.agent.interceptors.regexes import RegexPattern

KIB = 1024
MIB = 1024 * KIB

_NO_CHARSETS = frozenset({"idna", "punycode", "raw_unicode_escape", "undefined", "unicode_escape"})
"""Python's names for what writes text in other text, not in bytes."""


class DecodeErrors(StrEnum):
    """What becomes of a line that is not in its charset."""

    FAIL = "fail"
    """The input is not read further."""
    REPLACE = "replace"
    """What cannot be read becomes U+FFFD."""
    IGNORE = "ignore"
    """What cannot be read is left out."""
    KEEP = "keep"
    """The line's bytes go on as they are."""


class LongLines(StrEnum):
    """What becomes of a line that is too long."""

    SPLIT = "split"
    """It becomes several events, none cut inside a character."""
    TRUNCATE = "truncate"
    """Its beginning is the event."""
    DROP = "drop"
    """It is left out."""


class LineRole(StrEnum):
    """What a line that matches a pattern is in its event."""

    BEGINS = "begins"
    """The first line of an event."""
    CONTINUES = "continues"
    """Not the first line of an event."""
    ENDS = "ends"
    """The last line of an event."""


def _check_charset(name: str) -> str:
    try:
        codec = codecs.lookup(name).name
        # Whoever cannot do this, such as "hex", is no charset, though Python calls it a codec.
        if codec not in _NO_CHARSETS and "\n".encode(codec).decode(codec) == "\n":
            return name
    except (LookupError, ValueError):
        pass
    raise ValueError(f'is {shown_value(name)}; it must be the name of a charset, such as "utf-8" or "iso-8859-1"')


# In a configuration file there is only text where a word is wanted.
_AsDecodeErrors = Annotated[DecodeErrors, BeforeValidator(lambda value: _word(DecodeErrors, value))]
_AsLongLines = Annotated[LongLines, BeforeValidator(lambda value: _word(LongLines, value))]
_AsLineRole = Annotated[LineRole, BeforeValidator(lambda value: _word(LineRole, value))]


def _word(words: type[StrEnum], value: object) -> object:
    return words(value) if isinstance(value, str) and value in {*words} else value


class MultilineConfig(BaseModel, frozen=True, extra="forbid"):
    """Which lines are one event together; they are joined by line feeds."""

    pattern: RegexPattern
    """A regular expression, searched for in each line once the line is in UTF-8. A line on which that takes longer than
    a second counts as one that does not match."""

    role: _AsLineRole = LineRole.BEGINS
    """What a line is that matches: "begins", "continues" or "ends" its event."""

    negate: bool = False
    """Lines that do not match are meant."""

    lines_max: int = Field(1_000, ge=1, le=1_000_000)
    """An event ends after so many lines. The pieces of a line that was split count as lines."""

    bytes_max: int = Field(1 * MIB, ge=1, le=64 * MIB)
    """An event ends before a line that would bring its body above this size."""

    timeout_seconds: float = Field(5.0, gt=0, le=86_400, allow_inf_nan=False)
    """An event goes on that has waited so long for a further line."""


class CharsetConfig(BaseModel, frozen=True, extra="forbid"):
    """What sources of text have. Bodies are UTF-8; what comes in UTF-8 is passed on untouched."""

    charset: Annotated[str, AfterValidator(_check_charset)] = "utf-8"
    """What the text is written in. "utf-16" and "utf-32" look for a byte order mark (little endian without one),
    "utf-8-sig" leaves one out."""

    decode_errors: _AsDecodeErrors = DecodeErrors.KEEP
    """What becomes of a line that is not in this charset: "fail", "replace", "ignore", "keep" its bytes."""


class LinesConfig(CharsetConfig, frozen=True, extra="forbid"):
    """What sources of lines have. A line ends with LF or CR LF, which is no part of it."""

    line_bytes_max: int = Field(1 * MIB, ge=16, le=64 * MIB)
    """A line with more bytes, as it comes, is too long."""

    long_lines: _AsLongLines = LongLines.SPLIT
    """What becomes of a line that is too long: "split", "truncate" or "drop"."""

    multiline: MultilineConfig | None = None
    """Which lines are one event together. Without it each line is an event."""
