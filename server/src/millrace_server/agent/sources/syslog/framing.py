"""Framing of messages in a stream (RFC 6587)."""

import re
from typing import NamedTuple

from millrace_server.agent.sources.syslog.config import Framing, LongMessages

# A longer number is not a plausible length, and would discard the rest of the stream.
_COUNTED = re.compile(rb"([1-9][0-9]{0,7}) ")
_COUNTED_MESSAGE = re.compile(rb"([1-9][0-9]{0,7}) <")
_PARTIAL_COUNT = re.compile(rb"[1-9][0-9]{0,7} ?\Z")
_DIGITS = b"123456789"
_LINE_OF_DIGIT = re.compile(rb"^[1-9]", re.MULTILINE)
_TRAILER = b"\r\n\0"
_CARRIAGE_RETURN = ord("\r")


class Frame(NamedTuple):
    """A message as received, without trailing line ends and NULs."""

    content: bytes
    is_truncated: bool
    """Whether its end is missing."""


def frame_datagram(datagram: bytes, message_bytes_max: int) -> Frame | None:
    """Returns the message in a datagram, or None if it is empty."""
    content = datagram.rstrip(_TRAILER)
    return Frame(content[:message_bytes_max], len(content) > message_bytes_max) if content else None


class StreamFramer:
    """Splits the stream of one connection into messages.

    It buffers an unfinished message, at most `message_bytes_max` bytes of it.

    Attributes:
        dropped_count: Messages that were dropped because they were too long.
        is_out_of_sync: Whether a message without a length was found although `framing` is `octet_counting`; the start
            of the next message is then unknown.
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
        self.is_out_of_sync = False

    @property
    def is_inside(self) -> bool:
        return bool(self._buffer or self._skipped_octets or self._skips_line)

    def feed(self, data: bytes) -> list[Frame]:
        """Returns the messages that this data completes; none once the stream is out of sync."""
        if self.is_out_of_sync:
            return []
        data = self._skip(data)
        if self._buffer:
            self._buffer += data
        else:
            self._buffer = data
        self._position = 0
        self._cut_plain_lines()
        while self._position < len(self._buffer) and self._cut_one():
            pass
        self._keep_rest()
        return self._take_frames()

    def finish(self, *, is_clean: bool) -> list[Frame]:
        """Returns the rest at the end; the last message may be incomplete if the sender did not end the stream."""
        rest, self._buffer = bytes(self._buffer), b""
        if (counted := self._counted_at(rest, 0)) is not None:
            start, _ = counted
            self._add(rest[start:], is_truncated=True)
        else:
            self._add(rest, is_truncated=not is_clean or self._framing == "octet_counting")
        return self._take_frames()

    def _cut_plain_lines(self) -> None:
        """Splits all complete lines at once if each of them is a message, as with most senders."""
        end = self._buffer.rfind(b"\n", self._scanned)
        if end < 0 or self._framing == "octet_counting":
            return
        region = bytes(self._buffer[:end])
        if self._framing == "auto" and _LINE_OF_DIGIT.search(region):
            return
        lines = region.split(b"\n")
        if max(map(len, lines)) > self._bytes_max:
            return
        self._frames += [Frame(content, is_truncated=False) for line in lines if (content := line.rstrip(_TRAILER))]
        self._position = end + 1
        self._scanned = 0

    def _keep_rest(self) -> None:
        if self._position == len(self._buffer):
            self._buffer = b""
        elif self._position or isinstance(self._buffer, bytes):
            self._buffer = bytearray(self._buffer[self._position :])

    def _take_frames(self) -> list[Frame]:
        frames, self._frames = self._frames, []
        return frames

    def _skip(self, data: bytes) -> bytes:
        """Skips the rest of a message whose end is discarded."""
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
        """Splits off the next message; returns False if it is incomplete."""
        buffer, start = self._buffer, self._position
        if (counted := self._counted_at(buffer, start)) is not None:
            return self._cut_counted(*counted)
        if buffer[start] in _TRAILER:
            self._position += 1
            return True
        if self._framing != "newline" and _PARTIAL_COUNT.match(buffer, start):
            return False
        if self._framing == "octet_counting":
            self.is_out_of_sync = True
            self._add(bytes(buffer[start : start + self._bytes_max]), is_truncated=True)
            self._position = len(buffer)
            return False
        return self._cut_line()

    def _counted_at(self, buffer: bytes | bytearray, start: int) -> tuple[int, int] | None:
        """Returns the start and the length of a message that is preceded by its length."""
        if self._framing == "newline" or start >= len(buffer) or buffer[start] not in _DIGITS:
            return None
        match = self._counted.match(buffer, start)
        return None if match is None else (match.end(1) + 1, int(match[1]))

    def _cut_counted(self, start: int, length: int) -> bool:
        available = len(self._buffer) - start
        kept = min(length, self._bytes_max)
        if available < kept:
            return False
        content = bytes(self._buffer[start : start + kept])
        self._add_or_drop(content, is_truncated=length > kept)
        self._skipped_octets = max(length - available, 0)
        self._position = start + min(length, available)
        return True

    def _cut_line(self) -> bool:
        buffer, start = self._buffer, self._position
        end = buffer.find(b"\n", max(start, self._scanned))
        self._scanned = 0
        if end < 0:
            # The last byte may be a carriage return that belongs to a line end.
            if len(buffer) - start <= self._bytes_max + 1:
                # Scanned bytes are not scanned again, however slowly the rest arrives.
                self._scanned = len(buffer) - start
                return False
            self._skips_line = True
            end = len(buffer)
        stop = end - 1 if buffer[end - 1] == _CARRIAGE_RETURN and not self._skips_line else end
        is_long = stop - start > self._bytes_max
        self._add_or_drop(bytes(buffer[start : min(stop, start + self._bytes_max)]), is_truncated=is_long)
        self._position = min(end + 1, len(buffer))
        return True

    def _add_or_drop(self, content: bytes, *, is_truncated: bool) -> None:
        if is_truncated and self._drops_long:
            self.dropped_count += 1
        else:
            self._add(content, is_truncated=is_truncated)

    def _add(self, content: bytes, *, is_truncated: bool) -> None:
        if content := content.rstrip(_TRAILER):
            self._frames.append(Frame(content, is_truncated))
