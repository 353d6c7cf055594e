"""Requests of the sink `http`: their bodies, their idempotency keys, and the choice of their events."""

import gzip
import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from millrace.json_bodies import body_document
from millrace_server.agent.sinks.http.config import Format
from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.stamps import IntervalSet

CONTENT_TYPES: dict[Format, str] = {
    "json": "application/json",
    "json_lines": "application/x-ndjson",
    "single": "application/octet-stream",
}

_GZIP_LEVEL = 5
_KEY_LENGTH_MAX = 128
_INTERVALS_MAX = 1_000
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encode(batches: Sequence[StoredBatch], form: Format, *, is_compressed: bool) -> bytes:
    """Returns the body of a request with these events; with `single`, there must be one event."""
    if form == "single":
        [(_, body)] = _rows(batches)
    elif form == "json_lines":
        body = b"".join(_json(headers, body) + b"\n" for headers, body in _rows(batches))
    else:
        body = b"[" + b",".join(_json(headers, body) for headers, body in _rows(batches)) + b"]"
    return gzip.compress(body, _GZIP_LEVEL, mtime=0) if is_compressed else body


def idempotency_key(channel_id: str, batches: Sequence[StoredBatch]) -> str:
    """Returns the key of these events, which no other events ever have."""
    # The ranges do not depend on how the events are split into batches.
    sequences = IntervalSet()
    for batch in batches:
        sequences.add(batch.first_sequence, batch.end_sequence - 1)
    ranges = ",".join(f"{first}-{last}" for first, last in sequences)
    key = f"{channel_id}:{ranges}"
    if len(key) <= _KEY_LENGTH_MAX:
        return key
    return f"{channel_id}:{blake2b(ranges.encode(), digest_size=16).hexdigest()}"


def _rows(batches: Sequence[StoredBatch]) -> Iterator[tuple[dict[str, str], bytes]]:
    for batch in batches:
        yield from batch.window.rows()


def _json(headers: dict[str, str], body: bytes) -> bytes:
    return _ENCODER.encode({"headers": headers, **body_document(body)}).encode()


class RequestPlanner:
    """Splits deliveries into requests, without events that the receiver has already accepted.

    It remembers the outcomes of a channel's requests until the process ends.
    """

    def __init__(self, *, is_single: bool) -> None:
        self._is_single = is_single
        self._channel_id = ""
        self._accepted = IntervalSet()
        self._in_doubt: tuple[int, int] | None = None

    def requests(self, channel_id: str, batches: Sequence[StoredBatch]) -> Iterator[Sequence[StoredBatch]]:
        """Yields the events of each request.

        A request without a response is repeated with the same events if the delivery contains all of them, so that the
        receiver recognizes the key.
        """
        if channel_id != self._channel_id or len(self._accepted) > _INTERVALS_MAX:
            self._channel_id = channel_id
            self._accepted = IntervalSet()
            self._in_doubt = None
        rest = [part for batch in batches for part in self._unaccepted(batch)]
        if self._is_single:
            yield from ((batch.part(index, index + 1),) for batch in rest for index in range(batch.count))
            return
        repeated, new = self._split_in_doubt(rest)
        yield from (part for part in (repeated, new) if part)

    def _unaccepted(self, batch: StoredBatch) -> Iterator[StoredBatch]:
        for first, last in self._accepted.gaps(batch.first_sequence, batch.end_sequence - 1):
            yield batch.between(first, last + 1)

    def _split_in_doubt(self, rest: Sequence[StoredBatch]) -> tuple[Sequence[StoredBatch], Sequence[StoredBatch]]:
        if not rest or self._in_doubt is None:
            return (), rest
        first, last = self._in_doubt
        if rest[0].first_sequence != first or rest[-1].end_sequence <= last:
            return (), rest
        repeated = [part.between(first, last + 1) for part in rest if part.first_sequence <= last]
        new = [part.between(last + 1, part.end_sequence) for part in rest if part.end_sequence > last + 1]
        return repeated, new

    def record_sent(self, request: Sequence[StoredBatch]) -> None:
        """Records that a request is being sent; its outcome is then in doubt."""
        self._in_doubt = (request[0].first_sequence, request[-1].end_sequence - 1)

    def record_rejected(self) -> None:
        self._in_doubt = None

    def record_accepted(self, request: Sequence[StoredBatch]) -> None:
        self._in_doubt = None
        for batch in request:
            self._accepted.add(batch.first_sequence, batch.end_sequence - 1)
