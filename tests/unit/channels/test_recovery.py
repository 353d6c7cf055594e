import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from millrace_server.channels.commit import Receipt
from millrace_server.channels.committer import ClaimRecord
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.recovery import ReplayProgress
from millrace_server.channels.stamps import Stamp
from millrace_server.channels.transaction import Outcome, TxnState
from millrace_server.errors import ForbiddenError, LeaseExpiredError
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.checkpoints import NEWEST, PREVIOUS
from millrace_server.wal.format import Kind
from millrace_server.wal.records import Record, Submission
from millrace_server.wal.segments import LogCorruptError
from tests.channel_events import (
    append,
    begin,
    begin_with_puts,
    begin_with_takes,
    bodies_of,
    check_accounts,
    numbered,
    queued,
    stored,
    take,
)
from tests.file_channels import DATA, FileChannel, durable_state_on, file_channel, opened_log, recovered_from
from tests.simulated_disk import SimulatedDisk

HAS_THREADS = True


async def write(disk: SimulatedDisk, *groups: Sequence[Record]) -> None:
    """Writes segments with these records each, also such as no server would write."""
    with opened_log(disk) as log:
        for records in groups:
            done = asyncio.get_running_loop().create_future()
            log.submit(
                records,
                needs_sync=True,
                begins_segment=True,
                done=partial(_respond, done),
            )
            assert await done is None


def _respond(done: "asyncio.Future[Exception | None]", _submission: Submission, error: Exception | None) -> None:
    done.set_result(error)


def state(next_sequence: int = 1, reserved_sequence: int = 0) -> Record:
    message = pb.State(next_sequence=next_sequence, reserved_sequence=reserved_sequence)
    return Kind.STATE, [message.SerializeToString()]


def keep(
    next_sequence: int, *puts: Sequence[bytes], reserved_sequence: int = 0, kept: Sequence[tuple[int, int, int]] = ()
) -> Record:
    """With the kept events as (sequence, index of the put, index in it)."""
    message = pb.MemoryState(
        state=pb.State(next_sequence=next_sequence, reserved_sequence=reserved_sequence),
        put_counts=[len(bodies) for bodies in puts],
        put_body_bytes=[len(b"".join(bodies)) for bodies in puts],
        put_raw_bytes=[len(stored(*bodies).raw) for bodies in puts],
        first_sequences=[sequence for sequence, _, _ in kept],
        put_indexes=[index for _, index, _ in kept],
        starts=[start for _, _, start in kept],
        stops=[start + 1 for _, _, start in kept],
        body_bytes=[len(puts[index][start]) for _, index, start in kept],
    )
    return Kind.MEMORY_STATE, [message.SerializeToString()]


def put(*bodies: bytes) -> Record:
    return Kind.PUT, [stored(*bodies).raw]


def taking(first_sequence: int, *bodies: bytes) -> Record:
    take = pb.Take(first_sequences=[first_sequence], counts=[len(bodies)], body_bytes=[len(b"".join(bodies))])
    return Kind.TAKE, [take.SerializeToString()]


def commit(first_sequence: int, *puts: Sequence[bytes], take_records: int = 0) -> Record:
    message = pb.Commit(
        first_sequence=first_sequence,
        put_counts=[len(bodies) for bodies in puts],
        put_body_bytes=[len(b"".join(bodies)) for bodies in puts],
        put_raw_bytes=[len(stored(*bodies).raw) for bodies in puts],
        take_records=take_records,
    )
    return Kind.COMMIT, [message.SerializeToString()]


async def test_recover_of_nothing_is_a_new_channel(disk: SimulatedDisk) -> None:
    """The first sequence is 1."""
    recovered = recovered_from(disk)
    assert (recovered.next_sequence, recovered.queue.event_count, len(recovered.ledger)) == (1, 0, 0)
    assert (recovered.claim, recovered.checkpoint, recovered.first_needed_segment) == (None, None, 0)
    assert recovered.replayed_records == 0


async def test_recover_of_puts_without_their_commit_knows_nothing_of_them(disk: SimulatedDisk) -> None:
    """After a crash only some of a commit's records may exist; the next commit's follow them."""
    await write(disk, [state(), put(b"lost"), taking(1, b"x"), put(b"a"), commit(1, [b"a"])])
    recovered = recovered_from(disk)
    assert numbered(recovered.queue) == [(1, b"a")]
    assert recovered.next_sequence == 2


