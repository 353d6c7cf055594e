import pytest

from millrace_server.channels import contents
from millrace_server.channels.contents import Subscriber
from tests.channel_events import batch, bodies_of
from tests.virtual_clock import settle, started


async def seen(subscriber: Subscriber) -> tuple[int, list[bytes]]:
    """The bodies of the next batch, and the number of missed batches before it."""
    news = await subscriber.next_batch()
    assert news is not None
    return news[0], bodies_of([news[1]])


async def test_next_batch_of_what_was_offered_comes_in_order() -> None:
    """Nothing is missed while the subscriber keeps up."""
    subscriber = Subscriber()
    subscriber.publish(batch(1, b"a", b"b"))
    subscriber.publish(batch(3, b"c"))
    assert await seen(subscriber) == (0, [b"a", b"b"])
    assert await seen(subscriber) == (0, [b"c"])


async def test_next_batch_when_there_is_none_waits_for_it() -> None:
    """Each call waits for one batch."""
    subscriber = Subscriber()
    for sequence in (1, 2):
        call = await started(seen(subscriber))
        assert not call.is_done
        subscriber.publish(batch(sequence, b"a"))
        assert await call.result() == (0, [b"a"])


async def test_next_batch_after_too_many_says_how_many_were_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest batches are dropped; the count precedes the batch that follows the gap, and only that one."""
    monkeypatch.setattr(contents, "_SUBSCRIBER_BATCHES_MAX", 2)
    subscriber = Subscriber()
    for sequence in range(1, 9, 2):
        subscriber.publish(batch(sequence, b"%d" % sequence, b""))
    assert await seen(subscriber) == (4, [b"5", b""])
    assert await seen(subscriber) == (0, [b"7", b""])
    subscriber.publish(batch(9, b"9"))
    assert await seen(subscriber) == (0, [b"9"])


async def test_next_batch_after_too_many_bytes_says_how_many_were_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are bounded too, but the newest batch is always kept."""
    monkeypatch.setattr(contents, "_SUBSCRIBER_BODY_BYTES_MAX", 10)
    subscriber = Subscriber()
    for sequence, body in enumerate((b"a" * 6, b"b" * 4, b"c" * 4), start=1):
        subscriber.publish(batch(sequence, body))
    assert await seen(subscriber) == (1, [b"bbbb"])
    subscriber.publish(batch(4, b"d" * 99))
    assert await seen(subscriber) == (1, [b"d" * 99])
    subscriber.publish(batch(5, b"e" * 10))
    assert await seen(subscriber) == (0, [b"e" * 10])


async def test_end_with_batches_left_returns_them_first() -> None:
    """A subscriber sees all batches and then the end, however often it reads."""
    subscriber = Subscriber()
    subscriber.publish(batch(1, b"a"))
    subscriber.end()
    assert await seen(subscriber) == (0, [b"a"])
    assert await subscriber.next_batch() is None
    assert await subscriber.next_batch() is None


async def test_end_while_a_subscriber_waits_wakes_it() -> None:
    """The subscriber sees the end at once."""
    subscriber = Subscriber()
    call = await started(subscriber.next_batch())
    subscriber.end()
    await settle()
    assert call.is_done
    assert await call.result() is None
