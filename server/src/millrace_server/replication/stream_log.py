"""A channel's log in a stream: each group of records is a message, or some.

The log's segments are only counted here: `position` grows from the record that begins a segment, and a location's
segment id is the sequence of its group, which replaces the file.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from millrace_server.histograms import Histograms
from millrace_server.replication.chain import Chain
from millrace_server.replication.groups import GroupAssembler, GroupBytes, GroupReader
from millrace_server.replication.messages import NOWHERE, Message, MessageKind
from millrace_server.replication.stream_reading import LOG
from millrace_server.wal.format import RECORD_HEAD_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader
from millrace_server.wal.group_writer import GroupWriter, OnDone
from millrace_server.wal.groups import encode_group
from millrace_server.wal.log import LogRecord
from millrace_server.wal.payload_codec import Payload, PayloadCodec
from millrace_server.wal.reading import RecordReader, SegmentScanner, records_in
from millrace_server.wal.records import Location, LogPosition, Submission
from millrace_server.wal.segments import LogCorruptError, Segment
from millrace_server.wal.submitting import Submitting
from millrace_server.wal.writer_threads import WriterThreads


class _Ended(NamedTuple):
    """A group that was appended without a thread, or was not, and where the log ends in the first case."""

    appending: "asyncio.Future[Any]"
    end: LogPosition


class StreamWriter(GroupWriter):
    """Writes each group as one message, or as some where it is larger."""

    def __init__(self, chain: Chain, end: LogPosition, codec: PayloadCodec, on_done: OnDone) -> None:
        super().__init__(end, codec, on_done, chain.body_bytes_max)
        self._chain = chain
        self._ended: _Ended | None = None
        # Callers that were acknowledged together submit again together: the first of them is not alone.
        self._was_alone = True

    def use(self, threads: WriterThreads) -> None:
        """Sets the threads that it shares with other logs of the same engine."""
        self._threads = threads

    def submit(self, submission: Submission) -> None:
        """Queues records after all that were submitted before, or begins to append them if there are none."""
        if not self._begins_alone(submission):
            super().submit(submission)

    def _begins_alone(self, submission: Submission) -> bool:
        """Begins to append records without a thread, since a lone caller would wait for two more changes of threads.

        Returns False where a thread must: others submit too, or something is being appended, or it is a barrier, or
        takes long to encode.
        """
        # A segment begins with the channel's state, which may be large.
        takes_long = self.codec.is_active or submission.begins_segment or submission.byte_count > self._group_bytes_max
        may_begin = self._was_alone and submission.records and not takes_long
        if not may_begin or not self._chain.turn.acquire(blocking=False):
            return False
        if self._takes_place():
            # Whatever the error is, the thread gets it too, and reports it.
            with suppress(Exception):
                group = [submission]
                if self._known_error(group) is None:
                    message, end = self._encoded(group)
                    self._chain.begin(LOG, message, lambda appending: self._end_alone(group, _Ended(appending, end)))
                    return True
            self._leave()
        self._chain.turn.release()
        return False

    def _end_alone(self, group: list[Submission], ended: _Ended) -> None:
        self._ended = ended
        self._write_and_complete(group)
        self._chain.turn.release()
        self._leave()

    def _write(self, group: list[Submission]) -> None:
        self._was_alone = len(group) == 1
        if self._ended is not None:
            (appending, end), self._ended = self._ended, None
            self._chain.outcome(appending)
            self._end = end
        else:
            with self._chain.turn:
                self._write_waiting(group)

    def _write_waiting(self, group: list[Submission]) -> None:
        message, end = self._encoded(group)
        if message.pieces:
            self._chain.append(LOG, message)
            self._end = end
        else:
            # Barriers: all before them is durable, and they end where it ends.
            for submission in group:
                submission.end = self._end

    def _encoded(self, group: list[Submission]) -> tuple[Message, LogPosition]:
        """Returns a group as it follows what is stored, and where the log ends then; needs the chain's turn."""
        sequence = self._chain.last_sequence + 1
        position = SEGMENT_HEADER_BYTES if group[0].begins_segment else self._end.position
        start = LogPosition(sequence, position, self._end.lsn)
        header = SegmentHeader(self._chain.state.channel_id, sequence, start.lsn, 0)
        encoded, end = encode_group(group, self.codec, header, start, 0)
        return self._chain.message(MessageKind.GROUP, encoded, start), end


