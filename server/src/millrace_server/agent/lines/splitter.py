"""Joins lines that are one event together."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import structlog

from millrace_server.agent.interceptors.regexes import TOO_LONG, Regex
from millrace_server.agent.lines.charsets import MARK_BYTES_MAX, Charset, LineDecodeError
from millrace_server.agent.lines.config import LineRole, LinesConfig, MultilineConfig
from millrace_server.agent.lines.lines import LineCutter, Lines, LinesBuilder

_log = structlog.stdlib.get_logger(__name__)


class EventJoiner:
    """Joins lines to events. The last event waits: a further line may belong to it.

    The first line that it gets begins an event, whatever it looks like.

    Args:
        config: Which lines belong together.
        offset: Where the first line begins in the whole input.
    """

    def __init__(self, config: MultilineConfig, offset: int) -> None:
        self._config = config
        self._pattern = Regex(config.pattern)
        self._has_warned = False
        self._position = offset
        self._waiting: list[bytes] = []
        self._waiting_size = 0
        self._body_bytes = 0

    @property
    def position(self) -> int:
        """Where the event that waits begins."""
        return self._position

    @property
    def has_waiting_event(self) -> bool:
        """Whether an event waits for further lines."""
        return bool(self._waiting)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the waiting event's body so far."""
        return self._body_bytes

    def feed(self, lines: Lines) -> Lines:
        """The events that end before or with these lines.

        Args:
            lines: The lines that follow those before, in UTF-8.
        """
        config = self._config
        found = LinesBuilder(self._position)
        self._leave_out(found, lines.skipped_bytes)
        for line, size in zip(lines.bodies, lines.sizes, strict=True):
            is_meant = self._matches(line) is not config.negate
            is_first = is_meant if config.role is LineRole.BEGINS else not is_meant
            if self._waiting and (
                (is_first and config.role is not LineRole.ENDS)
                or len(self._waiting) == config.lines_max
                or self._body_bytes + 1 + len(line) > config.bytes_max
            ):
                self._end_event(found)
            self._body_bytes += len(line) + (1 if self._waiting else 0)
            self._waiting.append(line)
            self._waiting_size += size
            if is_meant and config.role is LineRole.ENDS:
                self._end_event(found)
        return self._handed_out(found)

    def finish(self) -> Lines:
        """The event that waits, where there is one."""
        found = LinesBuilder(self._position)
        if self._waiting:
            self._end_event(found)
        return self._handed_out(found)

    def _matches(self, line: bytes) -> bool:
        try:
            return self._pattern.search(line.decode(errors="replace")) is not None
        except TimeoutError:
            if not self._has_warned:
                _log.warning("a line counts as one that does not match", reason=TOO_LONG, pattern=self._config.pattern)
                self._has_warned = True
            return False

    def _leave_out(self, found: LinesBuilder, size: int) -> None:
        if self._waiting:
            self._waiting_size += size
        else:
            found.leave_out(size)

    def _end_event(self, found: LinesBuilder) -> None:
        found.add(b"\n".join(self._waiting), self._waiting_size)
        self._waiting = []
        self._waiting_size = 0
        self._body_bytes = 0

    def _handed_out(self, found: LinesBuilder) -> Lines:
        lines = found.build()
        self._position = lines.end
        return lines


class LinesError(Exception):
    """Returned when a line is not in its charset, and its source is to fail then; says where and why."""