async def test_recover_of_takes_finds_what_is_left(disk: SimulatedDisk) -> None:
    """The takes are at the front, in the middle and at the end; takes from deleted segments are ignored."""
    bodies = [b"a", b"bb", b"ccc", b"dddd", b"eeeee"]
    await write(
        disk,
        [
            state(10),
            put(*bodies),
            commit(10, bodies),
            taking(12, b"ccc"),
            commit(15, take_records=1),
            taking(10, b"a"),
            taking(14, b"eeeee"),
            taking(3, b"long ago"),
            commit(15, take_records=3),
        ],
    )
    recovered = recovered_from(disk)
    assert numbered(recovered.queue) == [(11, b"bb"), (13, b"dddd")]
    assert [batch.window.body_bytes for batch in recovered.queue] == [2, 4]
    assert (recovered.queue.event_count, recovered.next_sequence) == (2, 15)


async def test_recover_continues_behind_sequences_that_were_reserved(disk: SimulatedDisk) -> None:
    """Events in memory may have had these sequences, so recovery continues after all reserved ones."""
    await write(disk, [state(1, 10), put(b"a"), commit(4, [b"a"]), keep(7, reserved_sequence=20)], [state(9, 25)])
    recovered = recovered_from(disk)
    assert numbered(recovered.queue) == [(4, b"a")]
    assert recovered.next_sequence == 25


async def test_recover_behind_a_reserve_that_was_taken_back_skips_nothing(disk: SimulatedDisk) -> None:
    """A server that stopped gracefully knew which sequences were assigned."""
    await write(disk, [state(1, 10), keep(7), put(b"a"), commit(7, [b"a"])])
    assert recovered_from(disk).next_sequence == 8


async def test_recover_of_what_was_kept_finds_it_in_its_place(disk: SimulatedDisk) -> None:
    """Kept events are placed between and before those of the log, including parts of a request."""
    await write(
        disk,
        [
            state(1, 100),
            put(b"d"),
            commit(4, [b"d"]),
            put(b"lost"),
            put(b"a", b"b", b"c"),
            put(b"e"),
            keep(9, [b"a", b"b", b"c"], [b"e"], kept=[(1, 0, 0), (3, 0, 2), (5, 1, 0)]),
            taking(3, b"c"),
            commit(9, take_records=1),
        ],
    )
    recovered = recovered_from(disk)
    assert numbered(recovered.queue) == [(1, b"a"), (4, b"d"), (5, b"e")]
    assert (recovered.queue.event_count, recovered.next_sequence) == (3, 9)


@pytest.mark.parametrize(
    ("segments", "complaint"),
    [
        ([[state(), commit(1, [b"a"])]], "it has 1 puts; before it lie 0"),
        ([[state(), commit(1, take_records=1)]], "it has 1 takes; before it lie 0"),
        ([[state(), put(b"a"), commit(2, [b"a"])]], "its first sequence is 2; those before it lead to 1"),
        ([[state()], [state(2)]], "segment 2: the record at byte .* says that the next sequence is 2"),
        ([[state(), keep(2)]], "the next sequence is 2; those before it lead to 1"),
        ([[state(), keep(1, [b"a"], kept=[(1, 0, 0)])]], "it has 1 puts; before it lie 0"),
        ([[state(5), keep(4)]], "the next sequence is 4"),
        ([[state(1, 10), put(b"a"), commit(11, [b"a"])]], "its first sequence is 11"),
        ([[state(1, 10), keep(1), put(b"a"), commit(2, [b"a"])]], "its first sequence is 2"),
        ([[state(1, 10)], [state(11)]], "segment 2: the record at byte .* says that the next sequence is 11"),
    ],
)
async def test_recover_of_records_that_contradict_each_other_is_refused(
    disk: SimulatedDisk, segments: list[list[Record]], complaint: str
) -> None:
    """Complete records that no server can have written in this order are damage, reported with their position."""
    await write(disk, *segments)
    with pytest.raises(LogCorruptError, match=complaint):
        recovered_from(disk)


