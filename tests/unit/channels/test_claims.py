import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from millrace_server.channels import claims
from millrace_server.channels.admission import Capacity
from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.claims import ClaimRegistry
from millrace_server.channels.committer import MemoryCommitter, remove
from millrace_server.channels.contents import Contents
from millrace_server.errors import (
    BadArgumentError,
    ChannelClaimedError,
    ChannelNotFoundError,
    MillraceError,
    NotClaimedError,
    SequenceGoneError,
    StaleEpochError,
    TxnsOpenError,
)
from tests.channel_events import numbered, window
from tests.unit.channels.test_contents import make, take
from tests.virtual_clock import now

LEASE = 30.0


def put(contents: Contents, *bodies: bytes) -> None:
    make(contents, contents.plan([window(*bodies)], [], None))


def open_registry(contents: Contents) -> ClaimRegistry:
    return ClaimRegistry(contents, MemoryCommitter(contents))


@pytest.fixture
def contents() -> Contents:
    """Sequences 1 to 6 in batches of 2."""
    contents = Contents("orders", Capacity(100, 1000))
    for bodies in ((b"a", b"b"), (b"c", b"d"), (b"e", b"f")):
        put(contents, *bodies)
    return contents


@pytest.fixture
async def registry(contents: Contents) -> ClaimRegistry:
    """Reader `r` has claimed the channel; its epoch is 1."""
    registry = open_registry(contents)
    assert (await registry.grant("r", LEASE, takeover=False)).epoch == 1
    return registry


async def read(
    registry: ClaimRegistry,
    from_sequence: int = 0,
    to_sequence: int = 0,
    *,
    reader_id: str = "r",
    epoch: int | None = None,
) -> list[int]:
    """The sequences of a range."""
    return await rest_of(registry.read(reader_id, epoch, from_sequence, to_sequence))


async def rest_of(batches: AsyncGenerator[StoredBatch]) -> list[int]:
    return [sequence async for batch in batches for sequence, _ in numbered([batch])]


async def test_grant_of_a_free_channel_shuts_out_all_others(registry: ClaimRegistry) -> None:
    """Takes and other readers are refused; the error names the owner of the claim and its remaining time."""
    await asyncio.sleep(10)
    with pytest.raises(ChannelClaimedError) as refused:
        registry.refuse_if_claimed()
    assert str(refused.value) == (
        "reader 'r' has claimed the channel, for 20.0 s more unless it renews; "
        "wait, have it release the claim, or take the claim over"
    )
    assert (refused.value.retry_delay_seconds, refused.value.metadata) == (20, {"reader_id": "r"})
    with pytest.raises(ChannelClaimedError):
        await registry.grant("other", LEASE, takeover=False)


async def test_grant_to_the_same_reader_renews(registry: ClaimRegistry) -> None:
    """The epoch stays; the lease restarts with the duration of the new call."""
    await asyncio.sleep(LEASE - 1)
    claim = await registry.grant("r", 5, takeover=False)
    assert (claim.epoch, claim.lease.seconds, claim.lease.remaining_seconds) == (1, 5, 5)
    await asyncio.sleep(5)
    assert registry.claim is None


@pytest.mark.parametrize("reader_id", ["r", "other"])
async def test_grant_with_takeover_begins_a_new_epoch(registry: ClaimRegistry, reader_id: str) -> None:
    """This holds for another reader's claim and one's own; the former claim is fenced, and its lease ends nothing."""
    await asyncio.sleep(LEASE - 1)
    assert (await registry.grant(reader_id, LEASE, takeover=True)).epoch == 2
    await asyncio.sleep(LEASE - 1)
    assert registry.claim is not None
    with pytest.raises(StaleEpochError, match="epoch: is 1; the newest claim of the channel has epoch 2"):
        await registry.acknowledge("r", 1, 1)
    assert await registry.acknowledge(reader_id, 2, 1) == 2


async def test_grant_with_takeover_of_a_free_channel_is_a_claim(contents: Contents) -> None:
    """A takeover does not require a claim."""
    assert (await open_registry(contents).grant("r", LEASE, takeover=True)).epoch == 1


@pytest.mark.parametrize("takeover", [False, True])
async def test_grant_while_events_are_taken_is_refused(contents: Contents, *, takeover: bool) -> None:
    """Taken events may return, which would change a range that was read; the claim may be retried later."""
    taken = take(contents, 2)
    registry = open_registry(contents)
    with pytest.raises(TxnsOpenError, match="have taken 2 events") as refused:
        await registry.grant("r", LEASE, takeover=takeover)
    assert refused.value.retry_delay_seconds == 1
    assert registry.claim is None
    contents.put_back(taken)
    assert (await registry.grant("r", LEASE, takeover=takeover)).epoch == 1


