"""Leases on channels: who takes them when, on a virtual clock, in a bucket that can be cut off."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from millrace_server.replication import owner_entries
from millrace_server.replication.lease import LeaseLostError
from millrace_server.replication.owner_entries import (
    EntriesUnavailableError,
    Holder,
    channel_key,
    session_key,
)
from tests.unit.replication.shared_bucket import LEASE_SECONDS, RENEW_SECONDS, SharedBucket, SharingServer
from tests.virtual_clock import now, settle, started

HAS_VIRTUAL_CLOCK = True


@pytest.fixture
def bucket() -> SharedBucket:
    """A bucket without entries."""
    return SharedBucket()


@pytest.fixture
async def servers(bucket: SharedBucket) -> AsyncIterator[tuple[SharingServer, SharingServer]]:
    """Two servers, a and b."""
    one, other = bucket.server("a"), bucket.server("b")
    await settle()
    yield one, other
    await one.stop()
    await other.stop()


Two = tuple[SharingServer, SharingServer]


async def test_lease_that_is_free_is_taken_at_once_and_kept(servers: Two) -> None:
    """Others stand by as long as its server lives, and know its address and the epoch."""
    one, other = (server.lease() for server in servers)
    await one.acquire()
    assert one.entry.epoch == 0
    await one.confirm(7)
    waiting = await started(other.acquire())
    await asyncio.sleep(10 * LEASE_SECONDS)
    assert (one.is_current, other.is_current, waiting.is_done) == (True, False, False)
    assert other.owner is not None
    assert (other.owner.address, other.owner.epoch) == ("a:7070", 7)
    waiting.cancel()


async def test_release_hands_over_at_once_with_the_epoch(servers: Two) -> None:
    """The next owner need not wait, and learns the newest epoch."""
    one, other = (server.lease() for server in servers)
    await one.acquire()
    await one.confirm(7)
    waiting = await started(other.acquire())
    began_at = now()
    await one.release()
    await waiting.result()
    assert (now(), one.is_current, other.is_current, other.entry.epoch) == (began_at, False, True, 7)
    await settle()
    assert one.owner == other.owner
    await other.release()
    assert other.owner is None


async def test_note_is_kept_by_later_owners_until_the_channel_is_deleted(servers: Two) -> None:
    """Each of them must find at least that much in the stream, also one that has noted nothing itself."""
    one, other = (server.lease() for server in servers)
    await one.acquire()
    await one.confirm(7)
    await one.note(9)
    await one.note(8)
    await settle()
    assert other.entry.sequence_known == 9
    await one.release(last_sequence=12)
    await other.acquire()
    assert (other.entry.epoch, other.entry.sequence_known) == (7, 12)
    await other.confirm(14)
    assert other.entry.sequence_known == 14
    await other.release()
    assert other.entry.last_sequence == 12
    await one.acquire()
    await one.release(is_deleted=True, last_sequence=20)
    assert one.entry == Holder(is_deleted=True)


async def test_note_of_a_server_that_was_overtaken_changes_nothing(bucket: SharedBucket, servers: Two) -> None:
    """Its messages may never have been stored; nor does it get the lease back."""
    one, other = (server.lease() for server in servers)
    await one.acquire()
    bucket.cut_off("a")
    await other.acquire()
    await other.confirm(9)
    await one.note(100)
    bucket.connect("a")
    await one.note(100)
    await settle()
    assert (one.entry, other.is_current, other.entry.sequence_known) == (other.entry, True, 9)


async def test_end_of_a_session_frees_its_leases_at_once(servers: Two) -> None:
    """Also those that were not released."""
    one, other = (server.lease() for server in servers)
    await one.acquire()
    waiting = await started(other.acquire())
    began_at = now()
    await servers[0].stop()
    await waiting.result()
    assert now() == began_at


async def test_owner_that_is_cut_off_stops_before_another_begins(bucket: SharedBucket, servers: Two) -> None:
    """It stops reading by its own clock, loses the lease once, and the other takes over when the lease has expired."""
    one, other = (server.lease() for server in servers)
    losses: list[float] = []
    one.on_lost = lambda: losses.append(now())
    await one.acquire()
    await one.confirm(7)
    waiting = await started(other.acquire())
    await asyncio.sleep(1.0)
    bucket.cut_off("a")
    await asyncio.sleep(LEASE_SECONDS - RENEW_SECONDS)
    assert (one.is_current, other.is_current) == (False, False)
    await waiting.result()
    taken_at = now()
    assert LEASE_SECONDS - RENEW_SECONDS <= taken_at <= LEASE_SECONDS + 1.0
    await asyncio.sleep(RENEW_SECONDS)
    assert len(losses) == 1
    with pytest.raises(LeaseLostError):
        await one.confirm(8)
    bucket.connect("a")
    await one.release()
    await asyncio.sleep(1.0)
    assert other.is_current
    assert one.owner is not None
    assert one.owner.address == "b:7070"


async def test_owner_that_was_cut_off_goes_on_where_no_other_server_has_noticed(
    bucket: SharedBucket, servers: Two
) -> None:
    """Until then it shows and takes nothing."""
    one = servers[0].lease()
    await one.acquire()
    bucket.cut_off("a")
    await asyncio.sleep(LEASE_SECONDS - 1.0)
    assert not one.is_current
    bucket.connect("a")
    await asyncio.sleep(1.0)
    assert one.is_current


async def test_owner_that_stood_still_is_not_current_when_it_goes_on(bucket: SharedBucket, servers: Two) -> None:
    """No call comes between the end of the standstill and the look at the clock, and its session is over for good."""
    one, other = (server.lease() for server in servers)
    lost = asyncio.Event()
    one.on_lost = lost.set
    await one.acquire()
    session = servers[0].members.session
    # Nothing of it runs, and nothing reaches it.
    assert servers[0].members._running is not None
    servers[0].members._running.cancel()
    bucket.cut_off("a")
    await other.acquire()
    bucket.connect("a")
    assert not one.is_current
    servers[0].members._running = asyncio.create_task(servers[0].members._run())
    await lost.wait()
    assert one.owner is not None
    assert one.owner.address == "b:7070"
    await asyncio.sleep(2 * RENEW_SECONDS)
    assert servers[0].members.session not in {"", session}
    assert not one.is_held


async def test_writes_whose_responses_are_lost_are_recognised(bucket: SharedBucket, servers: Two) -> None:
    """The entries have other revisions then, but are the owner's all the same."""
    one = servers[0].lease()
    losses: list[None] = []
    one.on_lost = lambda: losses.append(None)
    bucket.lost_responses = 1
    await one.acquire()
    bucket.lost_responses = 1
    await one.confirm(7)
    bucket.lost_responses = 3
    await asyncio.sleep(10 * LEASE_SECONDS)
    assert (one.is_current, losses, one.entry.epoch) == (True, [], 7)


