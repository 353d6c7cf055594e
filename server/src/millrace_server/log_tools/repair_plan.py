"""Plans how a damaged channel can be opened again, and what that gives up.

- A damaged or stale checkpoint is removed; the log has everything that was in it.
- A damaged segment header is rebuilt, and bytes behind a segment's end are cut off; nothing is lost.
- Damage in front of everything that a good checkpoint needs is removed together with the segments up to there, which
  nothing needs any more.
- Otherwise the log is truncated at the damage. What lies behind is given up: its commits may build on what was lost.

A plan is tried on a read-only view before anything is changed.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from millrace_server.channels.recovery import Recovered
from millrace_server.log_tools.contents_check import Totals
from millrace_server.log_tools.layout import DamagedError, UnavailableError
from millrace_server.log_tools.scanning import LOSSLESS, Damage, DamageKind, LogScan
from millrace_server.log_tools.verify import CheckpointReport, CheckpointState, Report, differences, recover_from
from millrace_server.log_tools.view import LogView, SegmentView
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.format import SEGMENT_HEADER_BYTES, SegmentHeader
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.segments import LogCorruptError


@dataclass(slots=True)
class Plan:
    """The steps of a repair, in this order."""

    checkpoints: list[Path] = field(default_factory=list)
    """To be removed."""
    headers: dict[Path, bytes] = field(default_factory=dict)
    lengths: dict[Path, int] = field(default_factory=dict)
    """The new headers and lengths of segments."""
    segments: list[Path] = field(default_factory=list)
    """To be removed in this order, so that a crash leaves no new gap."""
    next_sequence: int = 1
    """The sequence that the next event put must get."""
    last_commit_time: int = 0
    """The latest time of a commit that anything mentions."""
    claim: pb.Claim | None = None
    """A claim that is given up. Its epoch must not be granted again."""
    has_log: bool = True
    """Whether any segment remains."""
    recovered: Recovered = field(default_factory=Recovered)
    """The channel as the server will find it."""
    steps: list[str] = field(default_factory=list)
    """A phrase for each step, with what it gives up."""

    @property
    def skips_sequences(self) -> bool:
        return self.next_sequence > self.recovered.next_sequence

    @property
    def needs_record(self) -> bool:
        return self.skips_sequences or self.claim is not None or not self.has_log


def make_plan(view: LogView, report: Report, codec: PayloadCodec) -> Plan:
    """Plans the repair of what a report says is wrong with a channel.

    Raises DamagedError if it cannot be repaired, or not without a decision, and UnavailableError if a payload cannot be
    decoded.
    """
    scan = report.scan
    _refuse_unclear(scan.damages)
    plan = Plan()
    loss = scan.first_loss
    _plan_lossless(view, scan, plan, loss)
    totals = Totals()
    if loss is not None and not _plan_removal_in_front(view, report, codec, plan):
        _plan_truncation(view, plan, loss)
        gone = zip(scan.contents.totals, scan.kept, strict=True)
        totals = Totals(*(whole - kept for whole, kept in gone))
    draft = _planned_view(view, plan)
    plan.has_log = bool(draft.segments)
    try:
        plan.recovered = recover_from(draft, codec, None)
    except LogCorruptError as error:
        raise DamagedError(
            f"the channel cannot be repaired: even without what is damaged it does not open: {error}"
        ) from None
    _choose_checkpoints(draft, report.checkpoints, codec, plan)
    _plan_record(report, plan)
    if plan.skips_sequences or any(totals):
        plan.steps.append(_loss_phrase(totals, plan))
    return plan


def _refuse_unclear(damages: Sequence[Damage]) -> None:
    for damage in damages:
        if damage.kind is DamageKind.UNDECODABLE:
            raise UnavailableError(
                f"{damage.sentence}; its checksum matches, so somebody has changed it: nothing is given up for that"
            )
        if damage.kind is DamageKind.FOREIGN:
            raise DamagedError(f"{damage.sentence}; move away what does not belong here, then start again")


def _plan_lossless(view: LogView, scan: LogScan, plan: Plan, loss: Damage | None) -> None:
    sizes = {segment.segment_id: segment.file.size() for segment in view.segments}
    for damage in scan.damages:
        is_kept = loss is None or damage.segment_id <= loss.segment_id
        if damage.kind not in LOSSLESS or not is_kept:
            continue
        segment = next(one for one in view.segments if one.segment_id == damage.segment_id)
        if damage.kind is DamageKind.TOO_LONG:
            sizes[segment.segment_id] = plan.lengths[segment.path] = damage.position
            plan.steps.append(f"cut {segment.path.name} to its {damage.position} bytes; nothing is given up")
        elif (first := view.scanner(segment).record_at(SEGMENT_HEADER_BYTES)) is not None:
            previous = sizes.get(segment.segment_id - 1, 0)
            header = SegmentHeader(view.layout.log_id, segment.segment_id, first.head.lsn, previous)
            plan.headers[segment.path] = header.encode()
            plan.steps.append(f"rewrite the header of {segment.path.name}; nothing is given up")


def _plan_removal_in_front(view: LogView, report: Report, codec: PayloadCodec, plan: Plan) -> bool:
    last_loss = max(damage.segment_id for damage in report.scan.damages if damage.kind not in LOSSLESS)
    ids = {segment.segment_id for segment in view.segments}
    for one in report.checkpoints:
        needed = one.first_needed_segment
        if one.state is not CheckpointState.GOOD or needed <= last_loss or needed not in ids:
            continue
        front = [segment for segment in view.segments if segment.segment_id < needed]
        trial = Plan(headers=plan.headers, lengths=plan.lengths, segments=[segment.path for segment in front])
        if not _why_unusable(_planned_view(view, trial), codec, one.path):
            plan.segments = trial.segments
            plan.steps.append(f"remove {_names(front)}, which nothing needs any more; nothing is given up")
            return True
    return False


def _why_unusable(view: LogView, codec: PayloadCodec, checkpoint: Path) -> str:
    """Returns why a valid checkpoint cannot be used; empty if it can."""
    try:
        differing = differences(recover_from(view, codec, None), recover_from(view, codec, checkpoint))
    except LogCorruptError:
        return "needs what is given up"
    return "contradicts the log" if differing else ""


def _plan_truncation(view: LogView, plan: Plan, loss: Damage) -> None:
    # A segment begins with a STATE, so one without a valid record cannot stay.
    keeps_part = loss.kind is not DamageKind.MISSING and loss.position > SEGMENT_HEADER_BYTES
    behind = [
        segment
        for segment in view.segments
        if segment.segment_id > loss.segment_id or (segment.segment_id == loss.segment_id and not keeps_part)
    ]
    plan.steps.append(f"end the log before its damage: {loss.sentence}")
    if keeps_part:
        segment = next(one for one in view.segments if one.segment_id == loss.segment_id)
        plan.lengths[segment.path] = loss.position
        plan.steps.append(f"cut {segment.path.name} to {loss.position} bytes")
    if behind:
        # The last one first: a crash in between leaves a shorter log, but no gap.
        plan.segments = [segment.path for segment in reversed(behind)]
        plan.steps.append(f"remove {_names(behind)}")
    for path in plan.segments:
        plan.headers.pop(path, None)
        plan.lengths.pop(path, None)


def _planned_view(view: LogView, plan: Plan) -> LogView:
    """Returns the channel as it will be after the plan."""
    segments: list[SegmentView] = []
    for segment in view.segments:
        if segment.path in plan.segments:
            continue
        file = segment.file.cut(plan.lengths.get(segment.path, segment.file.size()))
        if head := plan.headers.get(segment.path):
            file = file.with_head(head)
        segments.append(replace(segment, file=file))
    disk = view.disk.without(segment.path for segment in view.segments)
    disk = disk.with_files({segment.path: segment.file for segment in segments})
    return replace(view, disk=disk, segments=segments, torn_bytes=0, is_damaged=False, _opened=ExitStack())


def _choose_checkpoints(draft: LogView, reports: Sequence[CheckpointReport], codec: PayloadCodec, plan: Plan) -> None:
    for one in reports:
        if one.state is CheckpointState.MISSING:
            continue
        if why := one.problem or _why_unusable(draft, codec, one.path):
            plan.checkpoints.append(one.path)
            plan.steps.append(f"remove {one.path.name}, which {why}")


def _plan_record(report: Report, plan: Plan) -> None:
    contents = report.scan.contents
    states = [one.channel_state for one in report.checkpoints if one.channel_state is not None]
    for state in states:
        if state.HasField("claim"):
            contents.on_claim(state.claim)
    plan.next_sequence = max([contents.next_sequence_seen, *(state.next_sequence for state in states)])
    times = [contents.last_commit_time_seen, *(state.last_commit_time for state in states)]
    plan.last_commit_time = max(times)
    if report.scan.first_loss is not None:
        # The lost records may have assigned reserved sequences, so all of those are skipped.
        reserved = [contents.reserved_sequence_seen, *(state.reserved_sequence for state in states)]
        plan.next_sequence = max(plan.next_sequence, *reserved)
    kept_epoch = plan.recovered.claim.epoch if plan.recovered.claim else -1
    if contents.claim_seen is not None and contents.claim_seen.epoch > kept_epoch:
        plan.claim = contents.claim_seen
        plan.steps.append("keep the newest claim, so that its epoch is not granted again")


def _loss_phrase(totals: Totals, plan: Plan) -> str:
    what = f"give up {totals.commit_count} commits that can still be read, which put {totals.event_count} events and "
    parts = [what + f"took {totals.taken_count}, and whatever was damaged"]
    if plan.skips_sequences:
        first, last = plan.recovered.next_sequence, plan.next_sequence - 1
        parts.append(f"sequences {first} to {last} are gone and are not granted again")
    if totals.taken_count:
        parts.append("events that they took are delivered again, if they still exist")
    return "; ".join(parts)


def _names(segments: Sequence[SegmentView]) -> str:
    first, last = segments[0], segments[-1]
    return first.path.name if first is last else f"{first.path.name} to {last.path.name}"
