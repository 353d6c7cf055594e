"""What a damaged channel needs to open again, and what that gives up.

- A damaged or stale checkpoint goes; the log tells all that it told.
- A damaged segment header, and bytes behind a segment's end, are mended; nothing goes.
- Damage that lies before all that a good checkpoint needs goes together with the segments up to there, which hold
  nothing any more.
- Otherwise the log ends at the damage. What lies behind is given up: its commits may build on what was lost.

A plan is tried on a view before anything is changed.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from millrace_server.channels.recovery import Recovered
from millrace_server.log_tools.contents_check import Totals
from millrace_server.log_tools.errors import DamagedError, UnavailableError
from millrace_server.log_tools.survey import MENDABLE, Damage, DamageKind, Survey
from millrace_server.log_tools.verifying import CheckpointReport, CheckpointState, Report, differences, recover_from
from millrace_server.log_tools.view import LogView, ViewedSegment
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.format import SEGMENT_HEADER_BYTES, SegmentHeader
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.segments import LogCorruptError


@dataclass(slots=True)
class Plan:
    """What is to be done, in this order."""

    checkpoints: list[Path] = field(default_factory=list)
    """These go."""
    headers: dict[Path, bytes] = field(default_factory=dict)
    """These segments get these first bytes."""
    lengths: dict[Path, int] = field(default_factory=dict)
    """These segments are cut to these lengths."""
    segments: list[Path] = field(default_factory=list)
    """These go, in this order, so that a crash leaves no new gap."""
    next_sequence: int = 1
    """The sequence that the next event put is to get."""
    claim: pb.Claim | None = None
    """A claim that was given up; its epoch must not be granted again."""
    has_log: bool = True
    """Whether anything is left of the log."""
    recovered: Recovered = field(default_factory=Recovered)
    """The channel as it is found then."""
    steps: list[str] = field(default_factory=list)
    """All that is done, a phrase each, with what it gives up."""

    @property
    def skips_sequences(self) -> bool:
        """Whether sequences were given up."""
        return self.next_sequence > self.recovered.next_sequence

    @property
    def needs_record(self) -> bool:
        """Whether something must be written to the log."""
        return self.skips_sequences or self.claim is not None or not self.has_log


def make_plan(view: LogView, report: Report, codec: PayloadCodec) -> Plan:
    """Decides what a channel needs.

    Args:
        view: The channel.
        report: What is wrong with it.
        codec: Opens payloads.

    Raises:
        DamagedError: It cannot be repaired, or not without a decision.
        UnavailableError: What does not open may need another key.
    """
    survey = report.survey
    _refuse_unclear(survey.damages)
    plan = Plan()
    loss = survey.first_loss
    _mend(view, survey, plan, loss)
    totals = Totals()
    if loss is not None and not _drop_front(view, report, codec, plan):
        _cut(view, plan, loss)
        gone = zip(survey.contents.totals, survey.kept, strict=True)
        totals = Totals(*(whole - kept for whole, kept in gone))
    draft = _drafted(view, plan)
    plan.has_log = bool(draft.segments)
    try:
        plan.recovered = recover_from(draft, codec, None)
    except LogCorruptError as error:
        raise DamagedError(
            f"the channel cannot be repaired: even without what is damaged it does not open: {error}"
        ) from None
    _choose_checkpoints(draft, report.checkpoints, codec, plan)
    _note_what_was_seen(report, plan)
    if plan.skips_sequences or any(totals):
        plan.steps.append(_given_up(totals, plan))
    return plan


def _refuse_unclear(damages: Sequence[Damage]) -> None:
    for damage in damages:
        if damage.kind is DamageKind.SEALED:
            raise UnavailableError(
                f"{damage.sentence}; its checksum is right, so the key that was given is most likely another one: "
                "nothing is given up for that"
            )
        if damage.kind is DamageKind.FOREIGN:
            raise DamagedError(f"{damage.sentence}; move away what does not belong here, then begin again")


def _mend(view: LogView, survey: Survey, plan: Plan, loss: Damage | None) -> None:
    sizes = {segment.segment_id: segment.file.size() for segment in view.segments}
    for damage in survey.damages:
        is_kept = loss is None or damage.segment_id <= loss.segment_id
        if damage.kind not in MENDABLE or not is_kept:
            continue
        segment = next(one for one in view.segments if one.segment_id == damage.segment_id)
        if damage.kind is DamageKind.TOO_LONG:
            sizes[segment.segment_id] = plan.lengths[segment.path] = damage.position
            plan.steps.append(f"cut {segment.path.name} to its {damage.position} bytes; nothing is given up")
        elif (first := view.walker(segment).record_at(SEGMENT_HEADER_BYTES)) is not None:
            previous = sizes.get(segment.segment_id - 1, 0)
            header = SegmentHeader(view.places.log_id, segment.segment_id, first.head.write_number, previous)
            plan.headers[segment.path] = header.encode()
            plan.steps.append(f"write the header of {segment.path.name} anew; nothing is given up")


def _drop_front(view: LogView, report: Report, codec: PayloadCodec, plan: Plan) -> bool:
    """Drops the damage with the segments up to it, where nothing needs them."""
    last_loss = max(damage.segment_id for damage in report.survey.damages if damage.kind not in MENDABLE)
    there = {segment.segment_id for segment in view.segments}
    for one in report.checkpoints:
        needed = one.first_needed_segment
        if one.state is not CheckpointState.GOOD or needed <= last_loss or needed not in there:
            continue
        front = [segment for segment in view.segments if segment.segment_id < needed]
        trial = Plan(headers=plan.headers, lengths=plan.lengths, segments=[segment.path for segment in front])
        if not _why_useless(_drafted(view, trial), codec, one.path):
            plan.segments = trial.segments
            plan.steps.append(f"remove {_named(front)}, which nothing needs any more; nothing is given up")
            return True
    return False


def _why_useless(view: LogView, codec: PayloadCodec, checkpoint: Path) -> str:
    """Why a checkpoint that holds together is good for nothing; empty where it is."""
    try:
        differing = differences(recover_from(view, codec, None), recover_from(view, codec, checkpoint))
    except LogCorruptError:
        return "needs what is given up"
    return "tells of another channel than the log" if differing else ""


def _cut(view: LogView, plan: Plan, loss: Damage) -> None:
    # A segment begins with a STATE, so one without a good record cannot stay.
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
        # The last first: the log gets shorter, and has no gap.
        plan.segments = [segment.path for segment in reversed(behind)]
        plan.steps.append(f"remove {_named(behind)}")
    for path in plan.segments:
        plan.headers.pop(path, None)
        plan.lengths.pop(path, None)


def _drafted(view: LogView, plan: Plan) -> LogView:
    """The channel as the plan leaves it."""
    segments: list[ViewedSegment] = []
    for segment in view.segments:
        if segment.path in plan.segments:
            continue
        file = segment.file.cut(plan.lengths.get(segment.path, segment.file.size()))
        if head := plan.headers.get(segment.path):
            file = file.with_head(head)
        segments.append(replace(segment, file=file))
    disk = view.disk.without(segment.path for segment in view.segments)
    disk = disk.with_files({segment.path: segment.file for segment in segments})
    return replace(view, disk=disk, segments=segments, torn_bytes=0, is_rotten=False, _opened=ExitStack())


def _choose_checkpoints(draft: LogView, reports: Sequence[CheckpointReport], codec: PayloadCodec, plan: Plan) -> None:
    """Keeps the checkpoints that tell what the log tells."""
    for one in reports:
        if one.state is CheckpointState.MISSING:
            continue
        if why := one.problem or _why_useless(draft, codec, one.path):
            plan.checkpoints.append(one.path)
            plan.steps.append(f"remove {one.path.name}, which {why}")


def _note_what_was_seen(report: Report, plan: Plan) -> None:
    contents = report.survey.contents
    states = [one.channel_state for one in report.checkpoints if one.channel_state is not None]
    for state in states:
        if state.HasField("claim"):
            contents.see_claim(state.claim)
    plan.next_sequence = max([contents.next_sequence_seen, *(state.next_sequence for state in states)])
    if report.survey.first_loss is not None:
        # What is lost may be what said that the reserve was not used.
        reserved = [contents.reserved_sequence_seen, *(state.reserved_sequence for state in states)]
        plan.next_sequence = max(plan.next_sequence, *reserved)
    kept_epoch = plan.recovered.claim.epoch if plan.recovered.claim else -1
    if contents.claim_seen is not None and contents.claim_seen.epoch > kept_epoch:
        plan.claim = contents.claim_seen
        plan.steps.append("keep the newest claim, so that its epoch is not granted again")


def _given_up(totals: Totals, plan: Plan) -> str:
    what = f"give up {totals.commit_count} commits that can still be read, which put {totals.event_count} events and "
    parts = [what + f"took {totals.taken_count}, and whatever was damaged"]
    if plan.skips_sequences:
        first, last = plan.recovered.next_sequence, plan.next_sequence - 1
        parts.append(f"sequences {first} to {last} are gone and are not granted again")
    if totals.taken_count:
        parts.append("events that they took are delivered once more, where they are still there")
    return "; ".join(parts)


def _named(segments: Sequence[ViewedSegment]) -> str:
    first, last = segments[0], segments[-1]
    return first.path.name if first is last else f"{first.path.name} to {last.path.name}"