async def test_recover_without_settling_changes_nothing(disk: SimulatedDisk) -> None:
    """Programs that only inspect a log recover it so."""
    async with file_channel(disk) as opened:
        await append(opened.channel, b"a")
        killed = disk.copy()
    before = killed.fingerprint()
    assert bodies_of(recovered_from(killed, read_only=True).queue) == [b"a"]
    assert killed.fingerprint() == before


async def test_recover_reports_how_far_it_is(disk: SimulatedDisk) -> None:
    """The progress counts the bytes of records to read; those before a checkpoint are not included."""
    async with file_channel(disk) as opened:
        await append(opened.channel, b"x" * 10_000)
        await opened.checkpointing.make()
        for _ in range(5):
            await append(opened.channel, b"x" * 100)
        killed = disk.copy()
    progress = ReplayProgress()
    recovered = recovered_from(killed, progress)
    assert progress.bytes_done == recovered.replayed_bytes > 500
    assert progress.bytes_done <= progress.bytes_total < 10_000


async def make_history(opened: FileChannel) -> None:
    """A history with everything that must survive."""
    channel = opened.channel
    await append(channel, b"a", b"bb", b"ccc", stamp=Stamp("p", 1, 3))
    await append(channel, b"ccc", b"dddd", stamp=Stamp("p", 3, 4))
    middle, first = await begin_with_takes(channel, 1), await begin_with_takes(channel, 1)
    channel.transactions.rollback(middle)
    channel.transactions.put(first, [stored(b"e"), stored(b"f", b"g")], None)
    await channel.transactions.commit([first, begin_with_puts(channel, b"h")], Stamp("q", 7, 7))
    begin(channel, "expires", lease_seconds=0.01)
    await asyncio.sleep(0.05)
    await opened.checkpointing.make()
    delivery = await channel.deliveries.deliver(TakeLimits(events_max=2))
    settling = channel.deliveries.settle(delivery)
    assert settling is not None
    await settling
    await channel.claim("r", 3600, takeover=False)
    await channel.claims.acknowledge("r", None, 4)
    await channel.claims.release("r", None)
    await append(channel, b"i" * 900)
    await opened.checkpointing.make()
    await channel.claim("s", 3600, takeover=False)
    await append(channel, b"j" * 900, stamp=Stamp("q", 8, 8, owner="web"))
    await channel.transactions.commit([begin(channel, "empty")], None)


def leave_all(_disk: SimulatedDisk) -> None:
    """Leaves both checkpoints valid."""


def damage_newest(disk: SimulatedDisk) -> None:
    """Makes replay start at the previous checkpoint."""
    content = bytearray(disk.content(DATA / NEWEST))
    content[-1] ^= 1
    disk.set_content(DATA / NEWEST, content)


def remove_both(disk: SimulatedDisk) -> None:
    """Makes replay start at the beginning of the log."""
    for path in disk.paths():
        if path.name in {NEWEST, PREVIOUS}:
            disk.remove(path)


@pytest.mark.parametrize("damage", [leave_all, damage_newest, remove_both])
@pytest.mark.parametrize("segment_bytes_max", [1 << 30, 1000])
async def test_recover_of_any_checkpoint_and_the_log_is_the_same_channel(
    disk: SimulatedDisk, damage: Callable[[SimulatedDisk], None], segment_bytes_max: int
) -> None:
    """Events, sequences, stamps, ended transactions and the claim do not depend on where replay starts."""
    async with file_channel(disk, segment_bytes_max=segment_bytes_max) as opened:
        await make_history(opened)
        durable_state, killed = opened.durable_state(), disk.copy()
    assert [sequence for sequence, _ in durable_state.events] == [5, 6, 7, 8, 9, 10]
    assert durable_state.stamps == {"p": [(1, 4)], "q": [(7, 8)]}
    assert durable_state.claim == ClaimRecord("s", 2, 3600)
    assert Outcome(TxnState.EXPIRED) in durable_state.ended.values()
    damage(killed)
    assert await durable_state_on(killed) == durable_state
    async with file_channel(killed) as found:
        check_accounts(found.channel)
        assert await append(found.channel, b"j", stamp=Stamp("q", 8, 8)) == Receipt(0, 0, is_deduplicated=True)
        with pytest.raises(ForbiddenError):
            await append(found.channel, b"j", stamp=Stamp("q", 8, 8, owner="other"))
        assert (await append(found.channel, b"k")).first_sequence == 11


