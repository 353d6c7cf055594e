"""The splitter, which turns a stream of bytes into events of one or several lines."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import structlog

from millrace_server.agent.interceptors.regexes import MATCH_TIMED_OUT, Regex
from millrace_server.agent.lines.charsets import BOM_BYTES_MAX, Charset, LineDecodeError
from millrace_server.agent.lines.config import LinesConfig, MultilineConfig
from millrace_server.agent.lines.lines import LineFramer, Lines, LinesBuilder

_log = structlog.stdlib.get_logger(__name__)


class MultilineAggregator:
    """Joins lines into events. The last event remains pending, since the next line may belong to it.

    The first line always begins an event.

    Attributes:
        position: The position of the pending event.
        pending_bytes: The size of its body so far.
    """

    def __init__(self, config: MultilineConfig, offset: int) -> None:
        self._config = config
        self._pattern = Regex(config.pattern)
        self._has_warned = False
        self.position = offset
        self._pending_lines: list[bytes] = []
        self._pending_size = 0
        self.pending_bytes = 0

    @property
    def has_pending_event(self) -> bool:
        return bool(self._pending_lines)

    def feed(self, lines: Lines) -> Lines:
        """Returns the events that are completed by these lines, which must be UTF-8."""
        config = self._config
        builder = LinesBuilder(self.position)
        if self._pending_lines:
            self._pending_size += lines.skipped_bytes
        else:
            builder.skip(lines.skipped_bytes)
        for line, size in zip(lines.bodies, lines.sizes, strict=True):
            is_meant = self._matches(line) is not config.negate
            is_first = is_meant if config.role == "begins" else not is_meant
            if self._pending_lines and (
                (is_first and config.role != "ends")
                or len(self._pending_lines) == config.lines_max
                or self.pending_bytes + 1 + len(line) > config.bytes_max
            ):
                self._end_event(builder)
            self.pending_bytes += len(line) + (1 if self._pending_lines else 0)
            self._pending_lines.append(line)
            self._pending_size += size
            if is_meant and config.role == "ends":
                self._end_event(builder)
        return self._emit(builder)

    def finish(self) -> Lines:
        builder = LinesBuilder(self.position)
        if self._pending_lines:
            self._end_event(builder)
        return self._emit(builder)

    def _matches(self, line: bytes) -> bool:
        try:
            return self._pattern.search(line.decode(errors="replace")) is not None
        except TimeoutError:
            if not self._has_warned:
                _log.warning("a line is treated as not matching", reason=MATCH_TIMED_OUT, pattern=self._config.pattern)
                self._has_warned = True
            return False

    def _end_event(self, builder: LinesBuilder) -> None:
        builder.add(b"\n".join(self._pending_lines), self._pending_size)
        self._pending_lines = []
        self._pending_size = 0
        self.pending_bytes = 0

    def _emit(self, builder: LinesBuilder) -> Lines:
        lines = builder.build()
        self.position = lines.end
        return lines


class LinesError(Exception):
    """Raised when a line is not valid in its charset and `decode_errors` is "fail"; says where and why."""


class LineSplitter:
    """Splits bytes that arrive in chunks into events of one or several lines.

    The events depend only on the bytes, not on the chunks, so a reader that resumes where an event began gets the same
    events. One unfinished event is buffered.

    Args:
        offset: The position of the first byte in the whole input; an event begins there.
        head: The first bytes of the whole input, which may contain a byte order mark; needed only if the offset is not
            0.

    Attributes:
        position: One past the last byte covered by the emitted events.
        failure: The error that the next call will raise because the line after the emitted events is not valid in its
            charset; or None.
    """

    def __init__(self, config: LinesConfig, offset: int = 0, head: bytes = b"") -> None:
        self._config = config
        self.position = offset
        self._head = b""
        self.failure: LinesError | None = None
        self._stages: _Stages | None = None
        if offset > 0 or not Charset.may_have_bom(config.charset):
            self._stages = self._create_stages(head)

    @property
    def pending_bytes(self) -> int:
        """Buffered bytes that are not emitted yet."""
        if self._stages is None:
            return len(self._head)
        _, framer, aggregator = self._stages
        return framer.buffered_bytes + (aggregator.pending_bytes if aggregator else 0)

    @property
    def has_pending_event(self) -> bool:
        """Whether there is an event of complete lines that may get further lines; `finish_event` emits it."""
        aggregator = self._stages.aggregator if self._stages else None
        return aggregator is not None and aggregator.has_pending_event

    @property
    def has_unfinished_line(self) -> bool:
        """Whether there are bytes after the last line end; `finish` emits them."""
        return self._stages.framer.has_unfinished_line if self._stages else bool(self._head)

    @property
    def long_line_count(self) -> int:
        return self._stages.framer.long_line_count if self._stages else 0

    def feed(self, data: bytes) -> Lines:
        """Returns the events that these bytes complete; raises `failure` if there is one."""
        self._raise_failure()
        if self._stages is None:
            # A byte order mark may also arrive in several chunks.
            self._head += data
            if len(self._head) < BOM_BYTES_MAX:
                return self._emit([])
            self._stages = self._create_stages(self._head)
            data = self._head[len(self._stages.charset.bom) :]
        return self._emit([self._decode(self._stages, self._stages.framer.feed(data))])

    def finish_event(self) -> Lines:
        """Returns the pending event. An unfinished line remains buffered."""
        aggregator = self._stages.aggregator if self._stages else None
        return self._emit([aggregator.finish()] if aggregator else [])

    def finish(self) -> Lines:
        """Returns all remaining events, including the last line; raises `failure` if there is one.

        Bytes that are fed afterwards begin a new event.
        """
        self._raise_failure()
        events = []
        if self._stages is None:
            self._stages = self._create_stages(self._head)
            early = self._head[len(self._stages.charset.bom) :]
            events.append(self._decode(self._stages, self._stages.framer.feed(early)))
        events.append(self._decode(self._stages, self._stages.framer.finish()))
        if self._stages.aggregator is not None:
            events.append(self._stages.aggregator.finish())
        return self._emit(events)

    def _create_stages(self, head: bytes) -> "_Stages":
        charset = Charset.of(self._config.charset, head)
        offset = self.position or len(charset.bom)
        multiline = self._config.multiline
        aggregator = MultilineAggregator(multiline, offset) if multiline else None
        return _Stages(charset, LineFramer(charset, self._config, offset), aggregator)

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _decode(self, stages: "_Stages", lines: Lines) -> Lines:
        try:
            bodies = stages.charset.to_utf_8(lines.bodies, self._config.decode_errors)
        except LineDecodeError as error:
            # The lines before it are valid, and are emitted first.
            offset = lines.offsets[error.line_index]
            self.failure = LinesError(f"the line at byte {offset} is not in {self._config.charset}: {error}")
            lines = lines.first(error.line_index)
            bodies = stages.charset.to_utf_8(lines.bodies, self._config.decode_errors)
        lines = replace(lines, bodies=bodies)
        return stages.aggregator.feed(lines) if stages.aggregator else lines

    def _emit(self, parts: Sequence[Lines]) -> Lines:
        builder = LinesBuilder(self.position)
        for part in parts:
            # Only a byte order mark may lie between the emitted events and this part.
            builder.skip(part.start - self.position + part.skipped_bytes)
            builder.extend(part.bodies, part.sizes)
            self.position = part.end
        return builder.build()


class _Stages(NamedTuple):
    """The stages of splitting, created once the charset is known."""

    charset: Charset
    framer: LineFramer
    aggregator: MultilineAggregator | None
