"""Joins lines that are one event together."""

import structlog

from millrace_server.agent.interceptors.regexes import TOO_LONG, Regex
from millrace_server.agent.lines.config import LineRole, MultilineConfig
from millrace_server.agent.lines.lines import Lines, LinesBuilder

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