async def test_recover_ends_what_was_open_and_keeps_how_the_rest_ended(disk: SimulatedDisk) -> None:
    """Taken events return to their places; repeats of commits and rollbacks get their responses."""
    async with file_channel(disk) as opened:
        channel = opened.channel
        await append(channel, b"a", b"b", b"c")
        done = begin_with_puts(channel, b"d")
        await channel.transactions.commit([done], None)
        rolled_back = begin(channel)
        channel.transactions.rollback(rolled_back)
        begin(channel, "expired", lease_seconds=0.01)
        await asyncio.sleep(0.05)
        await begin_with_takes(channel, 2)
        begin_with_puts(channel, b"never")
        await append(channel, b"e")
        killed = disk.copy()
    async with file_channel(killed) as found:
        channel = found.channel
        assert queued(channel) == [b"a", b"b", b"c", b"d", b"e"]
        assert channel.open_transactions == 0
        assert await channel.transactions.commit([done], None) == Receipt(4, 4)
        channel.transactions.rollback(rolled_back)
        with pytest.raises(LeaseExpiredError):
            channel.transactions.renew("expired")


async def test_recover_of_a_live_claim_grants_it_a_full_lease(disk: SimulatedDisk) -> None:
    """Its reader continues with its epoch; later readers get later epochs."""
    async with file_channel(disk) as opened:
        await append(opened.channel, b"a", b"b")
        assert (await opened.channel.claim("r", 100, takeover=False)).epoch == 1
        await opened.channel.claims.acknowledge("r", 1, 1)
        killed = disk.copy()
    async with file_channel(killed) as found:
        claims = found.channel.claims
        assert claims.claim is not None
        assert claims.claim.lease.seconds == 100
        assert [bodies_of([batch]) async for batch in claims.read("r", 1, 0, 0)] == [[b"b"]]
        await claims.release("r", 1)
        assert (await found.channel.claim("other", None, takeover=False)).epoch == 2
        killed = killed.copy()
    async with file_channel(killed) as found:
        await found.channel.claims.release("other", 2)
        await append(found.channel, b"c")
        killed = killed.copy()
    async with file_channel(killed) as found:
        assert found.channel.claims.claim is None
        assert (await found.channel.claim("r", None, takeover=False)).epoch == 3


async def test_recover_of_a_newest_checkpoint_whose_segment_is_missing_is_refused(disk: SimulatedDisk) -> None:
    """Events may be missing; a checkpoint before the newest that is older than the log is ignored."""
    async with file_channel(disk, segment_bytes_max=300, backup_checkpoint=False) as opened:
        await append(opened.channel, b"a" * 300)
        await opened.checkpointing.make()
        old = disk.content(DATA / NEWEST)
        await append(opened.channel, b"b" * 300)
        await opened.channel.purge()
        await append(opened.channel, b"c" * 300)
        await opened.checkpointing.make()
        assert opened.log.first_segment_id > 1
        durable_state, killed = opened.durable_state(), disk.copy()
    killed.set_content(DATA / PREVIOUS, old)
    assert await durable_state_on(killed.copy()) == durable_state
    killed.unlink(DATA / NEWEST)
    assert await durable_state_on(killed.copy()) == durable_state
    killed.set_content(DATA / NEWEST, old)
    with pytest.raises(LogCorruptError, match="missing"):
        recovered_from(killed)


async def test_recover_of_a_checkpoint_that_needs_a_segment_that_is_missing_is_refused(disk: SimulatedDisk) -> None:
    """This holds even if replay itself starts after that segment."""
    async with file_channel(disk, segment_bytes_max=300) as opened:
        for body in (b"a", b"b"):
            await append(opened.channel, body * 300)
        await opened.checkpointing.make()
        killed = disk.copy()
    killed.unlink(DATA / "segment-000000000001.log")
    with pytest.raises(LogCorruptError, match="segment 1, which holds events of a checkpoint, is missing"):
        recovered_from(killed)


