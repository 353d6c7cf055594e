"""Leases on channels: who takes them when, on a virtual clock, in a bucket that can be cut off."""

import asyncio

import pytest

from millrace_server.replication.lease import (
    LEASE_SECONDS,
    RENEW_SECONDS,
    ChannelLease,
    Holder,
    LeaseBucket,
    LeaseConflictError,
    LeaseEntry,
    LeaseUnavailableError,
)
from tests.virtual_clock import now, settle, started

HAS_VIRTUAL_CLOCK = True


class FakeBucket:
    """The entry of one channel, and the leases that watch it.

    Attributes:
        entry: The entry.
        lost_answers: So many of the next writes succeed without an answer.
    """

    def __init__(self) -> None:
        self.entry: LeaseEntry | None = None
        self.lost_answers = 0
        self._watching: dict[str, ChannelLease] = {}
        self._cut_off: set[str] = set()

    def lease(self, server: str) -> ChannelLease:
        """The lease as a server sees it."""
        connection = _Connection(self, server)
        self._watching[server] = ChannelLease(connection, "orders", server, f"{server}:7070", now)
        return self._watching[server]

    def cut_off(self, server: str) -> None:
        """Lets nothing through to or from a server any more."""
        self._cut_off.add(server)

    def connect(self, server: str) -> None:
        """Ends that."""
        self._cut_off.discard(server)

    def check_reachable(self, server: str) -> None:
        """Raises LeaseUnavailableError if a server is cut off."""
        if server in self._cut_off:
            raise LeaseUnavailableError("cut off")

    def store(self, holder: Holder, revision: int) -> int:
        """Replaces the entry, and tells those that watch it."""
        if revision != (0 if self.entry is None else self.entry.revision):
            raise LeaseConflictError(f"not {revision}")
        self.entry = LeaseEntry(holder, revision + 1)
        for server, lease in self._watching.items():
            if server not in self._cut_off:
                asyncio.get_running_loop().call_soon(lease.observe, self.entry)
        if self.lost_answers:
            self.lost_answers -= 1
            raise LeaseUnavailableError("no answer")
        return revision + 1


class _Connection(LeaseBucket):
    """One server's connection to the bucket."""

    def __init__(self, bucket: FakeBucket, server: str) -> None:
        self._bucket = bucket
        self._server = server

    async def read(self, _channel: str) -> LeaseEntry | None:
        self._bucket.check_reachable(self._server)
        return self._bucket.entry

    async def write(self, _channel: str, holder: Holder, revision: int) -> int:
        self._bucket.check_reachable(self._server)
        return self._bucket.store(holder, revision)


@pytest.fixture
def bucket() -> FakeBucket:
    """A bucket without an entry."""
    return FakeBucket()


async def test_lease_that_is_free_is_taken_at_once_and_kept(bucket: FakeBucket) -> None:
    """Others stand by as long as it is renewed, and know the owner's address and epoch."""
    one, other = bucket.lease("a"), bucket.lease("b")
    assert await one.acquire() == 0
    await one.confirm(7)
    waiting = await started(other.acquire())
    await asyncio.sleep(10 * LEASE_SECONDS)
    assert (one.is_current, other.is_current, waiting.is_done) == (True, False, False)
    assert other.holder == Holder("a", "a:7070", 7)
    waiting.cancel()
    await one.release()


async def test_release_hands_over_at_once_with_the_epoch(bucket: FakeBucket) -> None:
    """The next owner need not wait, and learns the newest epoch."""
    one, other = bucket.lease("a"), bucket.lease("b")
    await one.acquire()
    await one.confirm(7)
    waiting = await started(other.acquire())
    began_at = now()
    await one.release()
    assert await waiting.answer() == 7
    assert (now(), one.is_current, other.is_current) == (began_at, False, True)
    await settle()
    assert one.holder == Holder("b", "b:7070", 7)
    await other.release()
    assert other.holder is None


async def test_owner_that_is_cut_off_stops_before_another_begins(bucket: FakeBucket) -> None:
    """It loses the lease by its own clock, is told so once, and the other takes over when the lease has expired."""
    one, other = bucket.lease("a"), bucket.lease("b")
    losses: list[float] = []
    one.on_lost(lambda: losses.append(now()))
    await one.acquire()
    await one.confirm(7)
    waiting = await started(other.acquire())
    await asyncio.sleep(1.0)
    bucket.cut_off("a")
    assert await waiting.answer() == 7
    taken_at = now()
    assert LEASE_SECONDS - RENEW_SECONDS <= taken_at <= LEASE_SECONDS + 1.0
    [lost_at] = losses
    assert lost_at < taken_at
    assert not one.is_current
    bucket.connect("a")
    await one.release()
    assert other.is_current
    await other.release()


async def test_owner_that_stood_still_is_not_current_when_it_goes_on(bucket: FakeBucket) -> None:
    """No call comes between the end of the standstill and the look at the clock."""
    one, other = bucket.lease("a"), bucket.lease("b")
    lost = asyncio.Event()
    one.on_lost(lost.set)
    await one.acquire()
    bucket.cut_off("a")
    await other.acquire()
    bucket.connect("a")
    assert not one.is_current
    await lost.wait()
    assert one.holder is None
    await asyncio.sleep(2 * RENEW_SECONDS)
    assert one.holder == Holder("b", "b:7070", 0)
    await other.release()


async def test_renewal_whose_answer_is_lost_is_recognised(bucket: FakeBucket) -> None:
    """The entry has another revision then, but is the owner's all the same."""
    one = bucket.lease("a")
    losses: list[None] = []
    one.on_lost(lambda: losses.append(None))
    await one.acquire()
    bucket.lost_answers = 3
    await asyncio.sleep(10 * LEASE_SECONDS)
    assert (one.is_current, losses) == (True, [])
    await one.release()


async def test_two_servers_never_both_take_a_lease(bucket: FakeBucket) -> None:
    """The bucket decides between those that ask at once."""
    leases = [bucket.lease(str(number)) for number in range(5)]
    waiting = [await started(lease.acquire()) for lease in leases]
    for _ in leases:
        await settle()
        [owner] = [lease for lease in leases if lease.is_current]
        await owner.release()
        await asyncio.sleep(1.0)
    assert all(one.is_done for one in waiting)


async def test_lease_of_an_engine_that_does_not_answer_is_not_taken(bucket: FakeBucket) -> None:
    """The server asks again until it answers."""
    bucket.cut_off("a")
    one = bucket.lease("a")
    waiting = await started(one.acquire())
    await asyncio.sleep(LEASE_SECONDS)
    assert not waiting.is_done
    bucket.connect("a")
    assert await waiting.answer() == 0
    await one.release()


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"server": "a", "address": "b", "epoch": null}', b"\xff"])
def test_value_that_is_no_holder_is_refused(value: bytes) -> None:
    """Somebody else may have written it."""
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
        Holder.decoded(value)
    holder = Holder("a", "mill:7070", 7)
    assert Holder.decoded(holder.encoded()) == holder