class StreamLog(Submitting[StreamWriter]):
    """A channel's log in a stream; see `Log`. The chain must be fenced before it is replayed and started."""

    def __init__(self, chain: Chain, codec: PayloadCodec) -> None:
        super().__init__(codec)
        self._chain = chain
        self._reader = GroupReader(chain, codec)
        self._end = NOWHERE
        self._first_segment_id = chain.state.first_sequence

    @property
    def first_segment_id(self) -> int:
        """The oldest sequence that is needed; 0 if there is none."""
        return self._first_segment_id

    @property
    def newest_segment_id(self) -> int:
        """The sequence of the newest group; 0 if there is none."""
        return self.end.segment_id if self._writer is None else self._writer.end.segment_id

    @property
    def segment_count(self) -> int:
        """Number of messages."""
        return self._chain.last_sequence + 1 - self._first_segment_id

    @property
    def end(self) -> LogPosition:
        """The log's end as replay found it."""
        return self._end

    def byte_count(self) -> int:
        """Returns the stream's size."""
        return self._chain.byte_count

    def byte_count_behind(self, start: LogPosition | None) -> int:
        """Returns about how many bytes a replay from `start` reads, as if all messages had the same size."""
        first = self._first_segment_id if start is None else start.segment_id + 1
        unread = max(self._chain.last_sequence + 1 - first, 0)
        return self.byte_count() * unread // max(self.segment_count, 1)

    def replay(
        self,
        start: LogPosition | None = None,
        *,
        first_needed: int = 0,
        read_only: bool = False,  # noqa: ARG002 - nothing is changed
    ) -> Iterator[LogRecord]:
        """Yields the log's records in order; see `WriteAheadLog.replay`.

        Raises:
            EngineError: The engine does not respond.
            KeyMissingError: A record is encrypted with a key that was not given.
            LogCorruptError: A message is missing or damaged.
            UnknownVersionError: Another version of Millrace wrote a message.
        """
        assert self._writer is None, "a log that was started is not replayed"
        first_sequence = self._chain.state.first_sequence
        if start is None and first_sequence > 1:
            raise LogCorruptError(f"the stream begins with message {first_sequence}, and there is no checkpoint")
        if 0 < first_needed < first_sequence:
            raise LogCorruptError(f"message {first_needed}, which a checkpoint needs, is missing")
        if start is not None and self._chain.get(start.segment_id) is None:
            raise LogCorruptError(f"message {start.segment_id}, where replay begins, is missing")
        self._end = start or NOWHERE
        # Behind other records of its group, or before all of them, where the group was written while it was taken.
        for group in self._groups_from(self._end.segment_id or first_sequence):
            is_first = start is not None and group.segment_id == start.segment_id
            yield from self._records(group, self._end if is_first else None)

    def _groups_from(self, first: int) -> Iterator[Segment]:
        assembler = GroupAssembler()
        before, missing = first - 1, 0
        for sequence, message in self._chain.messages_from(first):
            if sequence > before + 1:
                missing = before + 1
            before = sequence
            if message.kind is MessageKind.CHECKPOINT:
                # Earlier checkpoints may have been removed, and nothing else behind the start.
                missing = 0
            elif message.kind is MessageKind.GROUP and (group := assembler.add(sequence, message)) is not None:
                yield group
        if missing or before < self._chain.last_sequence:
            raise LogCorruptError(f"message {missing or before + 1} is missing; it was stored once")

    def _records(self, group: Segment, start: LogPosition | None) -> Iterator[LogRecord]:
        header = group.header
        if start is None and header.first_lsn != self._end.lsn:
            raise LogCorruptError(
                f"message {group.segment_id}: begins with LSN {header.first_lsn}; it must be {self._end.lsn}"
            )
        content = GroupBytes.of(group)
        reader = RecordReader({group.segment_id: group}, self._codec)
        position, lsn = (content.start, header.first_lsn) if start is None else start[1:]
        # The checksum of each message has matched, which also says where it belongs, and of which channel it is.
        for record in records_in(content.content[position - content.start :], position, None):
            start_position, (_, length, kind, flags, found_lsn, _), _ = record
            if found_lsn != lsn:
                raise LogCorruptError(f"message {group.segment_id}: has LSN {found_lsn}; it must be {lsn}")
            location = Location(group.segment_id, start_position, length)
            yield LogRecord(kind, flags, location, reader.decoder(group, record))
            position = start_position + RECORD_HEAD_BYTES + length
            lsn += 1
        if position < content.size():
            # Raises what tells of another version.
            SegmentScanner(group.file, header).record_at(position)
            raise LogCorruptError(f"message {group.segment_id}: is damaged at byte {position - content.start}")
        self._end = LogPosition(group.segment_id, position, lsn)

    def start(self, threads: WriterThreads, histograms: Histograms) -> None:
        """Starts to accept records after those that replay found, on threads that logs of the same engine share."""
        self._writer = StreamWriter(self._chain, self._end, self._codec, self._complete)
        self._writer.count_in(histograms)
        self._writer.use(threads)

    def read_run(self, locations: Sequence[Location], *, cached_only: bool = False) -> list[Payload] | None:
        """Reads records' payloads, their messages a few at a time; see `WriteAheadLog.read_run`."""
        return self._reader.read_run(locations, cached_only=cached_only)

    def read_puts(self, location: Location, *, cached_only: bool = False) -> list[Payload] | None:
        """Reads the payloads of all PUT records in a place; see `WriteAheadLog.read_puts`."""
        return self._reader.read_puts(location, cached_only=cached_only)

    def remove_before(self, segment_id: int) -> int:
        """Removes the messages before a group; returns about how many.

        Raises:
            EngineError: The engine does not respond; a later call removes them.
        """
        count = segment_id - self._first_segment_id
        if count <= 0:
            return 0
        self._chain.purge_before(segment_id)
        self._first_segment_id = segment_id
        return count

    def close(self) -> None:
        """Writes what was submitted."""
        if self._writer is not None:
            self._writer.close()