@pytest.mark.parametrize("reader_id", ["", "ü", "a\n", "x" * 129])
async def test_claim_calls_of_a_malformed_reader_are_refused(registry: ClaimRegistry, reader_id: str) -> None:
    """Each error names the field."""
    with pytest.raises(BadArgumentError, match="reader_id: is"):
        await registry.grant(reader_id, LEASE, takeover=True)
    with pytest.raises(BadArgumentError, match="reader_id: is"):
        registry.read(reader_id, None, 0, 0)
    with pytest.raises(BadArgumentError, match="reader_id: is"):
        await registry.acknowledge(reader_id, None, 1)
    with pytest.raises(BadArgumentError, match="reader_id: is"):
        await registry.release(reader_id, None)


async def test_lease_of_a_claim_that_runs_out_frees_the_channel(registry: ClaimRegistry) -> None:
    """Acknowledged events are removed, and the rest is available to all; the reader may claim again."""
    await registry.acknowledge("r", None, 2)
    await asyncio.sleep(LEASE)
    registry.refuse_if_claimed()
    for call in (lambda: read(registry), lambda: registry.acknowledge("r", None, 3), lambda: registry.release("r", 1)):
        with pytest.raises(NotClaimedError, match="reader 'r' has no active claim"):
            await call()
    assert (await registry.grant("r", LEASE, takeover=False)).epoch == 2
    assert await read(registry) == [3, 4, 5, 6]


async def test_calls_of_a_claim_keep_it_alive(registry: ClaimRegistry) -> None:
    """Read and Acknowledge restart its lease."""
    for _ in range(3):
        await asyncio.sleep(LEASE - 1)
        await read(registry)
        await asyncio.sleep(LEASE - 1)
        await registry.acknowledge("r", None, 0)
    assert now() > LEASE * 5
    await asyncio.sleep(LEASE)
    assert registry.claim is None


async def test_calls_of_another_reader_are_refused_and_renew_nothing(registry: ClaimRegistry) -> None:
    """Only the holder of the claim can read, acknowledge and release."""
    await asyncio.sleep(LEASE - 1)
    for call in (
        lambda: read(registry, reader_id="other"),
        lambda: registry.acknowledge("other", None, 1),
        lambda: registry.release("other", None),
    ):
        with pytest.raises(ChannelClaimedError):
            await call()
    await asyncio.sleep(1)
    assert registry.claim is None


async def test_end_of_a_claim_that_is_gone_does_nothing(registry: ClaimRegistry) -> None:
    """The claim was already ended by the first call."""
    registry.end()
    registry.end()
    registry.forget()
    assert registry.claim is None


async def test_calls_without_any_claim_are_refused(contents: Contents) -> None:
    """The channel was never claimed."""
    with pytest.raises(NotClaimedError):
        await open_registry(contents).release("r", None)
    with pytest.raises(NotClaimedError):
        await open_registry(contents).release("r", 0)


async def test_release_ends_the_claim_and_keeps_the_events(registry: ClaimRegistry, contents: Contents) -> None:
    """A second release finds no claim."""
    await registry.release("r", 1)
    registry.refuse_if_claimed()
    assert contents.queue.event_count == 6
    with pytest.raises(NotClaimedError):
        await registry.release("r", 1)
    await asyncio.sleep(LEASE * 2)
    assert (await registry.grant("other", LEASE, takeover=False)).epoch == 2


@pytest.mark.parametrize(
    ("from_sequence", "to_sequence", "sequences"),
    [
        (0, 0, [3, 4, 5, 6]),
        (3, 0, [3, 4, 5, 6]),
        (4, 0, [4, 5, 6]),
        (0, 4, [3]),
        (4, 6, [4, 5]),
        (3, 4, [3]),
        (6, 7, [6]),
        (0, 7, [3, 4, 5, 6]),
        # Empty ranges, also inside a batch, at both ends, and of acknowledged events.
        (4, 4, []),
        (0, 3, []),
        (3, 3, []),
        (7, 0, []),
        (7, 7, []),
        (1, 1, []),
    ],
)
async def test_read_of_a_range_returns_it_as_often_as_asked(
    registry: ClaimRegistry, from_sequence: int, to_sequence: int, sequences: list[int]
) -> None:
    """The sequences 3 to 6 are not acknowledged."""
    await registry.acknowledge("r", None, 2)
    for epoch in (None, 1):
        assert await read(registry, from_sequence, to_sequence, epoch=epoch) == sequences


