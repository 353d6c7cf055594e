"""What the tools found, as JSON has it and as people read it."""

from collections.abc import Iterator
from typing import Any

from millrace_server.channels.recovery import Recovered
from millrace_server.log_tools.dumping import Document
from millrace_server.log_tools.places import LogPlaces
from millrace_server.log_tools.verifying import CheckpointState, Report
from millrace_server.log_tools.view import LogView


def report_document(places: LogPlaces, report: Report) -> Document:
    """A report for scripts."""
    survey = report.survey
    return {
        "is_good": report.is_good,
        "channel": places.name,
        "channel_id": places.identity.channel_id.hex() if places.identity else None,
        "log_id": places.log_id.hex(),
        "is_opened": survey.is_opened,
        "key_ids": sorted(survey.key_ids),
        "segments": [
            {
                "segment": one.segment_id,
                "name": one.name,
                "bytes": one.byte_count,
                "records": one.record_count,
                "commits": one.commit_count,
                "events_put": one.event_count,
            }
            for one in survey.segments
        ],
        "checkpoints": [
            {
                "name": one.path.name,
                "state": one.state.value,
                "position": one.position and one.position._asdict(),
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
            for damage in survey.damages
        ],
        "problems": report.problems,
        "sequences_affected": [list(lost) for lost in survey.contents.lost],
        "state": report.recovered and state_document(report.recovered),
    }


def state_document(recovered: Recovered) -> Document:
    """A channel's state for scripts."""
    return {
        "events": recovered.queue.event_count,
        "first_sequence": recovered.queue.first_sequence,
        "next_sequence": recovered.next_sequence,
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
        "checkpoint": recovered.checkpoint and recovered.checkpoint._asdict(),
    }


def detailed_state_document(recovered: Recovered) -> Document:
    """The same with each batch, producer and ended transaction."""
    document = state_document(recovered)
    document["batches"] = [
        {
            "first_sequence": batch.first_sequence,
            "count": batch.count,
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
        }
        for txn_id, outcome in recovered.ended.items()
    }
    return document


def report_lines(view: LogView, report: Report) -> Iterator[str]:
    """A report for people; what is wrong is told apart."""
    places, survey = view.places, report.survey
    yield f"Channel {places.name}: log {places.log_id.hex()} in {' and '.join(map(str, places.directories))}."
    for one in survey.segments:
        yield (
            f"  {one.name}: {_counted(one.record_count, 'record')}, {_counted(one.commit_count, 'commit')}, "
            f"{_counted(one.event_count, 'event')} put, {one.byte_count} bytes"
        )
    if view.torn_bytes:
        yield f"  {_counted(view.torn_bytes, 'byte')} behind the end, which a crash left or which are being written"
    for checkpoint in report.checkpoints:
        where = ""
        if checkpoint.position is not None and checkpoint.state is CheckpointState.GOOD:
            where = f", at byte {checkpoint.position.position} of segment {checkpoint.position.segment_id}"
        elif checkpoint.problem:
            where = f", {checkpoint.problem}"
        yield f"  {checkpoint.path.name}: {checkpoint.state.value}{where}"
    if survey.key_ids:
        yield f"  sealed with {_keys(survey.key_ids)}"


def summary(report: Report) -> str:
    """A report in a sentence."""
    survey = report.survey
    if report.is_good and not survey.is_opened:
        return f"Good as far as checksums tell; nothing was opened{_needed_keys(report)}."
    if report.is_good and report.recovered is not None:
        recovered = report.recovered
        return f"Good: {_counted(recovered.queue.event_count, 'event')}, next sequence {recovered.next_sequence}."
    parts = [f"Damaged: {_counted(len(report.sentences), 'problem')}"]
    if survey.contents.lost:
        ranges = [str(first) if first == last else f"{first} to {last}" for first, last in survey.contents.lost]
        parts.append(f"it concerns sequences {', '.join(ranges)}")
    if report.is_openable and report.recovered is not None:
        parts.append(f"a server opens the channel with {_counted(report.recovered.queue.event_count, 'event')}")
    elif survey.is_opened:
        parts.append("a server does not open the channel")
    return "; ".join(parts) + "."


def _needed_keys(report: Report) -> str:
    return f", for which {_keys(report.survey.key_ids)} would be needed" if report.survey.key_ids else ""


def _keys(key_ids: set[str]) -> str:
    return f"{'key' if len(key_ids) == 1 else 'keys'} {', '.join(sorted(key_ids))}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def record_line(document: Document) -> str:
    """A record, or damage, on one line."""
    place = f"{document['segment']}:{document['position']}"
    if "kind" not in document:
        return f"{place}  DAMAGED  {document['damage']}"
    flags = "+".join(document["flags"]).lower()
    place = f"{place}  {document['kind']}  number {document['write_number']}"
    parts = [place, f"synced up to {document['synced_position']}", _counted(document["payload_bytes"], "byte")]
    if flags:
        parts.append(f"{flags} {document.get('key_id', '')}".strip())
    if "damage" in document:
        return ", ".join(parts) + f"  DAMAGED  {document['damage']}"
    if "closed" in document:
        return ", ".join(parts) + f"  ({document['closed']})"
    return ", ".join(parts) + "  " + " ".join(f"{key}={_shown(value)}" for key, value in document["message"].items())


def _shown(value: Any) -> str:
    match value:
        case dict():
            return "{" + " ".join(f"{key}={_shown(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + " ".join(_shown(item) for item in value) + "]"
        case str():
            return ascii(value)
        case _:
            return str(value)