async def test_two_servers_never_both_take_a_lease(bucket: SharedBucket) -> None:
    """The bucket decides between those that ask at once."""
    servers = [bucket.server(str(number)) for number in range(5)]
    await settle()
    leases = [server.lease() for server in servers]
    waiting = [await started(lease.acquire()) for lease in leases]
    for _ in leases:
        await settle()
        [owner] = [lease for lease in leases if lease.is_current]
        await owner.release()
        await asyncio.sleep(1.0)
    assert all(one.is_done for one in waiting)
    for server in servers:
        await server.stop()


def warnings_of(logged: Sequence[Mapping[str, Any]]) -> list[str]:
    """The addresses that were warned of."""
    return [entry["address"] for entry in logged if "server.advertise" in entry["event"]]


async def test_servers_with_one_address_warn_of_each_other_once(bucket: SharedBucket, servers: Two) -> None:
    """Clients would reach one of them in place of the other."""
    twin = bucket.server("c")
    twin.members.address = servers[1].members.address
    with capture_logs() as logged:
        await asyncio.sleep(3 * LEASE_SECONDS)
    assert warnings_of(logged) == ["b:7070"] * 2
    await twin.stop()


async def test_server_that_was_killed_and_started_again_warns_of_no_other(bucket: SharedBucket, servers: Two) -> None:
    """Its former session has its address, but shows no sign of life."""
    bucket.cut_off("a")
    again = bucket.server("again")
    again.members.address = servers[0].members.address
    with capture_logs() as logged:
        await asyncio.sleep(3 * LEASE_SECONDS)
    assert again.members.session
    assert warnings_of(logged) == []
    await again.stop()


