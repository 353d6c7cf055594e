"""What lines need to know of the charset that they are written in."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from millrace_server.agent.lines.config import DecodeErrors

MARK_BYTES_MAX = 4
"""No byte order mark is longer."""

_UTF_8 = "utf-8"

_CHARACTER_BYTES_MAX = 4
"""No charset has longer characters, shifts left out."""

_LITTLE_ENDIAN = {"utf-16": "utf-16-le", "utf-32": "utf-32-le"}
_MARKED = {
    "utf-8-sig": ((codecs.BOM_UTF8, _UTF_8),),
    "utf-16": ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")),
    "utf-32": ((codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be")),
}
"""For charsets whose text may begin with a byte order mark: each mark, and what it says."""


class LineDecodeError(Exception):
    """Returned when a line is not in its charset, and that is not allowed.

    Attributes:
        line_index: Which of the lines, counted from 0.
    """

    def __init__(self, line_index: int, reason: str) -> None:
        super().__init__(reason)
        self.line_index = line_index


@dataclass(frozen=True)
class Charset:
    """How some text is written.

    Attributes:
        codec: Python's name of the charset.
        mark: The byte order mark that the text begins with; empty where it has none.
        unit_bytes: A character begins at a multiple of it.
        newline: A line feed.
        carriage_return: A carriage return.
    """

    codec: str
    mark: bytes
    unit_bytes: int
    newline: bytes
    carriage_return: bytes

    @classmethod
    def of(cls, name: str, head: bytes = b"") -> "Charset":
        """The charset of that name, for text that begins so."""
        name = codecs.lookup(name).name
        codec, mark = _LITTLE_ENDIAN.get(name, name), b""
        if name == "utf-8-sig":
            codec = _UTF_8
        for known_mark, said_codec in _MARKED.get(name, ()):
            if head.startswith(known_mark):
                codec, mark = said_codec, known_mark
        newline = "\n".encode(codec)
        return cls(codec, mark, len(newline), newline, "\r".encode(codec))

    @staticmethod
    def may_be_marked(name: str) -> bool:
        """Whether text in the charset of that name may begin with a byte order mark that is to be looked for."""
        return codecs.lookup(name).name in _MARKED

    @property
    def is_utf_8(self) -> bool:
        """Whether bodies need no conversion."""
        return self.codec == _UTF_8

    def split(self, text: bytes, offset: int) -> list[bytes]:
        """Splits text at its line feeds.

        Args:
            text: Some text.
            offset: Where it lies in the whole.

        Returns:
            The lines without their line feeds; the last one is not finished, and may be empty.
        """
        pieces = text.split(self.newline)
        if self.unit_bytes == 1 or len(pieces) == 1:
            return pieces
        # The bytes of a line feed may also be the end of one character and the beginning of the next.
        lines: list[bytes] = []
        joined = b""
        for piece in pieces[:-1]:
            joined += piece
            if (offset + len(joined)) % self.unit_bytes:
                joined += self.newline
            else:
                lines.append(joined)
                offset += len(joined) + self.unit_bytes
                joined = b""
        return [*lines, joined + pieces[-1]]

    def whole_characters(self, piece: bytes) -> bytes:
        """The beginning of a line without a character that is cut in two at its end."""
        piece = piece[: len(piece) - len(piece) % self.unit_bytes]
        decoder = codecs.getincrementaldecoder(self.codec)("replace")
        decoder.decode(piece)
        unfinished, _ = decoder.getstate()
        # Charsets that shift in and out count all since then as unfinished.
        return piece[: len(piece) - len(unfinished)] if len(unfinished) < _CHARACTER_BYTES_MAX else piece

    def to_utf_8(self, lines: Sequence[bytes], errors: DecodeErrors) -> Sequence[bytes]:
        """The same lines in UTF-8.

        Raises:
            LineDecodeError: A line is not in this charset, and `errors` is FAIL.
        """
        if self.is_utf_8 and (errors is DecodeErrors.KEEP or _is_utf_8(b"\n".join(lines))):
            return lines
        return [self._to_utf_8(index, line, errors) for index, line in enumerate(lines)]

    def _to_utf_8(self, index: int, line: bytes, errors: DecodeErrors) -> bytes:
        try:
            # Some charsets can write halves of surrogate pairs, which UTF-8 cannot.
            return line.decode(self.codec).encode(errors="replace")
        except UnicodeDecodeError as error:
            if errors is DecodeErrors.FAIL:
                raise LineDecodeError(index, f"{error.reason} at byte {error.start} of the line") from None
            if errors is DecodeErrors.KEEP:
                return line
            return line.decode(self.codec, errors.value).encode(errors="replace")


def _is_utf_8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
