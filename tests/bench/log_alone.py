"""Millrace's own log behind gRPC without a channel: no order, no counting and no delivery.

An append's request is parsed and checked as in the server, and written as a PUT and a COMMIT. The difference from the
bare log is the cost of a log that can be recovered; the difference from Millrace is the cost of a channel.
"""

import asyncio
import os
from pathlib import Path

from millrace.v1 import channel_service_pb2 as pb
from millrace_server.grpc_services.messages import nonempty_events_of, parse_apart, stamp_of
from millrace_server.wal.disk import OsDisk
from millrace_server.wal.format import Kind
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.records import Record, Submission
from millrace_server.wal.segments import SegmentFiles

_COMMIT_BYTES = bytes(16)
_SEGMENT_BYTES_MAX = 256 << 20


class LogAlone:
    """Appends from an event loop's calls to a log of Millrace's."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._log = WriteAheadLog(SegmentFiles(OsDisk(), [directory], os.urandom(16)))
        for _ in self._log.replay():
            raise AssertionError("it is new")
        self._log.start()
        self._segment_bytes = _SEGMENT_BYTES_MAX

    async def append(self, raw: bytes) -> bytes:
        """Returns a response once the request's events are on the disk."""
        request, columns = parse_apart(pb.AppendRequest, raw)
        stamp_of(request, "")
        records: list[Record] = [(Kind.PUT, [stored.raw]) for stored in nonempty_events_of(request, columns)]
        records.append((Kind.COMMIT, [_COMMIT_BYTES]))
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(submission: Submission, error: Exception | None) -> None:
            if error is not None:
                future.set_exception(error)
                return
            if begins_segment and submission.end is not None:
                self._log.remove_before(submission.end.segment_id)
            future.set_result(None)

        begins_segment = self._segment_bytes >= _SEGMENT_BYTES_MAX
        if begins_segment:
            self._segment_bytes = 0
        self._segment_bytes += self._log.submit(records, needs_sync=True, begins_segment=begins_segment, done=done)
        await future
        return pb.AppendResponse(first_sequence=1_000, last_sequence=1_999).SerializeToString()