async def test_forget_ended_removes_sessions_long_after_their_end(bucket: SharedBucket, servers: Two) -> None:
    """Also that of a server that was killed; those that live stay, and what was removed counts as ended."""
    one, other = servers
    stopped, killed = bucket.server("c"), bucket.server("d")
    await settle()
    gone = [stopped.members.session, killed.members.session]
    await stopped.stop()
    bucket.cut_off("d")
    await one.members.forget_ended()
    assert {session_key(session) for session in gone} <= set(bucket.entries)
    for _ in range(3):
        await asyncio.sleep(21 * LEASE_SECONDS)
        await one.members.forget_ended()
        await other.members.forget_ended()
    living = {one.members.session, other.members.session}
    assert set(bucket.entries) == {session_key(session) for session in living}
    assert set(one.members._seen) == set(other.members._seen) == living
    for session in gone:
        assert await one.members.has_ended(session)
    bucket.connect("d")
    killed_lease = killed.lease()
    await killed_lease.acquire()
    assert killed.members.session not in gone
    await killed.stop()


async def test_forget_ended_of_a_server_that_was_cut_off_keeps_those_that_live(
    bucket: SharedBucket, servers: Two
) -> None:
    """What it has seen last is out of date, and a living owner without an entry would lose its channels."""
    one, other = servers
    lease = one.lease()
    await lease.acquire()
    bucket.cut_off("b")
    await asyncio.sleep(30 * LEASE_SECONDS)
    with pytest.raises(EntriesUnavailableError):
        await other.members.forget_ended()
    bucket._cut_off.clear()
    await other.members.forget_ended()
    assert lease.is_current
    assert session_key(one.members.session) in bucket.entries


async def test_lease_of_an_engine_that_does_not_respond_is_not_taken(bucket: SharedBucket, servers: Two) -> None:
    """The server asks again until it responds."""
    bucket.cut_off("a")
    one = servers[0].lease()
    waiting = await started(one.acquire())
    await asyncio.sleep(LEASE_SECONDS)
    assert not waiting.is_done
    bucket.connect("a")
    await waiting.result()


async def test_release_for_another_server_leaves_the_lease_to_it_for_a_while(
    bucket: SharedBucket, servers: Two
) -> None:
    """If that does not take it, anyone does."""
    third = bucket.server("c")
    await settle()
    one, other, last = (server.lease() for server in (*servers, third))
    await one.acquire()
    waiting = await started(last.acquire())
    await one.release(servers[1].members.session, is_pinned=True)
    await settle()
    assert not waiting.is_done
    await other.acquire()
    assert other.is_current
    assert other.entry.is_pinned
    await other.release(servers[0].members.session)
    await waiting.result()
    assert last.is_current
    assert not last.entry.is_pinned
    await third.stop()


async def test_server_with_its_share_leaves_a_free_lease_to_others_for_a_while(servers: Two) -> None:
    """So channels are shared evenly where all could take them, and nobody waits for long."""
    servers[0].wants = False
    one, other = (server.lease() for server in servers)
    assert not await one.try_acquire()
    waiting = await started(one.acquire())
    await other.acquire()
    await other.release()
    assert not waiting.is_done
    began_at = now()
    await waiting.result()
    assert 0 < now() - began_at <= LEASE_SECONDS / 5 + 0.5


