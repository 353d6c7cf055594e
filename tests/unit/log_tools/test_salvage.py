"""What is kept of a damaged log: each event whose record is intact; all others are named."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from millrace_server.channels.config import EncryptionConfig
from millrace_server.channels.stamps import Stamp
from millrace_server.wal.checkpoints import NEWEST
from tests.channel_events import append, begin_with_takes
from tests.unit.log_tools.kept_channels import NAME, flip, make_channel, open_channel, run, segments
from tests.unit.log_tools.known_channels import SMALL_MEMORY, Known, Spot, damage, known, members, salvaged


async def _single_events(base: Path) -> None:
    async with open_channel(base, segment_bytes_max=4_000) as channel:
        for number in range(60):
            await append(channel, b"%d" % number, stamp=Stamp("lone", number, number))
            if number % 7 == 6:
                txn_id = await begin_with_takes(channel, 3)
                await channel.transactions.commit([txn_id], None)


@pytest.fixture(scope="module", params=["batches", "runs", "encoded", "spillable"])
def before(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Known:
    """A channel of batches, one of lone events, which become runs; one compressed and encrypted; one with a memory."""
    base = tmp_path_factory.mktemp("salvage")
    if request.param == "runs":
        return known(base, _single_events)
    limits: dict[str, Any] = {}
    key_file = None
    if request.param == "encoded":
        key_file = base / "key"
        key_file.write_bytes(os.urandom(32))
        key_file.chmod(0o600)
        limits = {"encryption": EncryptionConfig(keys={"2026": key_file}, active_key="2026"), "compression": "zstd"}
    elif request.param == "spillable":
        limits = {"memory_capacity": 12, "memory_byte_capacity": 1 << 20}
    return Known(make_channel(base / "made", **limits), key_file, **limits)


SPOTS = st.tuples(st.integers(0, 150), st.one_of(st.integers(0, 200), st.sampled_from([0, 12, 31, 32])))
EACH = settings(
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    # It repeats a failure hundreds of times, which takes longer than all that comes before.
    phases=set(Phase) - {Phase.explain},
)
LAST_BYTE = 1 << 20


@EACH
@example(spot=(-1, LAST_BYTE), keeps_checkpoints=False)
@example(spot=(40, 0), keeps_checkpoints=False)
@given(spot=SPOTS, keeps_checkpoints=st.booleans())
def test_salvage_of_one_damage_keeps_each_intact_record_and_names_the_others(
    before: Known, tmp_path: Path, spot: Spot, *, keeps_checkpoints: bool
) -> None:
    """Exactly the events of damaged PUT records are lost; what may come back was taken by a damaged record."""
    damaged = damage(before, tmp_path / NAME, [spot], keeps_checkpoints=keeps_checkpoints)
    found, bodies = salvaged(tmp_path / NAME, before.codec)
    last = max(before.bodies)
    assert bodies.items() <= before.bodies.items()
    # A lost COMMIT can be inferred, but not which events a lost MEMORY_STATE had. Where sequences may have gaps, a
    # COMMIT cannot be inferred if its neighbour is lost, too.
    is_vague = bool(before.unlogged) and len(damaged) > 1
    for sequence in before.queued - bodies.keys():
        put, by = before.places[sequence]
        assert put in damaged or (by in damaged and (is_vague or by.kind == "KEEP"))
    # At the log's end nothing tells how many events a lost PUT had whose COMMIT is lost, too.
    lost = members(found.lost, last)
    assert before.queued - bodies.keys() <= lost <= (before.queued | before.unlogged) - bodies.keys()
    redelivered = members(found.redelivered, last)
    assert bodies.keys() - before.queued <= redelivered <= bodies.keys()
    assert not redelivered or len(damaged) > 1 or damaged[0].kind in {"TAKE", "COMMIT", "KEEP"}
    assert found.recovered.next_sequence > last


@EACH
@example(spots=[(-2, LAST_BYTE), (-1, LAST_BYTE)], keeps_checkpoints=False)
@example(spots=[(3, 0), (5, 0)], keeps_checkpoints=False)
@example(spots=[(1, 0), (3, 0), (39, 0)], keeps_checkpoints=False)
@example(spots=[(120, 31), (89, 66), (-2, LAST_BYTE), (-1, LAST_BYTE)], keeps_checkpoints=False)
@given(spots=st.lists(SPOTS, min_size=2, max_size=8), keeps_checkpoints=st.booleans())
def test_salvage_of_many_damages_loses_and_redelivers_nothing_unnamed(
    before: Known, tmp_path: Path, spots: list[Spot], *, keeps_checkpoints: bool
) -> None:
    """Whatever is hit, each event is kept with its sequence or named, and each that comes back is named."""
    damaged = damage(before, tmp_path / NAME, spots, keeps_checkpoints=keeps_checkpoints)
    found, bodies = salvaged(tmp_path / NAME, before.codec)
    last = max(before.bodies)
    lost = members(found.lost, last)
    assert bodies.items() <= before.bodies.items()
    assert before.queued <= bodies.keys() | lost
    assert not bodies.keys() & lost
    assert bodies.keys() - before.queued <= members(found.redelivered, last) <= bodies.keys()
    intact = {sequence for sequence in before.queued if not {*before.places[sequence]} & {*damaged}}
    assert bodies.keys() >= intact
    assert found.recovered.next_sequence > max(before.queued)


async def _claimed_first(base: Path, **limits: Any) -> None:
    async with open_channel(base, **limits) as channel:
        await channel.claim("reader", 30.0, takeover=False)
        await channel.claims.release("reader", None)
        for number in range(6):
            await append(channel, b"%d" % number, b"more")


def test_salvage_without_the_end_names_events_in_memory_behind_a_lost_claim(tmp_path: Path) -> None:
    """A step of the sequences that a reserve explains may have been events that a stop wrote, and that are lost now."""
    before = known(tmp_path, _claimed_first, **SMALL_MEMORY)
    assert {1, 2, 3, 4} <= before.queued & before.unlogged
    last_claim = max(index for index, record in enumerate(before.records) if record.kind == "CLAIM")
    last_put = max(index for index, record in enumerate(before.records) if record.kind == "PUT")
    at_end = range(last_put, len(before.records) - 1)
    home = tmp_path / NAME
    damage(before, home, [(index, 0) for index in [last_claim, *at_end]], keeps_checkpoints=False)
    found, bodies = salvaged(home, before.codec)
    assert before.queued - bodies.keys() <= members(found.lost, max(before.bodies))


async def _shortened(base: Path) -> None:
    """Makes a log whose first segments were removed, since their events were consumed."""
    limits: dict[str, Any] = {"backup_checkpoint": False, "segment_bytes_max": 400}
    async with open_channel(base, **limits) as channel:
        for number in range(10):
            await append(channel, b"%d" % number, b"more")
        await channel.transactions.commit([await begin_with_takes(channel, 20)], None)
    async with open_channel(base, **limits) as channel:
        for number in range(3):
            await append(channel, b"%d" % number, stamp=Stamp("lone", number, number))


@pytest.mark.parametrize("is_header_damaged", [False, True])
def test_salvage_of_a_shortened_log_gives_no_event_another_sequence(tmp_path: Path, *, is_header_damaged: bool) -> None:
    """Where nothing tells the sequences of readable events any more, they are lost, and named."""
    before = known(tmp_path, _shortened)
    assert before.records[0].message["next_sequence"] > 1
    commits = [index for index, record in enumerate(before.records) if record.kind == "COMMIT"]
    home = tmp_path / NAME
    damage(before, home, [(0, 0), *[(index, 0) for index in commits[:-1]]], keeps_checkpoints=False)
    if is_header_damaged:
        flip(home / before.records[0].segment.name, 20)
    found, bodies = salvaged(home, before.codec)
    assert bodies.items() <= before.bodies.items()
    assert before.queued - bodies.keys() <= members(found.lost, max(before.bodies))


def test_salvage_of_a_shortened_log_without_its_state_names_all_stamps_before_it(tmp_path: Path) -> None:
    """Only the lost STATE had them, and perhaps a claim."""
    before = known(tmp_path, _shortened)
    first = before.records[0].message["next_sequence"]
    damage(before, tmp_path / NAME, [(0, 0)], keeps_checkpoints=False)
    # Each of the others begins with a STATE that has them all.
    for segment in segments(tmp_path / NAME)[1:]:
        segment.unlink()
    found, bodies = salvaged(tmp_path / NAME, before.codec)
    assert bodies
    assert found.unstamped == [(1, first - 1)]
    assert found.is_doubtful


def test_salvage_of_a_mark_alone_names_as_many_as_the_lost_bytes_held(tmp_path: Path) -> None:
    """Even where the header is damaged, too, it is known how many bytes of records are missing."""
    before = known(tmp_path, _shortened)
    home = tmp_path / NAME
    every = range(len(before.records) - 1)
    damage(before, home, [(index, 0) for index in every], keeps_checkpoints=False)
    for segment in segments(home):
        flip(segment, 20)
    found, bodies = salvaged(home, before.codec)
    assert not bodies
    assert before.queued <= members(found.lost, max(before.bodies))


async def _rotated_beside_memory(base: Path, limits: dict[str, Any]) -> None:
    async with open_channel(base, **limits) as channel:
        await append(channel, b"in memory")
        for _ in range(10):
            await channel.claim("reader", 30.0, takeover=False)
            await channel.claims.release("reader", None)
        await append(channel, *[b"to the log"] * 10)


@pytest.mark.parametrize("is_beginning_lost", [False, True])
def test_salvage_of_a_shortened_log_names_events_in_memory_before_its_beginning(
    tmp_path: Path, *, is_beginning_lost: bool
) -> None:
    """Events in memory may be older than all that the log still has, and are written to its end by a stop."""
    limits = {"memory_capacity": 4, "memory_byte_capacity": 1 << 20, "segment_bytes_max": 400}
    asyncio.run(_rotated_beside_memory(tmp_path / "made", limits))
    before = Known(tmp_path / "made" / NAME)
    assert before.records[0].message["next_sequence"] == 2
    *_, put = (index for index, record in enumerate(before.records) if record.kind == "PUT")
    home = tmp_path / NAME
    beginning = [0] if is_beginning_lost else []
    damage(before, home, [(index, 0) for index in (*beginning, put, put + 1)], keeps_checkpoints=is_beginning_lost)
    if is_beginning_lost:
        # The previous one says what was in the log, and nothing of what was in memory.
        flip(home / NEWEST, 70)
        flip(segments(home)[0], 20)
    found, bodies = salvaged(home, before.codec)
    assert before.queued - bodies.keys() == {1}
    assert members(found.lost, 1) == {1}


async def _batches(base: Path) -> None:
    async with open_channel(base, segment_bytes_max=400) as channel:
        for number in range(12):
            await append(channel, *[b"%d" % number] * 10)


@pytest.mark.parametrize("is_header_damaged", [False, True])
def test_salvage_without_the_last_records_and_a_segment_names_what_both_had(
    tmp_path: Path, *, is_header_damaged: bool
) -> None:
    """A segment that is missing had about as many bytes as the next one states; no sequence is granted again."""
    before = known(tmp_path, _batches)
    *_, missing, last = segments(before.home)
    home = tmp_path / NAME
    at_end = [index for index, record in enumerate(before.records[:-1]) if record.segment == last]
    damage(before, home, [(index, 0) for index in at_end], keeps_checkpoints=False)
    (home / missing.name).unlink()
    if is_header_damaged:
        flip(home / last.name, 20)
    found, bodies = salvaged(home, before.codec)
    assert before.queued - bodies.keys() <= members(found.lost, max(before.bodies))
    assert found.recovered.next_sequence > max(before.queued)


async def _consumed_in_memory(base: Path, **limits: Any) -> None:
    async with open_channel(base, **limits) as channel:
        await append(channel, b"a", b"b", stamp=Stamp("lone", 0, 1))
        await channel.transactions.commit([await begin_with_takes(channel, 2)], None)
        for number in range(6):
            await append(channel, b"%d" % number)
        await channel.transactions.commit([await begin_with_takes(channel, 6)], None)


def test_salvage_without_the_last_memory_state_names_the_stamps_of_what_was_in_memory(tmp_path: Path) -> None:
    """No other record has them; the events were consumed, and are not lost."""
    before = known(tmp_path, _consumed_in_memory, **SMALL_MEMORY)
    last = max(index for index, record in enumerate(before.records) if record.kind == "KEEP")
    damage(before, tmp_path / NAME, [(last, 0)], keeps_checkpoints=False)
    found, _ = salvaged(tmp_path / NAME, before.codec)
    assert not dict(found.recovered.ledger.producers())
    assert {1, 2} <= members(found.unstamped, 2)


async def _half_consumed_in_memory(base: Path, **limits: Any) -> None:
    async with open_channel(base, **limits) as channel:
        await append(channel, b"a", b"b")
        await channel.transactions.commit([await begin_with_takes(channel, 1)], None)


def test_salvage_without_the_memory_state_of_what_a_stop_wrote_names_what_may_have_been_consumed(
    tmp_path: Path,
) -> None:
    """A stop writes a commit whole; only the lost record said which of its events were still in the channel."""
    before = known(tmp_path, _half_consumed_in_memory, **SMALL_MEMORY)
    assert before.queued == {2}
    stating = next(index for index, record in enumerate(before.records) if record.message.get("put_counts"))
    damage(before, tmp_path / NAME, [(stating, 0)], keeps_checkpoints=False)
    found, bodies = salvaged(tmp_path / NAME, before.codec)
    assert bodies.keys() == {1, 2}
    assert 1 in members(found.redelivered, 2)


async def _consumed_before_the_log(base: Path, **limits: Any) -> None:
    async with open_channel(base, **limits) as channel:
        await append(channel, b"in memory", stamp=Stamp("lone", 0, 0))
        for _ in range(10):
            await channel.claim("reader", 30.0, takeover=False)
            await channel.claims.release("reader", None)
        await append(channel, *[b"to the log"] * 10)
        await channel.transactions.commit([await begin_with_takes(channel, 1)], None)


def test_salvage_of_a_shortened_log_without_memory_states_names_the_stamps_of_what_was_in_memory(
    tmp_path: Path,
) -> None:
    """That events may have been in memory is known from the first STATE, which has a reserve."""
    before = known(tmp_path, _consumed_before_the_log, **SMALL_MEMORY, segment_bytes_max=400)
    stating = [
        index
        for index, record in enumerate(before.records)
        if record.kind == "KEEP" or (record.kind == "STATE" and "producers" in record.message)
    ]
    assert before.records[0].message["reserved_sequence"] > before.records[0].message["next_sequence"]
    damage(before, tmp_path / NAME, [(index, 0) for index in stating], keeps_checkpoints=False)
    found, _ = salvaged(tmp_path / NAME, before.codec)
    assert not dict(found.recovered.ledger.producers())
    assert 1 in members(found.unstamped, 1)


async def _consumed_between_logged(base: Path, **limits: Any) -> None:
    async with open_channel(base, **limits) as channel:
        for stamp in (None, Stamp("lone", 0, 1), None):
            events = [b"x"] * (2 if stamp else 5)
            await append(channel, *events, stamp=stamp)
            await channel.transactions.commit([await begin_with_takes(channel, len(events))], None)


def test_salvage_without_any_state_names_the_stamps_of_the_sequences_that_no_record_has(tmp_path: Path) -> None:
    """A gap between sequences where no record is missing is of events in memory, whatever reserve they had."""
    before = known(tmp_path, _consumed_between_logged, **SMALL_MEMORY)
    stating = [index for index, record in enumerate(before.records) if record.kind in {"STATE", "KEEP"}]
    damage(before, tmp_path / NAME, [(index, 0) for index in stating], keeps_checkpoints=False)
    found, _ = salvaged(tmp_path / NAME, before.codec)
    assert not dict(found.recovered.ledger.producers())
    assert {6, 7} <= members(found.unstamped, 7)


@pytest.mark.parametrize("is_end_intact", [False, True])
def test_salvage_of_a_log_without_any_sequence_says_that_it_counts_from_1(
    tmp_path: Path, *, is_end_intact: bool
) -> None:
    """The events are kept, with other sequences than before, and no stamp is."""
    before = known(tmp_path, _shortened)
    end = len(before.records) - 2 if is_end_intact else len(before.records)
    stating = [index for index, one in enumerate(before.records[:end]) if one.kind in {"STATE", "COMMIT"}]
    home = tmp_path / NAME
    damage(before, home, [(index, 0) for index in stating], keeps_checkpoints=False)
    document = json.loads(run("log", "repair", home, "--json").stdout)
    assert document["is_renumbered"] is not is_end_intact
    assert any("all stamps" in step for step in document["steps"]) is not is_end_intact


async def _stamped_in_memory(base: Path, **limits: Any) -> None:
    async with open_channel(base, **limits) as channel:
        await append(channel, b"a", b"b", stamp=Stamp("lone", 0, 1))


def test_salvage_without_the_last_memory_state_keeps_the_stamps_of_what_a_stop_wrote(tmp_path: Path) -> None:
    """The record that gives effect to the events has their stamps too."""
    before = known(tmp_path, _stamped_in_memory, **SMALL_MEMORY)
    last = max(index for index, record in enumerate(before.records) if record.kind == "KEEP")
    assert not before.records[last].message.get("put_counts")
    damage(before, tmp_path / NAME, [(last, 0)], keeps_checkpoints=False)
    found, bodies = salvaged(tmp_path / NAME, before.codec)
    assert bodies.keys() == {1, 2}
    assert dict(found.recovered.ledger.producers()).keys() == {"lone"}