@pytest.mark.parametrize(
    ("from_sequence", "to_sequence", "kind", "complaint"),
    [
        (2, 0, SequenceGoneError, "sequence 2 is acknowledged; the oldest that is not is 3"),
        (1, 2, SequenceGoneError, "sequence 1 is acknowledged"),
        (0, 2, SequenceGoneError, "sequence 2 is acknowledged"),
        (0, 8, SequenceGoneError, "to_sequence: 8 does not exist yet; the next sequence is 7"),
        (8, 8, SequenceGoneError, "to_sequence: 8 does not exist yet"),
        (8, 0, SequenceGoneError, "from_sequence: 8 does not exist yet; the next sequence is 7"),
        (2, (1 << 64) - 1, SequenceGoneError, "to_sequence: 18446744073709551615 does not exist yet"),
        ((1 << 64) - 1, 0, SequenceGoneError, "from_sequence: 18446744073709551615 does not exist yet"),
        (5, 4, BadArgumentError, "from_sequence: is 5; it must not be above to_sequence, 4"),
        (99, 98, BadArgumentError, "from_sequence: is 99; it must not be above to_sequence, 98"),
    ],
)
async def test_read_of_a_missing_range_raises(
    registry: ClaimRegistry, from_sequence: int, to_sequence: int, kind: type[MillraceError], complaint: str
) -> None:
    """The call itself raises, before anything is read."""
    await registry.acknowledge("r", None, 2)
    with pytest.raises(kind, match=complaint):
        registry.read("r", None, from_sequence, to_sequence)


async def test_read_of_an_empty_channel_returns_nothing() -> None:
    """The first sequence is that of the next event."""
    registry = open_registry(Contents("orders", Capacity(1, 1)))
    await registry.grant("r", LEASE, takeover=False)
    assert await read(registry) == await read(registry, 1) == await read(registry, 1, 1) == []


async def test_read_while_events_are_put_ends_at_what_was_committed_at_first(
    registry: ClaimRegistry, contents: Contents
) -> None:
    """The end of the range is fixed when the call begins."""
    batches = registry.read("r", None, 0, 0)
    assert (await anext(batches)).count == 2
    put(contents, b"g")
    assert await rest_of(batches) == [3, 4, 5, 6]


