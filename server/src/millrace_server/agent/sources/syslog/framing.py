"""Where one message ends and the next begins in a stream: RFC 6587."""

import re
from typing import NamedTuple

from millrace_server.agent.sources.syslog.config import Framing, LongMessages

# More digits could name no message that anybody sends, but would have a whole stream swallowed.
_COUNTED = re.compile(rb"([1-9][0-9]{0,7}) ")
_COUNTED_MESSAGE = re.compile(rb"([1-9][0-9]{0,7}) <")
_PERHAPS_COUNTED = re.compile(rb"[1-9][0-9]{0,7} ?\Z")
_DIGITS = b"123456789"
_LINE_OF_DIGIT = re.compile(rb"^[1-9]", re.MULTILINE)
_ENDS = b"\r\n\0"
_CARRIAGE_RETURN = ord("\r")


class Frame(NamedTuple):
    """A message as it came, without line ends and NULs behind it."""

    content: bytes
    is_truncated: bool
    """Whether its end is missing."""


def frame_datagram(datagram: bytes, message_bytes_max: int) -> Frame | None:
    """The one message of a datagram; None where there is none."""
    content = datagram.rstrip(_ENDS)
    return Frame(content[:message_bytes_max], len(content) > message_bytes_max) if content else None


class _Count(NamedTuple):
    """How long a message is that says so, and where it begins."""

    start: int
    length: int


class StreamFramer:
    """Cuts one connection's stream into messages.

    It holds a message's beginning until the rest has come, at most `message_bytes_max` bytes of it.

    Attributes:
        dropped_count: Messages that were too long and so were dropped.
        is_lost: Whether the stream is none of counted messages, although it must be: nobody knows where the next one
            begins.
    """

    def __init__(self, framing: Framing, message_bytes_max: int, long_messages: LongMessages) -> None:
        self._framing = framing
        self._bytes_max = message_bytes_max
        self._drops_long = long_messages == "drop"
        self._counted = _COUNTED if framing == "octet_counting" else _COUNTED_MESSAGE
        self._buffer: bytes | bytearray = b""
        self._scanned = 0
        self._position = 0
        self._skipped_octets = 0
        self._skips_line = False
        self._frames: list[Frame] = []
        self.dropped_count = 0
        self.is_lost = False

    @property
    def is_inside(self) -> bool:
        """Whether the end of a message is still to come."""
        return bool(self._buffer or self._skipped_octets or self._skips_line)

    def feed(self, data: bytes) -> list[Frame]:
        """The messages that end in what has come now; none any more once the stream is lost."""
        if self.is_lost:
            return []
        data = self._without_skipped(data)
        if self._buffer:
            self._buffer += data
        else:
            self._buffer = data
        self._position = 0
        self._cut_plain_lines()
        while self._position < len(self._buffer) and self._cut_one():
            pass
        self._keep_rest()
        return self._taken_frames()

    def finish(self, *, is_clean: bool) -> list[Frame]:
        """What is left at the end of the stream.

        Args:
            is_clean: Whether the sender has ended it; else nobody knows what would have come.
        """
        rest, self._buffer = bytes(self._buffer), b""
        if (count := self._counted_at(rest, 0)) is not None:
            self._add(rest[count.start :], is_truncated=True)
        else:
            self._add(rest, is_truncated=not is_clean or self._framing == "octet_counting")
        return self._taken_frames()

    def _cut_plain_lines(self) -> None:
        """Cuts all lines at once where each of them is a message, as with most senders; else leaves them."""
        end = self._buffer.rfind(b"\n", self._scanned)
        if end < 0 or self._framing == "octet_counting":
            return
        region = bytes(self._buffer[:end])
        if self._framing == "auto" and _LINE_OF_DIGIT.search(region):
            return
        lines = region.split(b"\n")
        if max(map(len, lines)) > self._bytes_max:
            return
        self._frames += [Frame(content, is_truncated=False) for line in lines if (content := line.rstrip(_ENDS))]
        self._position = end + 1
        self._scanned = 0

    def _keep_rest(self) -> None:
        if self._position == len(self._buffer):
            self._buffer = b""
        elif self._position or isinstance(self._buffer, bytes):
            self._buffer = bytearray(self._buffer[self._position :])

    def _taken_frames(self) -> list[Frame]:
        frames, self._frames = self._frames, []
        return frames

    def _without_skipped(self, data: bytes) -> bytes:
        """What comes behind a message whose end is not wanted."""
        if self._skips_line:
            end = data.find(b"\n")
            if end < 0:
                return b""
            self._skips_line = False
            return data[end + 1 :]
        skipped = min(self._skipped_octets, len(data))
        self._skipped_octets -= skipped
        return data[skipped:]

    def _cut_one(self) -> bool:
        """Cuts the next message; False where more must come first."""
        buffer, start = self._buffer, self._position
        if (count := self._counted_at(buffer, start)) is not None:
            return self._cut_counted(count)
        if buffer[start] in _ENDS:
            self._position += 1
            return True
        if self._framing != "newline" and _PERHAPS_COUNTED.match(buffer, start):
            return False
        if self._framing == "octet_counting":
            self.is_lost = True
            self._add(bytes(buffer[start : start + self._bytes_max]), is_truncated=True)
            self._position = len(buffer)
            return False
        return self._cut_line()

    def _counted_at(self, buffer: bytes | bytearray, start: int) -> "_Count | None":
        if self._framing == "newline" or start >= len(buffer) or buffer[start] not in _DIGITS:
            return None
        match = self._counted.match(buffer, start)
        return None if match is None else _Count(match.end(1) + 1, int(match[1]))

    def _cut_counted(self, count: "_Count") -> bool:
        available = len(self._buffer) - count.start
        kept = min(count.length, self._bytes_max)
        if available < kept:
            return False
        content = bytes(self._buffer[count.start : count.start + kept])
        self._add_whole_or_part(content, is_truncated=count.length > kept)
        self._skipped_octets = max(count.length - available, 0)
        self._position = count.start + min(count.length, available)
        return True

    def _cut_line(self) -> bool:
        buffer, start = self._buffer, self._position
        end = buffer.find(b"\n", max(start, self._scanned))
        self._scanned = 0
        if end < 0:
            # A carriage return may be the last byte, and belong to a line end.
            if len(buffer) - start <= self._bytes_max + 1:
                # What was looked through once is not looked through again, however slowly the rest comes.
                self._scanned = len(buffer) - start
                return False
            self._skips_line = True
            end = len(buffer)
        stop = end - 1 if buffer[end - 1] == _CARRIAGE_RETURN and not self._skips_line else end
        is_long = stop - start > self._bytes_max
        self._add_whole_or_part(bytes(buffer[start : min(stop, start + self._bytes_max)]), is_truncated=is_long)
        self._position = min(end + 1, len(buffer))
        return True

    def _add_whole_or_part(self, content: bytes, *, is_truncated: bool) -> None:
        if is_truncated and self._drops_long:
            self.dropped_count += 1
        else:
            self._add(content, is_truncated=is_truncated)

    def _add(self, content: bytes, *, is_truncated: bool) -> None:
        if content := content.rstrip(_ENDS):
            self._frames.append(Frame(content, is_truncated))
