"""File channels that are being replayed, damaged, in use elsewhere, or on a full disk; the errors that callers get."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from millrace.v1 import admin_service_pb2
from tests.conftest import StartMillraced
from tests.millraced import Millraced
from tests.rpc import Rpc, bodies_of, connected, refused
from tests.segment_versions import LATER_VERSION, set_version

OPEN, REPLAYING = admin_service_pb2.CHANNEL_STATE_OPEN, admin_service_pb2.CHANNEL_STATE_REPLAYING
DISK_FULL = admin_service_pb2.CHANNEL_STATE_DISK_FULL
CORRUPT, LOG_FAILED = admin_service_pb2.CHANNEL_STATE_CORRUPT, admin_service_pb2.CHANNEL_STATE_LOG_FAILED
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
TOML = """
[channels.orders]
type = "file"
keep_alive_seconds = 0.0
segment_bytes_max = 65536
min_free_bytes = 0

[channels.others]
type = "file"
min_free_bytes = 0
"""
"""More than the largest disk has, and no more than can be configured."""
_HUGE_BYTES = 1 << 50
_HEADER_BYTES = 64


def _health(rpc: Rpc) -> Any:
    return health_pb2_grpc.HealthStub(rpc.connection)


async def _status(rpc: Rpc, service: str) -> int:
    response: health_pb2.HealthCheckResponse = await _health(rpc).Check(health_pb2.HealthCheckRequest(service=service))
    return int(response.status)


async def _state(rpc: Rpc, name: str = "orders") -> int:
    """The state of a channel, once it is known."""
    while (state := (await rpc.look(name)).state) == REPLAYING:
        pass
    return state


def _page(server: Millraced, path: str) -> Any:
    with urlopen(f"http://{server.http}{path}", timeout=10) as response:
        return json.load(response)


def _data(server: Millraced, name: str = "orders") -> Path:
    return server.data_dir / "channels" / name


def _contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "lock"}


async def _written(start_millraced: StartMillraced, count: int = 3) -> Millraced:
    """A server that has ended, with events in its channel and a checkpoint."""
    server = start_millraced(TOML)
    async with connected(server.grpc) as rpc:
        assert await _state(rpc) == OPEN
        for number in range(count):
            await rpc.append("orders", b"%d" % number)
    assert server.stop() == 0
    return server


async def _take_all(rpc: Rpc, name: str = "orders") -> list[bytes]:
    txn_id = await rpc.begin(name)
    bodies = bodies_of((await rpc.take(txn_id)).batches)
    await rpc.commit(txn_id)
    return bodies


async def test_calls_while_a_channel_is_read_back_are_refused_with_a_retry(start_millraced: StartMillraced) -> None:
    """Until it is open the channel is UNAVAILABLE, as is its health; the server and other channels keep serving."""
    written = await _written(start_millraced)
    checkpoint = _data(written) / "checkpoint"
    checkpoint.rename(checkpoint.with_name("checkpoint.previous"))
    # Opening a pipe for reading waits until it is opened for writing. It contains no checkpoint, so the previous one is
    # used then. It is read twice, first for its version.
    os.mkfifo(checkpoint)
    server = start_millraced(TOML, written.data_dir)
    async with connected(server.grpc) as rpc:
        channel = await rpc.look("orders")
        assert (channel.state, channel.fault) == (REPLAYING, "")
        async with refused(grpc.StatusCode.UNAVAILABLE, "REPLAYING", "is replaying its log") as append:
            await rpc.append("orders", b"early")
        assert append.refusal.retry_delay_seconds
        # The transaction may be that channel's, which is not known yet.
        async with refused(grpc.StatusCode.UNAVAILABLE, "REPLAYING"):
            await rpc.commit("some-transaction")
        async with refused(grpc.StatusCode.FAILED_PRECONDITION, "CHANNEL_CONFIGURED"):
            await rpc.delete("orders", force=True)
        await rpc.append("others", b"meanwhile")
        assert await _status(rpc, "channels/orders") == NOT_SERVING
        assert await _status(rpc, "channels/others") == SERVING
        assert await _status(rpc, "") == SERVING

        watched = _health(rpc).Watch(health_pb2.HealthCheckRequest(service="channels/orders"))
        assert (await watched.read()).status == NOT_SERVING
        changing = asyncio.ensure_future(watched.read())
        while not changing.done():
            with suppress(OSError):
                os.close(os.open(checkpoint, os.O_WRONLY | os.O_NONBLOCK))
            await asyncio.sleep(0.01)
        assert changing.result().status == SERVING
        watched.cancel()
        assert await _take_all(rpc) == [b"0", b"1", b"2"]


async def test_start_with_a_damaged_channel_says_corrupt_and_leaves_it(start_millraced: StartMillraced) -> None:
    """Callers get DATA_LOSS, the log says where the damage is, nothing is written, and other channels serve."""
    written = await _written(start_millraced)
    for path in _data(written).glob("checkpoint*"):
        path.unlink()
    [segment] = _data(written).glob("segment-*.log")
    content = bytearray(segment.read_bytes())
    content[content.index(b"\x08\x01", _HEADER_BYTES)] ^= 1
    segment.write_bytes(content)
    before = _contents(_data(written))
    server = start_millraced(TOML, written.data_dir)
    async with connected(server.grpc) as rpc:
        assert await _state(rpc) == CORRUPT
        async with refused(grpc.StatusCode.DATA_LOSS, "CORRUPT") as append:
            await rpc.append("orders", b"refused")
        assert str(server.data_dir) not in append.refusal.message
        async with refused(grpc.StatusCode.DATA_LOSS, "CORRUPT"):
            await rpc.begin("orders")
        assert "is damaged at byte" in server.wait_for("a channel cannot be opened")["error"]
        assert await _status(rpc, "channels/orders") == NOT_SERVING
        assert await _status(rpc, "") == SERVING
        await rpc.append("others", b"goes on")
        assert await _take_all(rpc, "others") == [b"goes on"]
    assert server.stop() == 0
    assert _contents(_data(written)) == before


async def test_take_of_damaged_events_says_corrupt_and_keeps_its_place(start_millraced: StartMillraced) -> None:
    """Opening does not read what a checkpoint covers; damage there is reported when it is taken."""
    server = start_millraced(TOML)
    async with connected(server.grpc) as rpc:
        assert await _state(rpc) == OPEN
        await rpc.append("orders", b"good" * 20_000)
        await rpc.append("orders", b"damaged" * 100)
    assert server.stop() == 0
    segment = next(path for path in _data(server).glob("segment-*.log") if b"damaged" in path.read_bytes())
    segment.write_bytes(segment.read_bytes().replace(b"damaged", b"DAMAGED", 1))
    again = start_millraced(TOML, server.data_dir)
    async with connected(again.grpc) as rpc:
        assert await _state(rpc) == OPEN
        txn_id = await rpc.begin("orders")
        async with refused(grpc.StatusCode.DATA_LOSS, "CORRUPT"):
            await rpc.take(txn_id)
        assert await _status(rpc, "channels/orders") == NOT_SERVING
        assert (await rpc.look("orders")).state == CORRUPT
        # Undamaged events can still be taken.
        assert bodies_of((await rpc.take(txn_id, max_events=1)).batches) == [b"good" * 20_000]
        await rpc.commit(txn_id)


async def test_start_with_another_version_of_a_log_is_refused_and_writes_nothing(
    start_millraced: StartMillraced,
) -> None:
    """The log of a later server is left unchanged."""
    written = await _written(start_millraced)
    set_version(_data(written) / "segment-000000000001.log", LATER_VERSION)
    before = _contents(_data(written))
    server = start_millraced(TOML, written.data_dir)
    async with connected(server.grpc) as rpc:
        assert await _state(rpc) == CORRUPT
        assert f"its format version is {LATER_VERSION}" in server.wait_for("a channel cannot be opened")["error"]
        async with refused(grpc.StatusCode.DATA_LOSS, "CORRUPT"):
            await rpc.append("orders", b"refused")
    assert server.stop() == 0
    assert _contents(_data(written)) == before


async def test_start_on_the_directories_of_another_server_is_refused(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """The second server serves without the channel; the first one is not affected."""
    toml = f"{TOML}data_dirs = ['{tmp_path / 'disk'}']\n"
    first = start_millraced(toml)
    async with connected(first.grpc) as rpc:
        assert await _state(rpc, "others") == OPEN
        second = start_millraced(toml)
        async with connected(second.grpc) as other:
            assert await _state(other, "others") == LOG_FAILED
            async with refused(grpc.StatusCode.DATA_LOSS, "LOG_FAILED"):
                await other.append("others", b"refused")
            refusal = second.wait_for("a channel cannot be opened")
            assert f"another channel or server (process {first.process.pid}) uses it" in refusal["error"]
            assert await _state(other, "orders") == OPEN
        await rpc.append("others", b"goes on")
        assert await _take_all(rpc, "others") == [b"goes on"]


async def test_puts_on_a_disk_with_too_little_space_are_refused_while_takes_go_on(
    start_millraced: StartMillraced,
) -> None:
    """min_free_bytes reserves space for calls that free some; it can be changed while the channel is open."""
    server = start_millraced(TOML)
    async with connected(server.grpc) as rpc:
        assert await _state(rpc) == OPEN
        await rpc.append("orders", b"one", b"two", b"three")
        await _have_free(rpc, _HUGE_BYTES)
        txn_id = await rpc.begin("orders")
        await rpc.put(txn_id, b"swapped")
        async with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_FULL") as append:
            await rpc.append("orders", b"refused")
        assert append.refusal.retry_delay_seconds
        assert bodies_of((await rpc.take(txn_id, max_events=1)).batches) == [b"one"]
        async with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_FULL"):
            await rpc.commit(txn_id)
        taking = await rpc.begin("orders")
        assert bodies_of((await rpc.take(taking, max_events=1)).batches) == [b"two"]
        await rpc.commit(taking)
        assert await _status(rpc, "channels/orders") == SERVING
        await _have_free(rpc, 0)
        await rpc.commit(txn_id)
    server.kill()
    again = start_millraced(TOML, server.data_dir)
    async with connected(again.grpc) as rpc:
        assert await _state(rpc) == OPEN
        assert await _take_all(rpc) == [b"three", b"swapped"]


async def _have_free(rpc: Rpc, min_free_bytes: int) -> None:
    limits = admin_service_pb2.ChannelConfig(min_free_bytes=min_free_bytes)
    update = admin_service_pb2.UpdateChannelRequest(name="orders", config=limits)
    assert (await rpc.admin.UpdateChannel(update)).applied


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few MiB; the test is skipped without the right to mount."""
    disk = tmp_path / "small-disk"
    disk.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounting.returncode:
        pytest.skip("may not mount a small disk")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@contextmanager
