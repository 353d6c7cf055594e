"""Settings for splitting input into events."""

import codecs
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from millrace.setting_problems import shown_value
from millrace.setting_units import ByteSize
from millrace.units import MIB
from millrace_server.agent.interceptors.regexes import RegexPattern

_TEXT_CODECS = frozenset({"idna", "punycode", "raw_unicode_escape", "undefined", "unicode_escape"})
"""Python's codecs that encode text as other text, not as bytes."""


DecodeErrors = Literal["fail", "replace", "ignore", "keep"]
LongLines = Literal["split", "truncate", "drop"]
LineRole = Literal["begins", "continues", "ends"]


def _check_charset(name: str) -> str:
    try:
        codec = codecs.lookup(name).name
        # Python also has codecs such as "hex", which do not encode text.
        if codec not in _TEXT_CODECS and "\n".encode(codec).decode(codec) == "\n":
            return name
    except (LookupError, ValueError):
        pass
    raise ValueError(f'is {shown_value(name)}; it must be the name of a charset, such as "utf-8" or "iso-8859-1"')


class MultilineConfig(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """Which lines belong to one event; they are joined with line feeds."""

    pattern: RegexPattern
    """A regular expression, searched for in each line after conversion to UTF-8. If a search takes longer than a
    second, the line counts as not matching."""

    role: LineRole = "begins"
    """What a matching line does: "begins", "continues" or "ends" its event."""

    negate: bool = False
    """Whether the role applies to lines that do not match."""

    lines_max: int = Field(1_000, ge=1, le=1_000_000)
    """An event ends after this many lines. The pieces of a line that was split count as lines."""

    bytes_max: int = Field(1 * MIB, ge=1, le=64 * MIB)
    """An event ends before a line that would make its body larger than this."""

    timeout_seconds: float = Field(5.0, gt=0, le=86_400, allow_inf_nan=False)
    """An event is complete when no further line has arrived for this long."""


class CharsetConfig(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """Settings of sources of text. Bodies are UTF-8; UTF-8 input is passed on unchanged."""

    charset: Annotated[str, AfterValidator(_check_charset)] = "utf-8"
    """The charset of the input. "utf-16" and "utf-32" detect a byte order mark (little endian without one), "utf-8-sig"
    skips it."""

    decode_errors: DecodeErrors = "keep"
    """What to do with a line that is not valid in this charset: "fail", "replace", "ignore", or "keep" its bytes."""


class LinesConfig(CharsetConfig, frozen=True, extra="forbid", defer_build=True):
    """Settings of sources that read lines. A line ends with LF or CR LF, which is not part of it."""

    line_bytes_max: ByteSize = Field(1 * MIB, ge=16, le=64 * MIB)
    """A line with more bytes, counted in the input's charset, is too long."""

    long_lines: LongLines = "split"
    """What to do with a line that is too long: "split", "truncate" or "drop"."""

    multiline: MultilineConfig | None = None
    """Which lines belong to one event. Without it each line is an event."""
