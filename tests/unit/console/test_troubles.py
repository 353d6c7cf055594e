"""What operators are told to look at, and why."""

import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_handle import Owner
from millrace_server.channels.config import FileChannelConfig
from millrace_server.channels.queue import TakeLimits
from millrace_server.console import troubles
from tests.unit.console.served_console import ServedConsole, append


async def reasons(console: ServedConsole) -> list[str]:
    return [one["reason"] for one in (await console.read("/api/overview"))["troubles"]]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets so many seconds pass for what judges troubles."""

    def pass_seconds(seconds: float) -> None:
        monkeypatch.setattr(troubles, "time", lambda: time.time() + seconds)

    return pass_seconds


async def take_one(channel: Channel) -> None:
    channel.transactions.begin("one", None)
    await channel.transactions.take("one", TakeLimits(events_max=1), 0.0, None)


@pytest.mark.parametrize(("count", "reason"), [(90, "it is 90% full"), (100, "it is full")])
async def test_channel_without_much_space_is_a_trouble(console: ServedConsole, count: int, reason: str) -> None:
    """The advice costs no event, unlike a purge, of which the runbook warns."""
    await append(console.create("orders", transaction_capacity=100), *[({}, b"x")] * count)
    [trouble] = (await console.read("/api/overview"))["troubles"]
    assert trouble["reason"] == reason
    assert "purge" not in trouble["advice"]


async def test_events_that_wait_for_a_consumer_are_a_trouble_after_a_while(
    console: ServedConsole, later: Callable[[float], None]
) -> None:
    """The reason says for how long, and who holds them."""
    orders = console.create("orders")
    await append(orders, *[({}, b"x")] * 3)
    await take_one(orders)
    later(600)
    assert await reasons(console) == []
    later(1_200)
    assert await reasons(console) == [
        "nothing was taken for 20 minutes while 3 events wait, 1 of them held by open transactions"
    ]
    await orders.transactions.commit(["one"], None)
    assert await reasons(console) == ["nothing was taken for 20 minutes while 2 events wait"]


async def test_claim_whose_reader_reads_nothing_is_a_trouble(
    console: ServedConsole, later: Callable[[float], None]
) -> None:
    """Such as that of a job that is dead."""
    orders = console.create("orders")
    await append(orders, ({}, b"x"))
    await orders.claim("nightly", 3_600.0, takeover=False)
    later(3_600)
    [reason] = await reasons(console)
    assert reason.endswith("; reader nightly holds a claim")


async def test_channel_that_nobody_has_ever_read_is_no_trouble(
    console: ServedConsole, later: Callable[[float], None]
) -> None:
    """It may be a store, whose events wait for a retention."""
    await append(console.create("orders"), ({}, b"x"))
    later(1e6)
    assert await reasons(console) == []


async def test_certificates_that_expire_are_a_trouble(console: ServedConsole, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two weeks before; afterwards it is an error."""
    now = datetime.now(UTC)
    days = {"fresh": 30, "old": 10.5, "gone": -1}
    times = {Path("/etc/tls") / name: now + timedelta(days=left) for name, left in days.items()}
    monkeypatch.setattr(troubles, "expiry_times", lambda: times)
    shown = (await console.read("/api/overview"))["troubles"]
    assert [(one["name"], one["severity"], one["reason"]) for one in shown] == [
        ("gone", "error", "a certificate in /etc/tls/gone has expired"),
        ("old", "warning", "a certificate in /etc/tls/old expires in 10.5 days"),
    ]


async def test_clock_that_was_set_back_is_a_trouble(console: ServedConsole, later: Callable[[float], None]) -> None:
    """Commit times never descend, so they are ahead of it."""
    await append(console.create("orders"), ({}, b"x"))
    later(-100)
    [reason] = await reasons(console)
    assert reason.endswith("s ahead of the server's clock, which was set back")


async def test_disk_that_is_nearly_full_is_a_trouble(console: ServedConsole, tmp_path: Path) -> None:
    """It is told once, whatever the number of channels that are on it."""
    # More than it has free, whatever others write or remove meanwhile.
    reserves = shutil.disk_usage(tmp_path).total
    for name in ("one", "other"):
        config = FileChannelConfig(type="file", data_dirs=[tmp_path / name], min_free_bytes=reserves)
        await console.registry.create(name, config).opened.wait()
    [reason] = await reasons(console)
    assert reason.startswith(f"the disk of {tmp_path}")
    assert reason.endswith("left, then channels refuse puts")


async def test_channel_that_waits_for_its_engine_is_a_trouble(console: ServedConsole) -> None:
    """To stand by for another server is none, and the reason is what the channel itself says."""
    console.create("orders")
    handle = console.registry.find("orders")
    handle.mark_standing_by(lambda: Owner("mill-2:7070", 7))
    assert await reasons(console) == []
    handle.mark_standing_by(lambda: Owner("", 0), lambda: "the engine is down")
    assert await reasons(console) == ["the engine is down"]
    handle.mark_replaying()
    assert await reasons(console) == []
    handle.mark_replaying(lambda: "the engine is down")
    assert await reasons(console) == ["the engine is down"]