async def test_lease_on_a_deleted_channel_is_taken_only_to_create_it_again(servers: Two) -> None:
    """Servers that learn of the deletion forget the channel, and its epochs begin again."""
    one, other = (server.lease() for server in servers)
    deletions: list[None] = []
    other.on_deleted = lambda: deletions.append(None)
    await one.acquire()
    await one.confirm(7)
    waiting = await started(other.acquire())
    await one.release(is_deleted=True)
    await waiting.result()
    assert (other.is_held, deletions) == (False, [None])
    again = servers[1].lease()
    again.is_new = True
    await again.acquire()
    assert (again.is_current, again.entry.epoch, again.entry.is_deleted) == (True, 0, False)
    await again.release(is_deleted=True)
    once_more = await started(again.acquire())
    await once_more.result()
    assert not again.is_held


async def test_withdraw_ends_the_waiting(servers: Two) -> None:
    """The server stops, or has the channel no more."""
    one, other = (server.lease() for server in servers)
    await one.acquire()
    waiting = await started(other.acquire())
    other.withdraw()
    await waiting.result()
    assert not other.is_held


@pytest.mark.parametrize("forged", [{"epoch": 10**18}, {"last_sequence": 10**18}, {"epoch": -1}, {"epoch": 0}])
@pytest.mark.parametrize("notes", [True, False])
async def test_entry_that_was_forged_is_corrected_by_the_owner(
    bucket: SharedBucket, servers: Two, forged: dict[str, Any], *, notes: bool
) -> None:
    """Later owners would look for messages that the stream never had, and refuse it."""
    one, other = (server.lease() for server in servers)
    await one.acquire()
    await one.confirm(7)
    await one.note(9)
    key = channel_key("orders")
    bucket.store(key, replace(one.entry, **forged).encoded(), bucket.entries[key].revision)
    await settle()
    assert one.is_current
    with capture_logs() as entries:
        if notes:
            await one.note(9)
            assert (one.entry.epoch, one.entry.last_sequence) == (7, 9)
        await one.release(last_sequence=10)
    assert len(entries) == (max(forged.values()) > 9)
    assert all(entry["message"] == 10**18 and entry["last_message"] in {9, 10} for entry in entries)
    await other.acquire()
    assert (other.entry.epoch, other.entry.last_sequence) == (7, 10)


@pytest.mark.parametrize("lease_seconds", ["Infinity", "NaN", "1e999", "1e300", "1" + "0" * 400])
async def test_session_that_was_forged_keeps_a_channel_for_a_limited_time(
    bucket: SharedBucket, servers: Two, monkeypatch: pytest.MonkeyPatch, lease_seconds: str
) -> None:
    """However long it says that its lease is."""
    monkeypatch.setattr(owner_entries, "LEASE_SECONDS_MAX", 2 * LEASE_SECONDS)
    bucket.store(session_key("forged"), f'{{"address": "x:1", "lease_seconds": {lease_seconds}}}'.encode(), 0)
    bucket.store(channel_key("orders"), Holder(session="forged", address="x:1", epoch=7).encoded(), 0)
    await settle()
    one, began_at = servers[0].lease(), now()
    await one.acquire()
    assert one.is_current
    assert now() - began_at <= 3 * LEASE_SECONDS


@pytest.mark.parametrize(
    "value",
    [b"", b"[]", b"{}", b'{"session": 1, "epoch": "x"}', b"\xff", b"[" * 100_000],
    ids=["empty", "list", "no fields", "other types", "no text", "deep"],
)
async def test_entry_that_no_server_has_written_is_nobodys(bucket: SharedBucket, servers: Two, value: bytes) -> None:
    """Somebody else may have written it."""
    bucket.store(channel_key("orders"), value, 0)
    one = servers[0].lease()
    await one.acquire()
    assert one.is_current


def test_holder_encoded_is_decoded_again() -> None:
    """All of it."""
    holder = Holder("a", "mill:7070", 7, 8, "b", is_pinned=True, is_deleted=True)
    assert Holder.decoded(holder.encoded()) == holder