def _filled(disk: Path, left_bytes: int) -> Iterator[None]:
    """Fills a disk except for a little, as other programs may do."""
    filler = disk / "filler"
    free = os.statvfs(disk)
    filler.write_bytes(bytes(free.f_bavail * free.f_frsize - left_bytes))
    yield
    filler.unlink()


async def _look_until(rpc: Rpc, state: int) -> admin_service_pb2.Channel:
    """The channel once it has a state, which it gets when the disk was measured."""
    while (channel := await rpc.look("orders")).state != state:
        pass
    return channel


@pytest.mark.parametrize("channel_type", ["file", "spillable"])
async def test_disk_that_was_full_once_takes_puts_again_when_the_channel_is_empty(
    start_millraced: StartMillraced, small_disk: Path, channel_type: str
) -> None:
    """The put that finds no space waits while the emptied log is given back, each time, also after SIGKILL."""
    toml = f"""
    [channels.orders]
    type = "{channel_type}"
    data_dirs = ['{small_disk}']
    checkpoint_interval_seconds = 3600.0
    min_free_bytes = 500000
    keep_alive_seconds = 0.3
    """
    toml += "memory_capacity = 1" * (channel_type == "spillable")
    data_dir = None
    for _ in range(3):
        server = start_millraced(toml, data_dir)
        data_dir = server.data_dir
        async with connected(server.grpc) as rpc:
            assert await _state(rpc) == OPEN
            await _empty_after_filling(rpc)
        server.kill()