class LineSplitter:
    """Splits bytes that come in portions into events: lines, or several lines each.

    Which events there are depends on the bytes, not on their portions; so whoever reads them again from where an event
    began gets the same ones. Memory holds one event that is not finished.

    Args:
        config: What a line and an event is.
        offset: Where the first byte lies in the whole input; an event begins there.
        head: The first bytes of the whole input, which may tell the order of bytes; needed only where the offset is
            not 0.
    """

    def __init__(self, config: LinesConfig, offset: int = 0, head: bytes = b"") -> None:
        self._config = config
        self._position = offset
        self._early = b""
        self._failure: LinesError | None = None
        self._stages: _Stages | None = None
        if offset > 0 or not Charset.may_be_marked(config.charset):
            self._stages = self._begin(head)

    @property
    def position(self) -> int:
        """One past the last byte that is covered by what was handed out."""
        return self._position

    @property
    def waiting_bytes(self) -> int:
        """Bytes in memory that were not handed out."""
        if self._stages is None:
            return len(self._early)
        _, cutter, joiner = self._stages
        return cutter.held_bytes + (joiner.waiting_bytes if joiner else 0)

    @property
    def has_waiting_event(self) -> bool:
        """Whether an event of finished lines waits for further lines: `finish_event` hands it out."""
        joiner = self._stages.joiner if self._stages else None
        return joiner is not None and joiner.has_waiting_event

    @property
    def has_unfinished_line(self) -> bool:
        """Whether there are bytes after the last line end: `finish` hands them out."""
        return self._stages.cutter.has_unfinished_line if self._stages else bool(self._early)

    @property
    def failure(self) -> LinesError | None:
        """What the next call will raise; None where all lines were in their charset."""
        return self._failure

    @property
    def long_line_count(self) -> int:
        """Lines so far that were too long."""
        return self._stages.cutter.long_line_count if self._stages else 0

    def feed(self, data: bytes) -> Lines:
        """The events that are finished with these bytes.

        Raises:
            LinesError: The line after what was handed out is not in its charset.
        """
        self._raise_failure()
        if self._stages is None:
            # A byte order mark may come in portions too.
            self._early += data
            if len(self._early) < MARK_BYTES_MAX:
                return self._handed_out([])
            self._stages = self._begin(self._early)
            data = self._early[len(self._stages.charset.mark) :]
        return self._handed_out([self._events_of(self._stages, self._stages.cutter.feed(data))])

    def finish_event(self) -> Lines:
        """The event that waits for further lines, without them. A line that is not finished stays."""
        joiner = self._stages.joiner if self._stages else None
        return self._handed_out([joiner.finish()] if joiner else [])

    def finish(self) -> Lines:
        """All that is left, the last line too. What is fed after it begins a new event.

        Raises:
            LinesError: The line after what was handed out is not in its charset.
        """
        self._raise_failure()
        events = []
        if self._stages is None:
            self._stages = self._begin(self._early)
            early = self._early[len(self._stages.charset.mark) :]
            events.append(self._events_of(self._stages, self._stages.cutter.feed(early)))
        events.append(self._events_of(self._stages, self._stages.cutter.finish()))
        if self._stages.joiner is not None:
            events.append(self._stages.joiner.finish())
        return self._handed_out(events)

    def _begin(self, head: bytes) -> "_Stages":
        charset = Charset.of(self._config.charset, head)
        offset = self._position or len(charset.mark)
        multiline = self._config.multiline
        joiner = EventJoiner(multiline, offset) if multiline else None
        return _Stages(charset, LineCutter(charset, self._config, offset), joiner)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _events_of(self, stages: "_Stages", lines: Lines) -> Lines:
        try:
            bodies = stages.charset.to_utf_8(lines.bodies, self._config.decode_errors)
        except LineDecodeError as error:
            # What comes before it is good, and is handed out first.
            offset = lines.offsets[error.line_index]
            self._failure = LinesError(f"the line at byte {offset} is not in {self._config.charset}: {error}")
            lines = lines.first(error.line_index)
            bodies = stages.charset.to_utf_8(lines.bodies, self._config.decode_errors)
        lines = replace(lines, bodies=bodies)
        return stages.joiner.feed(lines) if stages.joiner else lines

    def _handed_out(self, parts: Sequence[Lines]) -> Lines:
        found = LinesBuilder(self._position)
        for part in parts:
            # Between what was handed out and this lies at most a byte order mark.
            found.leave_out(part.start - self._position + part.skipped_bytes)
            found.extend(part.bodies, part.sizes)
            self._position = part.end
        return found.build()


class _Stages(NamedTuple):
    """What bytes go through, once the charset is known."""

    charset: Charset
    cutter: LineCutter
    joiner: EventJoiner | None
