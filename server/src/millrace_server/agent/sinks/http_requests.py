"""Events as the bodies of requests."""

import gzip
import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from millrace_server.agent.sinks.http_config import Format
from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.stamps import IntervalSet

CONTENT_TYPES: dict[Format, str] = {
    "json": "application/json",
    "json_lines": "application/x-ndjson",
    "single": "application/octet-stream",
}

_GZIP_LEVEL = 5
_KEY_LENGTH_MAX = 128
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encode(batches: Sequence[StoredBatch], form: Format, *, is_packed: bool) -> bytes:
    """The body of a request with these events; with one only where the form is `single`."""
    if form == "single":
        [(_, body)] = _rows(batches)
    elif form == "json_lines":
        body = b"".join(_json(headers, body) + b"\n" for headers, body in _rows(batches))
    else:
        body = b"[" + b",".join(_json(headers, body) for headers, body in _rows(batches)) + b"]"
    return gzip.compress(body, _GZIP_LEVEL, mtime=0) if is_packed else body


def idempotency_key(channel_id: str, batches: Sequence[StoredBatch]) -> str:
    """Names these events for ever: no others ever have this key."""
    ranges = ",".join(f"{first}-{last}" for first, last in _ranges(batches))
    key = f"{channel_id}:{ranges}"
    return (
        key if len(key) <= _KEY_LENGTH_MAX else f"{channel_id}:{blake2b(ranges.encode(), digest_size=16).hexdigest()}"
    )


def _ranges(batches: Sequence[StoredBatch]) -> list[tuple[int, int]]:
    """The events' sequences, first and last of each range: the same however they were cut into batches."""
    sequences = IntervalSet()
    for batch in batches:
        sequences.add(batch.first_sequence, batch.end_sequence - 1)
    return list(sequences)


def _rows(batches: Sequence[StoredBatch]) -> Iterator[tuple[dict[str, str], bytes]]:
    for batch in batches:
        yield from batch.window.rows()


def _json(headers: dict[str, str], body: bytes) -> bytes:
    try:
        event = {"headers": headers, "body": body.decode()}
    except UnicodeDecodeError:
        event = {"headers": headers, "body_base64": b64encode(body).decode()}
    return _ENCODER.encode(event).encode()