async def _empty_after_filling(rpc: Rpc) -> None:
    """Appends until the disk is full, takes everything, and does so again without a restart."""
    for _ in range(2):
        stored: list[bytes] = []
        # On a busy machine space may be found after a put has waited for it as long as it may.
        while len(stored) <= 5 or (await rpc.look("orders")).state != DISK_FULL:
            async with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_FULL"):
                while True:
                    body = b"%d " % len(stored) + bytes(200_000)
                    await rpc.append("orders", body)
                    stored.append(body)
        taken: list[bytes] = []
        while len(taken) < len(stored):
            taken += await _take_all(rpc)
        assert taken == stored


async def test_disk_that_is_full_refuses_puts_and_goes_on_when_it_is_not(
    start_millraced: StartMillraced, small_disk: Path
) -> None:
    """Acknowledged events are kept, refused ones are not stored, takes are committed, and then everything continues."""
    toml = TOML.replace("[channels.others]", f"data_dirs = ['{small_disk}']\n\n[channels.others]")
    server = start_millraced(toml)
    async with connected(server.grpc) as rpc:
        assert await _state(rpc) == OPEN
        stored = [b"%d " % number + bytes(20_000) for number in range(10)]
        for body in stored:
            await rpc.append("orders", body)
        with _filled(small_disk, 30_000):
            # The state also says so for a moment where space is found after all; the log tells it once there is none.
            while not any(entry["event"] == "channel changed its state" for entry in list(server.log)):
                async with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_FULL"):
                    # Space reserved by a segment can still be used.
                    while True:
                        body = b"small %d " % len(stored) + bytes(20_000)
                        await rpc.append("orders", body)
                        stored.append(body)
            channel = await rpc.look("orders")
            assert channel.state == DISK_FULL
            assert channel.fault.startswith("the disk has no space for puts: ")
            assert channel.gauges.disk_free_bytes < 100_000
            assert await _status(rpc, "channels/orders") == SERVING
            assert await asyncio.to_thread(_page, server, "/healthz") == {
                "status": "serving",
                "channels": {"orders": "disk full"},
            }
            txn_id = await rpc.begin("orders")
            assert bodies_of((await rpc.take(txn_id, max_events=2)).batches) == stored[:2]
            await rpc.commit(txn_id)
        assert (await _look_until(rpc, OPEN)).gauges.disk_free_bytes > 100_000
        await rpc.append("orders", b"space again")
        told = [entry["state"] for entry in server.log if entry["event"] == "channel changed its state"]
        assert told == ["disk full", "open"]
    server.kill()
    again = start_millraced(toml, server.data_dir)
    async with connected(again.grpc) as rpc:
        assert await _state(rpc) == OPEN
        assert await _take_all(rpc) == [*stored[2:], b"space again"]
    # The disk must not be in use when the fixture unmounts it.
    again.kill()
