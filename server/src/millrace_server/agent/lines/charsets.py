"""Character sets of lines."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from millrace_server.agent.lines.config import DecodeErrors

BOM_BYTES_MAX = 4
"""The length of the longest byte order mark."""

_UTF_8 = "utf-8"

_CHARACTER_BYTES_MAX = 4
"""The length of the longest character in any charset, not counting shift sequences."""

_LITTLE_ENDIAN = {"utf-16": "utf-16-le", "utf-32": "utf-32-le"}
_BOMS = {
    "utf-8-sig": ((codecs.BOM_UTF8, _UTF_8),),
    "utf-16": ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")),
    "utf-32": ((codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be")),
}
"""The charsets whose text may begin with a byte order mark: the marks, and the codec that each of them selects."""


class LineDecodeError(Exception):
    """Raised when a line is not valid in its charset and `decode_errors` is "fail"."""

    def __init__(self, line_index: int, reason: str) -> None:
        super().__init__(reason)
        self.line_index = line_index


@dataclass(frozen=True)
class Charset:
    """The encoding of a text.

    Attributes:
        codec: Python's name of the charset.
        bom: The byte order mark at the beginning of the text; may be empty.
        unit_bytes: Characters begin at multiples of this number of bytes.
    """

    codec: str
    bom: bytes
    unit_bytes: int
    newline: bytes
    carriage_return: bytes

    @classmethod
    def of(cls, name: str, head: bytes = b"") -> "Charset":
        """Returns the charset with this name for a text that begins with `head`."""
        name = codecs.lookup(name).name
        codec, bom = _LITTLE_ENDIAN.get(name, name), b""
        if name == "utf-8-sig":
            codec = _UTF_8
        for candidate, bom_codec in _BOMS.get(name, ()):
            if head.startswith(candidate):
                codec, bom = bom_codec, candidate
        newline = "\n".encode(codec)
        return cls(codec, bom, len(newline), newline, "\r".encode(codec))

    @staticmethod
    def may_have_bom(name: str) -> bool:
        """Whether text in the charset with this name may begin with a byte order mark."""
        return codecs.lookup(name).name in _BOMS

    @property
    def is_utf_8(self) -> bool:
        return self.codec == _UTF_8

    def split(self, text: bytes, offset: int) -> list[bytes]:
        """Splits text at its line feeds; the last line is unfinished. `offset` is the text's position in the input."""
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
        """Returns the beginning of a line up to its last complete character."""
        piece = piece[: len(piece) - len(piece) % self.unit_bytes]
        decoder = codecs.getincrementaldecoder(self.codec)("replace")
        decoder.decode(piece)
        unfinished, _ = decoder.getstate()
        # In charsets with shift sequences, everything since the last shift counts as unfinished.
        return piece[: len(piece) - len(unfinished)] if len(unfinished) < _CHARACTER_BYTES_MAX else piece

    def to_utf_8(self, lines: Sequence[bytes], errors: DecodeErrors) -> Sequence[bytes]:
        """Returns the same lines in UTF-8; raises LineDecodeError if a line is invalid and `errors` is "fail"."""
        if self.is_utf_8 and (errors == "keep" or _is_utf_8(b"\n".join(lines))):
            return lines
        return [self._to_utf_8(index, line, errors) for index, line in enumerate(lines)]

    def _to_utf_8(self, index: int, line: bytes, errors: DecodeErrors) -> bytes:
        try:
            # Some charsets can encode single surrogates, unlike UTF-8.
            return line.decode(self.codec).encode(errors="replace")
        except UnicodeDecodeError as error:
            if errors == "fail":
                raise LineDecodeError(index, f"{error.reason} at byte {error.start} of the line") from None
            if errors == "keep":
                return line
            return line.decode(self.codec, errors).encode(errors="replace")


def _is_utf_8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
