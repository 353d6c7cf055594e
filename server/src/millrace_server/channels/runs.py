"""Merging the columns of a run, which are those of many small requests, into those of one batch; see `EventQueue`."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from millrace.wire_format import Buffer
from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.plain_columns import count_sizes
from millrace_server.storage.v1 import packed_columns_pb2 as pb

_ABSENT = b"\0"
"""The packed size of a header that an event does not have."""


def merged(raws: Sequence[Buffer]) -> tuple[bytes, int]:
    """Merges serialized columns into one; returns them and the number of their header keys.

    They must be as protobuf writes them, since nothing is checked here. There may be more keys than in a batch.
    """
    columns = pb.JoinedColumns.FromString(b"".join(raws))
    return _merged_of_same_keys(raws, columns) or _merged_one_by_one(raws, columns)


def together(appended: Sequence[StoredColumns]) -> Sequence[StoredColumns]:
    """Returns the columns of small appends as those of one, where all have the same header keys."""
    raws = [stored.raw for stored in appended]
    found = _merged_of_same_keys(raws, pb.JoinedColumns.FromString(b"".join(raws)))
    if found is None:
        return appended
    counts, body_bytes = [stored.count for stored in appended], [stored.body_bytes for stored in appended]
    return [StoredColumns(found[0], sum(counts), sum(body_bytes))]


def _merged_of_same_keys(raws: Sequence[Buffer], columns: pb.JoinedColumns) -> tuple[bytes, int] | None:
    headers = columns.headers[:]
    key_count, rest = divmod(len(headers), len(raws))
    keys = [header.key for header in headers]
    if rest or keys != keys[:key_count] * len(raws):
        return None
    counts = columns.counts[:]
    merged_headers = [_column(key, headers[index::key_count], counts) for index, key in enumerate(keys[:key_count])]
    return _encoded(columns, merged_headers), key_count


def _merged_one_by_one(raws: Sequence[Buffer], columns: pb.JoinedColumns) -> tuple[bytes, int]:
    """Merges columns of which some have headers that others do not have."""
    starts = list(accumulate(columns.counts, initial=0))
    by_key: dict[str, dict[int, pb.PackedHeader]] = {}
    for index, raw in enumerate(raws):
        for header in pb.PackedColumns.FromString(raw).headers:  # type: ignore[arg-type] # its stubs know bytes only
            by_key.setdefault(header.key, {})[index] = header
    headers: list[pb.PackedHeader] = []
    for key, found in by_key.items():
        pieces: list[tuple[pb.PackedHeader, int]] = []
        # What lies between two requests with the header is one piece, since there may be a thousand keys.
        for before, index in pairwise([-1, *found, len(raws)]):
            if missing := starts[index] - starts[before + 1]:
                pieces.append((pb.PackedHeader(sizes=_ABSENT * missing), missing))
            if index in found:
                pieces.append((found[index], columns.counts[index]))
        headers.append(_column(key, *zip(*pieces, strict=True)))
    return _encoded(columns, headers), len(by_key)


def _column(key: str, pieces: Sequence[pb.PackedHeader], counts: Sequence[int]) -> pb.PackedHeader:
    sizes, values = [piece.sizes for piece in pieces], [piece.values for piece in pieces]
    is_constant = sizes.count(sizes[0]) == len(sizes) and values.count(values[0]) == len(values)
    if is_constant and sizes[0] != _ABSENT and count_sizes(sizes[0])[0] == 1:
        return pb.PackedHeader(key=key, sizes=sizes[0], values=values[0])
    if sum(counts) != len(counts):
        for index, count in enumerate(counts):
            if count_sizes(sizes[index])[0] != count:
                # One size holds for all events of the request.
                sizes[index], values[index] = sizes[index] * count, values[index] * count
    return pb.PackedHeader(key=key, sizes=b"".join(sizes), values=b"".join(values))


def _encoded(columns: pb.JoinedColumns, headers: Sequence[pb.PackedHeader]) -> bytes:
    """Returns the merged columns; joined columns of one part are encoded as EventColumns are."""
    return pb.JoinedColumns(
        counts=[sum(columns.counts[:])],
        body_sizes=[b"".join(columns.body_sizes)],
        bodies=[b"".join(columns.bodies)],
        headers=headers,
    ).SerializeToString()
