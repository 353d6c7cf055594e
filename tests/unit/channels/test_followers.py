import pytest

from millrace_server.channels import followers
from millrace_server.channels.followers import Follower
from tests.channel_events import batch, bodies_of
from tests.virtual_clock import settle, started


async def seen(follower: Follower) -> tuple[int, list[bytes]]:
    """The next batch's bodies, and what was missed before."""
    news = await follower.next_batch()
    assert news is not None
    return news[0], bodies_of([news[1]])


async def test_next_batch_of_what_was_offered_comes_in_order() -> None:
    """Nothing is missed while the follower keeps up."""
    follower = Follower()
    follower.offer(batch(1, b"a", b"b"))
    follower.offer(batch(3, b"c"))
    assert await seen(follower) == (0, [b"a", b"b"])
    assert await seen(follower) == (0, [b"c"])


async def test_next_batch_when_there_is_none_waits_for_it() -> None:
    """Each time anew."""
    follower = Follower()
    for sequence in (1, 2):
        call = await started(seen(follower))
        assert not call.is_done
        follower.offer(batch(sequence, b"a"))
        assert await call.answer() == (0, [b"a"])


async def test_next_batch_after_too_many_says_how_many_were_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go; the count stands before the batch that follows the gap, and only there."""
    monkeypatch.setattr(followers, "_BATCHES_MAX", 2)
    follower = Follower()
    for sequence in range(1, 9, 2):
        follower.offer(batch(sequence, b"%d" % sequence, b""))
    assert await seen(follower) == (4, [b"5", b""])
    assert await seen(follower) == (0, [b"7", b""])
    follower.offer(batch(9, b"9"))
    assert await seen(follower) == (0, [b"9"])


async def test_next_batch_after_too_many_bytes_says_how_many_were_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are bounded likewise, but the newest batch is always kept."""
    monkeypatch.setattr(followers, "_BODY_BYTES_MAX", 10)
    follower = Follower()
    for sequence, body in enumerate((b"a" * 6, b"b" * 4, b"c" * 4), start=1):
        follower.offer(batch(sequence, body))
    assert await seen(follower) == (1, [b"bbbb"])
    follower.offer(batch(4, b"d" * 99))
    assert await seen(follower) == (1, [b"d" * 99])
    follower.offer(batch(5, b"e" * 10))
    assert await seen(follower) == (0, [b"e" * 10])


async def test_end_with_batches_left_gives_them_first() -> None:
    """A follower sees all there was, and then the end, however often it asks."""
    follower = Follower()
    follower.offer(batch(1, b"a"))
    follower.end()
    assert await seen(follower) == (0, [b"a"])
    assert await follower.next_batch() is None
    assert await follower.next_batch() is None


async def test_end_while_a_follower_waits_wakes_it() -> None:
    """It learns of the end at once."""
    follower = Follower()
    call = await started(follower.next_batch())
    follower.end()
    await settle()
    assert call.is_done
    assert await call.answer() is None