async def test_recover_of_a_log_that_is_damaged_behind_the_checkpoint_is_refused(disk: SimulatedDisk) -> None:
    """The previous checkpoint does not help."""
    async with file_channel(disk) as opened:
        await opened.checkpointing.make()
        await append(opened.channel, b"damaged")
        await append(opened.channel, b"b")
        killed = disk.copy()
    path = DATA / "segment-000000000001.log"
    content = bytearray(killed.content(path))
    content[content.index(b"damaged")] ^= 1
    killed.set_content(path, content)
    with pytest.raises(LogCorruptError):
        recovered_from(killed)


async def test_recover_of_what_a_transaction_held_at_the_checkpoint_finds_it_taken_as_a_whole(
    disk: SimulatedDisk,
) -> None:
    """When the events are returned, they are one batch again, which matches the log's record of a later take."""
    async with file_channel(disk) as opened:
        channel = opened.channel
        await append(channel, b"a", b"bb", b"ccc", b"dddd")
        first, second = await begin_with_takes(channel, 1), await begin_with_takes(channel, 2)
        await opened.checkpointing.make()
        channel.transactions.rollback(second)
        channel.transactions.rollback(first)
        txn_id = begin(channel)
        assert len(await take(channel, txn_id, 3)) == 3
        await channel.transactions.commit([txn_id], None)
        durable_state, killed = opened.durable_state(), disk.copy()
    assert durable_state.events == [(4, b"dddd")]
    assert await durable_state_on(killed) == durable_state


@pytest.mark.parametrize("seed", range(15))
async def test_recover_at_any_moment_of_a_random_history_is_the_same_channel(disk: SimulatedDisk, seed: int) -> None:
    """This holds for events put, taken, returned and removed in any parts, with checkpoints and several segments."""
    chance = random.Random(seed)
    limits: dict[str, Any] = {
        "segment_bytes_max": chance.choice([300, 2000, 1 << 30]),
        "backup_checkpoint": chance.random() < 0.7,
    }
    opened = await FileChannel.opened(disk, **limits)
    for _ in range(8):
        for _ in range(chance.randrange(12)):
            await make_change(opened, chance)
        # Rollbacks are acknowledged before they are written.
        await opened.journal.snapshot()
        durable_state, killed = opened.durable_state(), disk.copy()
        check_accounts(opened.channel)
        await opened.close()
        chance.choice([leave_all, damage_newest_if_any, remove_both])(killed)
        disk = killed
        opened = await FileChannel.opened(disk, **limits)
        assert opened.durable_state() == durable_state
    await opened.close()


def damage_newest_if_any(disk: SimulatedDisk) -> None:
    if DATA / PREVIOUS in disk.paths():
        damage_newest(disk)


async def make_change(opened: FileChannel, chance: random.Random) -> None:
    channel = opened.channel
    opened_ids = list(channel.transactions._open)
    txn_id = chance.choice(opened_ids) if opened_ids else begin(channel)
    match chance.randrange(9):
        case 0 | 1:
            first = chance.randrange(20)
            bodies = [b"x" * chance.randrange(40) for _ in range(chance.randint(1, 6))]
            stamp = Stamp(chance.choice("pq"), first, first + len(bodies) - 1)
            await append(channel, *bodies, stamp=chance.choice([stamp, None]))
        case 2:
            channel.transactions.put(txn_id, [stored(*[b"y" * chance.randrange(9)] * chance.randint(1, 3))], None)
        case 3 | 4:
            await take(channel, txn_id, chance.randint(1, 4))
            begin(channel)
        case 5:
            await channel.transactions.commit(
                chance.sample(opened_ids, chance.randint(0, len(opened_ids))) or [txn_id], None
            )
        case 6:
            channel.transactions.rollback(txn_id)
        case 7:
            await opened.checkpointing.make()
        case 8 if not channel._contents.taken_count:
            claim = await channel.claim("r", 3600, takeover=False)
            through = min(channel._contents.first_sequence + chance.randrange(3), channel._contents.next_sequence - 1)
            await channel.claims.acknowledge("r", claim.epoch, through)
            await channel.claims.release("r", claim.epoch)
