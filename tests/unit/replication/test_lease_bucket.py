"""Leases in a real key-value bucket."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from nats.js.client import JetStreamContext

from millrace_server.replication.engine import Engine
from millrace_server.replication.lease_bucket import BUCKET, JetStreamBucket, JetStreamLeases
from millrace_server.replication.owner_entries import Entry, EntryConflictError, session_key
from tests.waiting import until

_LEASE_SECONDS = 5.0


async def _leases(engine: Engine, address: str) -> JetStreamLeases:
    leases = JetStreamLeases(await JetStreamBucket.opened(engine, 1), address, _LEASE_SECONDS)
    await leases.ready()
    return leases


async def _empty(jetstream: JetStreamContext, bucket: str) -> None:
    await jetstream.purge_stream(f"KV_{bucket}")


@pytest.fixture
async def servers(nats_url: str) -> AsyncIterator[list[JetStreamLeases]]:
    """The leases of two servers, each with a connection of its own."""
    engines = [await Engine.connected([nats_url]) for _ in range(2)]
    opened = [await _leases(engine, f"mill-{number}:7070") for number, engine in enumerate(engines)]
    yield opened
    for leases, engine in zip(opened, engines, strict=True):
        await leases.close()
        await asyncio.to_thread(engine.close)


async def test_lease_is_handed_over_by_the_watch_of_the_bucket(servers: list[JetStreamLeases]) -> None:
    """The other server learns of the owner, and of its end, without asking."""
    one, other = (leases.of("orders.eu") for leases in servers)
    await one.acquire()
    await one.confirm(7)
    waiting = asyncio.create_task(other.acquire())
    await until(lambda: other.owner is not None and other.owner.epoch == 7)
    assert other.owner is not None
    assert other.owner.address == "mill-0:7070"
    await servers[0].give_up("orders.eu")
    await waiting
    assert (other.is_current, other.entry.epoch) == (True, 7)
    await until(lambda: one.owner == other.owner)


async def test_lease_that_an_operator_deleted_is_free(servers: list[JetStreamLeases]) -> None:
    """Its owner loses it to the next that asks, and notices."""
    one, other = (leases.of("deleted") for leases in servers)
    lost = asyncio.Event()
    one.on_lost = lost.set
    await one.acquire()
    bucket = servers[1]._bucket
    await asyncio.wrap_future(bucket.engine.call(bucket._bucket.delete("deleted")))
    await other.acquire()
    await lost.wait()
    assert (one.is_current, other.is_current) == (False, True)


async def test_remove_leaves_no_trace_of_an_entry_that_nobody_has_written_since(nats_url: str) -> None:
    """A later one stays, and who has the revision of one that was removed cannot write."""
    engine = await Engine.connected([nats_url])
    try:
        bucket = await JetStreamBucket.opened(engine, 1)
        first = await bucket.write("session.removed", b"1", 0)
        second = await bucket.write("session.removed", b"2", first)
        await bucket.remove("session.removed", first)
        assert await bucket.read("session.removed") == Entry(b"2", second)
        await bucket.remove("session.removed", second)
        assert await bucket.read("session.removed") is None
        with pytest.raises(EntryConflictError):
            await bucket.write("session.removed", b"3", second)
        assert await bucket.write("session.removed", b"4", 0) > second
    finally:
        await asyncio.to_thread(engine.close)


async def test_sessions_that_ended_long_ago_are_removed_from_the_bucket(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start of a server begins one, so that they would become ever more."""
    monkeypatch.setattr("millrace_server.replication.lease_bucket._FORGET_LEASES", 0.02)
    monkeypatch.setattr("millrace_server.replication.membership._KEPT_LEASES", 0)
    engine = await Engine.connected([nats_url])
    staying, leaving = await _leases(engine, "mill-0:7070"), await _leases(engine, "mill-1:7070")
    session = leaving.members.session
    await until(lambda: session in staying.members.living())
    await leaving.close()
    await until(lambda: session not in staying.members._seen)
    assert await staying._bucket.read(session_key(session)) is None
    assert await staying._bucket.read(session_key(staying.members.session)) is not None
    await staying.close()
    await asyncio.to_thread(engine.close)


@pytest.mark.parametrize("remove", [JetStreamContext.delete_key_value, _empty], ids=["deleted", "emptied"])
async def test_bucket_that_an_operator_removes_is_filled_again(
    servers: list[JetStreamLeases], remove: Callable[[JetStreamContext, str], Coroutine[Any, Any, object]]
) -> None:
    """Servers begin new sessions, and the channel is owned again, by either, with the epoch that they remember."""
    one, other = (leases.of("removed") for leases in servers)
    lost = asyncio.Event()
    one.on_lost = lost.set
    await one.acquire()
    await one.confirm(7)
    await until(lambda: other.entry.epoch == 7)
    engine = servers[0]._bucket.engine
    await asyncio.wrap_future(engine.call(remove(engine.jetstream, BUCKET)))
    await lost.wait()
    waiting = [asyncio.create_task(lease.acquire()) for lease in (one, other)]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    owner = one if one.is_current else other
    assert (owner.is_current, owner.entry.epoch) == (True, 7)
    await until(lambda: one.owner == other.owner == owner.entry)
    await owner.release()
    await asyncio.gather(*waiting)


async def test_leases_of_a_new_server_are_handed_to_it_until_all_have_the_same_number(
    servers: list[JetStreamLeases],
) -> None:
    """The server that has more is asked to give up some of its own."""
    names = [f"spread.{number}" for number in range(4)]
    asked: dict[str, str] = {}
    for name in names:
        lease = servers[0].of(name)
        lease.on_surplus = partial(asked.setdefault, name)
        await lease.acquire()
    for name in names:
        servers[1].of(name)
    await until(lambda: bool(asked))
    await until(lambda: len(asked) == 2)
    assert set(asked.values()) == {servers[1].members.session}
    assert servers[0].session_at("mill-1:7070", names[0]) == servers[1].members.session
    assert servers[0].addresses(names[0]) == ["mill-0:7070", "mill-1:7070"]
