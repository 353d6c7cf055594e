"""Reports of the tools as JSON and as text."""

from collections.abc import Iterator

from millrace.units import counted
from millrace_server.channels.recovery import Recovered
from millrace_server.log_tools.dump import Document, time_text
from millrace_server.log_tools.event_index import shown_ranges
from millrace_server.log_tools.layout import ChannelLayout
from millrace_server.log_tools.verify import CheckpointState, Report
from millrace_server.wal.records import LogPosition


def report_document(layout: ChannelLayout, report: Report) -> Document:
    """Returns a report as JSON."""
    scan = report.scan
    return {
        "is_good": report.is_good,
        "channel": layout.name,
        "channel_id": layout.identity.channel_id.hex() if layout.identity else None,
        "log_id": layout.log_id.hex(),
        "is_opened": scan.is_decoded,
        "key_ids": sorted(scan.key_ids),
        "segments": [
            {
                "segment": one.segment_id,
                "name": one.name,
                "bytes": one.byte_count,
                "records": one.record_count,
                "commits": one.commit_count,
                "events_put": one.event_count,
            }
            for one in scan.segments
        ],
        "checkpoints": [
            {
                "name": one.path.name,
                "state": one.state.value,
                "position": one.position and _position_document(one.position),
                "problem": one.problem or None,
            }
            for one in report.checkpoints
        ],
        "damages": [
            {
                "kind": damage.kind.value,
                "segment": damage.segment_id,
                "position": damage.position,
                "synced_up_to": damage.synced_up_to,
                "next_good_position": damage.end,
                "sentence": damage.sentence,
            }
            for damage in scan.damages
        ],
        "problems": report.problems,
        "sequences_affected": [list(lost) for lost in scan.contents.lost],
        "state": report.recovered and state_document(report.recovered),
    }


def state_document(recovered: Recovered) -> Document:
    """Returns a channel's state as JSON."""
    return {
        "events": recovered.queue.event_count,
        "first_sequence": recovered.queue.first_sequence,
        "next_sequence": recovered.next_sequence,
        "last_commit_time": time_text(recovered.last_commit_time),
        "batches": len(list(recovered.queue)),
        "body_bytes": sum(batch.window.body_bytes for batch in recovered.queue),
        "producers": len(recovered.ledger),
        "ended_txns": len(list(recovered.ended)),
        "claim": recovered.claim
        and {
            "reader_id": recovered.claim.reader_id,
            "epoch": recovered.claim.epoch,
            "lease_seconds": recovered.claim.lease_seconds,
            "has_ended": recovered.claim.has_ended,
        },
        "checkpoint": recovered.checkpoint and _position_document(recovered.checkpoint),
    }


def _position_document(position: LogPosition) -> Document:
    return {"segment_id": position.segment_id, "position": position.position, "write_number": position.lsn}


def detailed_state_document(recovered: Recovered) -> Document:
    """Returns a channel's state as JSON, with each batch, producer and ended transaction."""
    document = state_document(recovered)
    document["batches"] = [
        {
            "first_sequence": batch.first_sequence,
            "count": batch.count,
            "first_commit_time": time_text(batch.first_time),
            "last_commit_time": time_text(batch.last_time),
            "body_bytes": batch.window.body_bytes,
            "location": batch.window.stored.location and batch.window.stored.location._asdict(),
            "start": batch.window.start,
        }
        for batch in recovered.queue
    ]
    document["producers"] = {name: [list(pair) for pair in pairs] for name, pairs in recovered.ledger.producers()}
    document["ended_txns"] = {
        txn_id: {
            "state": outcome.state.value,
            "first_sequence": outcome.receipt and outcome.receipt.first_sequence,
            "last_sequence": outcome.receipt and outcome.receipt.last_sequence,
            "commit_time": outcome.receipt and time_text(outcome.receipt.commit_time),
        }
        for txn_id, outcome in recovered.ended.items()
    }
    return document


def report_lines(layout: ChannelLayout, report: Report, torn_bytes: int = 0) -> Iterator[str]:
    """Yields the lines of a report as text, without the problems."""
    scan = report.scan
    yield f"Channel {layout.name}: log {layout.log_id.hex()} in {' and '.join(map(str, layout.directories))}."
    for one in scan.segments:
        yield (
            f"  {one.name}: {counted(one.record_count, 'record')}, {counted(one.commit_count, 'commit')}, "
            f"{counted(one.event_count, 'event')} put, {one.byte_count:,} bytes"
        )
    if torn_bytes:
        yield f"  {counted(torn_bytes, 'byte')} after the end, left by a crash or being written"
    for checkpoint in report.checkpoints:
        where = ""
        if checkpoint.position is not None and checkpoint.state is CheckpointState.GOOD:
            where = f", at byte {checkpoint.position.position} of segment {checkpoint.position.segment_id}"
        elif checkpoint.problem:
            where = f", {checkpoint.problem}"
        is_unneeded = checkpoint.state is CheckpointState.MISSING and report.is_good
        state = "none, and none is needed" if is_unneeded else checkpoint.state.value
        yield f"  {checkpoint.path.name}: {state}{where}"
    if scan.key_ids:
        yield f"  encrypted with {_keys(scan.key_ids)}"


def summary(report: Report) -> str:
    """Returns a report in one sentence."""
    scan = report.scan
    if report.is_good and not scan.is_decoded:
        needed = f", for which {_keys(scan.key_ids)} would be needed" if scan.key_ids else ""
        return f"Good as far as checksums show; no payload was decoded{needed}."
    if report.is_good and report.recovered is not None:
        recovered = report.recovered
        return f"Good: {counted(recovered.queue.event_count, 'event')}, next sequence {recovered.next_sequence}."
    parts = [f"Damaged: {counted(len(report.sentences), 'problem')}"]
    if scan.contents.lost:
        parts.append(f"it concerns sequences {shown_ranges(scan.contents.lost)}")
    if report.is_openable and report.recovered is not None:
        parts.append(f"a server opens the channel with {counted(report.recovered.queue.event_count, 'event')}")
    elif scan.is_decoded:
        parts.append("a server does not open the channel")
    return "; ".join(parts) + "."


def _keys(key_ids: set[str]) -> str:
    return f"{'key' if len(key_ids) == 1 else 'keys'} {', '.join(sorted(key_ids))}"