async def test_read_of_many_batches_returns_all(registry: ClaimRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is read a part at a time."""
    monkeypatch.setattr("millrace_server.channels.queue._READ_AHEAD", 1)
    assert await read(registry) == [1, 2, 3, 4, 5, 6]
    assert await read(registry, 2, 6) == [2, 3, 4, 5]


async def test_read_of_a_range_with_holes_leaves_them_out(contents: Contents) -> None:
    """Events consumed before the claim are missing, which is not an error."""
    first, second = take(contents, 1), take(contents, 2)
    contents.put_back(first)
    make(contents, contents.plan([], second, None))
    registry = open_registry(contents)
    await registry.grant("r", LEASE, takeover=False)
    assert await read(registry) == [1, 4, 5, 6]
    assert await read(registry, 2, 4) == []
    assert await read(registry, 2, 5) == [4]


async def test_read_that_lasts_keeps_the_claim_alive(registry: ClaimRegistry) -> None:
    """A slow receiver does not lose its claim."""
    async for _ in registry.read("r", None, 0, 0):
        await asyncio.sleep(LEASE * 3)
    assert registry.claim is not None
    await asyncio.sleep(LEASE)
    assert registry.claim is None


async def test_read_that_is_left_half_way_pauses_nothing_any_more(registry: ClaimRegistry) -> None:
    """After a broken stream the lease of the claim runs."""
    batches = registry.read("r", None, 0, 0)
    await anext(batches)
    await batches.aclose()
    await asyncio.sleep(LEASE)
    assert registry.claim is None


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (lambda registry: registry.release("r", None), NotClaimedError),
        (lambda registry: registry.grant("r", LEASE, takeover=True), StaleEpochError),
        (lambda registry: registry.grant("other", LEASE, takeover=True), StaleEpochError),
    ],
)
async def test_read_whose_claim_ends_in_the_meantime_fails_at_the_next_batch(
    registry: ClaimRegistry, end: Callable[[ClaimRegistry], Awaitable[object]], kind: type[MillraceError]
) -> None:
    """A fenced reader sees no further event, even if the new reader has the same name."""
    batches = registry.read("r", None, 0, 0)
    await anext(batches)
    await end(registry)
    with pytest.raises(kind):
        await anext(batches)


@pytest.mark.parametrize("epoch", [0, 1, 3, (1 << 64) - 1])
async def test_calls_with_another_epoch_are_refused(registry: ClaimRegistry, epoch: int) -> None:
    """The newest claim has epoch 2; any other epoch is refused."""
    await registry.grant("r", LEASE, takeover=True)
    for call in (
        lambda: read(registry, epoch=epoch),
        lambda: registry.acknowledge("r", epoch, 1),
        lambda: registry.release("r", epoch),
        lambda: registry.release("other", epoch),
    ):
        with pytest.raises(StaleEpochError):
            await call()
    assert await read(registry, epoch=2) == [1, 2, 3, 4, 5, 6]


async def test_acknowledge_through_a_sequence_removes_all_up_to_it(registry: ClaimRegistry, contents: Contents) -> None:
    """Acknowledgement is cumulative, also in the middle of a batch; repeating it has no effect."""
    assert await registry.acknowledge("r", 1, 3) == 4
    assert await registry.acknowledge("r", 1, 3) == 4
    assert await registry.acknowledge("r", 1, 1) == 4
    assert await registry.acknowledge("r", 1, 0) == 4
    assert (contents.capacity.event_count, contents.counters.take_successes) == (3, 3)
    assert await registry.acknowledge("r", 1, 6) == 7
    assert (contents.capacity.event_count, contents.capacity.body_bytes) == (0, 0)


@pytest.mark.parametrize("takes_over", [False, True])
async def test_acknowledge_of_many_batches_ends_where_the_claim_does(
    registry: ClaimRegistry, contents: Contents, monkeypatch: pytest.MonkeyPatch, *, takes_over: bool
) -> None:
    """Other calls are served between its commits; a takeover there fences the rest, which the new reader gets."""
    monkeypatch.setattr(claims, "REMOVED_BATCHES_MAX", 1)
    call = asyncio.ensure_future(registry.acknowledge("r", 1, 5))
    await asyncio.sleep(0)
    assert contents.first_sequence == 3
    if not takes_over:
        assert await call == 6
        return
    assert (await registry.grant("other", LEASE, takeover=True)).epoch == 2
    with pytest.raises(StaleEpochError):
        await call
    assert await read(registry, reader_id="other", epoch=2) == [3, 4, 5, 6]


@pytest.mark.parametrize("through_sequence", [7, 8, (1 << 64) - 1])
async def test_acknowledge_of_future_sequences_is_refused(
    registry: ClaimRegistry, contents: Contents, through_sequence: int
) -> None:
    """Otherwise events that were never read would be lost."""
    with pytest.raises(SequenceGoneError, match="does not exist yet; the newest is 6"):
        await registry.acknowledge("r", None, through_sequence)
    assert contents.queue.event_count == 6


async def test_repeat_of_a_revocation_leaves_the_next_claim_alone(registry: ClaimRegistry) -> None:
    """A client that lost the response repeats the call and gets the same claim; earlier epochs are refused."""
    revoked = await registry.revoke(1)
    successor = await registry.grant("s", LEASE, takeover=False)
    assert await registry.revoke(1) is revoked
    assert registry.claim is successor
    await registry.revoke(None)
    with pytest.raises(StaleEpochError):
        await registry.revoke(1)


async def test_claim_calls_on_a_deleted_channel_find_none(registry: ClaimRegistry, contents: Contents) -> None:
    """A read in progress ends with the same error."""
    batches = registry.read("r", None, 0, 0)
    await anext(batches)
    contents.close()
    with pytest.raises(ChannelNotFoundError):
        await anext(batches)
    with pytest.raises(ChannelNotFoundError):
        await registry.grant("r", LEASE, takeover=False)
    with pytest.raises(ChannelNotFoundError):
        await registry.acknowledge("r", None, 1)


async def test_read_of_one_big_batch_range_after_range_returns_all_of_it() -> None:
    """Ranges that end inside a batch, such as Spark's partitions, together contain all its events."""
    contents = Contents("orders", Capacity(100, 1000))
    put(contents, *[b"x"] * 49)
    registry = open_registry(contents)
    await registry.grant("r", LEASE, takeover=False)
    ranges = [await read(registry, start, start + 7) for start in range(1, 50, 7)]
    assert list(itertools.chain(*ranges)) == list(range(1, 50))


async def test_read_of_a_range_that_is_emptied_in_the_meantime_reports_it(
    registry: ClaimRegistry, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A purge during the read is not taken for the end of the range."""
    monkeypatch.setattr("millrace_server.channels.queue._READ_AHEAD", 1)
    reading = registry.read("r", None, 0, 0)
    await anext(reading)
    await remove(contents, MemoryCommitter(contents), contents.take_through(contents.next_sequence), is_purge=True)
    with pytest.raises(SequenceGoneError):
        await rest_of(reading)
