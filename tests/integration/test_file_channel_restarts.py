"""File channels of servers that end in different ways and are restarted, perhaps with another configuration.

Replicated channels must keep the same over restarts, without files.
"""

import os
import shutil
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from examples.jetstream_cluster import JetStreamCluster
from millrace.v1 import admin_service_pb2
from millrace.v1 import channel_service_pb2 as pb
from tests.conftest import StartMillraced
from tests.millraced import Millraced
from tests.rpc import Rpc, bodies_of, connected, refused, seconds, sequences_of

OPEN, REPLAYING = admin_service_pb2.CHANNEL_STATE_OPEN, admin_service_pb2.CHANNEL_STATE_REPLAYING
STANDING_BY = admin_service_pb2.CHANNEL_STATE_STANDING_BY
LOG_FAILED = admin_service_pb2.CHANNEL_STATE_LOG_FAILED
SMALL_TOML = """
[channels.orders]
type = "file"
keep_alive_seconds = 0.0
segment_bytes_max = 65536
min_free_bytes = 0
"""


REPLICATED_TOML = """
[channels.orders]
type = "replicated"
keep_alive_seconds = 0.0
segment_bytes_max = 65536
min_free_bytes = 0
engine = {{ type = "jetstream", servers = ["{}"], replicas = 1, stream_bytes_max = "64MB", lease_seconds = 2.0 }}
"""


@pytest.fixture(params=["file", "replicated"])
def small_toml(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The configuration of a channel of each type; a replicated one has an engine of its own."""
    if request.param == "file":
        yield SMALL_TOML
        return
    with JetStreamCluster(tmp_path / "nats", 1) as engine:
        yield REPLICATED_TOML.format(engine.urls[0])


@asynccontextmanager
async def open_on(server: Millraced, name: str = "orders") -> AsyncGenerator[Rpc]:
    """A connection to a server whose channel is open."""
    async with connected(server.grpc) as rpc:
        assert await state_of(rpc, name) == OPEN, server.log
        yield rpc


async def state_of(rpc: Rpc, name: str = "orders") -> int:
    """The state of a channel, once it is known, and this server's to tell."""
    while (state := (await rpc.look(name)).state) in {REPLAYING, STANDING_BY}:
        pass
    return state


async def take_all(rpc: Rpc, name: str = "orders") -> list[bytes]:
    """Takes and commits all queued events."""
    txn_id = await rpc.begin(name)
    bodies = bodies_of((await rpc.take(txn_id)).batches)
    await rpc.commit(txn_id)
    return bodies


def data_of(server: Millraced, name: str = "orders") -> Path:
    """The default directory of a channel."""
    return server.data_dir / "channels" / name


async def test_restart_keeps_the_order_of_commits(start_millraced: StartMillraced, small_toml: str) -> None:
    """Whatever was taken and returned, by rollback or by a kill, events are delivered in the order of commits."""
    server = start_millraced(small_toml)
    async with open_on(server) as rpc:
        late, early = await rpc.begin("orders"), await rpc.begin("orders")
        await rpc.put(late, b"5", b"6")
        await rpc.append("orders", b"1", b"2")
        await rpc.put(early, b"3", b"4")
        await rpc.commit(early)
        await rpc.commit(late)
        for max_events in (1, 3, 2):
            await rpc.take(await rpc.begin("orders"), max_events=max_events)
    server.kill()
    again = start_millraced(small_toml, server.data_dir)
    async with open_on(again) as rpc:
        txn_id = await rpc.begin("orders")
        taken = await rpc.take(txn_id, max_events=4)
        assert sequences_of(taken.batches) == [1, 2, 3, 4]
        await rpc.rollback(txn_id)
        await rpc.append("orders", b"7")
    assert again.stop() == 0
    async with open_on(start_millraced(small_toml, server.data_dir)) as rpc:
        assert await take_all(rpc) == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]


@pytest.mark.parametrize("is_killed", [True, False])
async def test_restart_remembers_how_transactions_ended(
    *, is_killed: bool, start_millraced: StartMillraced, small_toml: str
) -> None:
    """Repeats of ended transactions get the same responses; those that were open are unknown."""
    # The server must not wait for the transaction that is left open.
    server = start_millraced("server.shutdown_grace_seconds = 0.0\n" + small_toml)
    async with open_on(server) as rpc:
        together = [await rpc.begin("orders") for _ in range(2)]
        for txn_id in together:
            await rpc.put(txn_id, b"put")
        response = await rpc.commit(*together)
        rolled_back, left = await rpc.begin("orders"), await rpc.begin("orders")
        await rpc.rollback(rolled_back)
        await rpc.put(left, b"never")
        # The append is written after the rollback, and its sync includes it.
        await rpc.append("orders", b"last")
    if is_killed:
        server.kill()
    else:
        server.stop()
    async with open_on(start_millraced(small_toml, server.data_dir)) as rpc:
        assert await rpc.commit(*together) == response
        assert await rpc.commit(together[1]) == response
        await rpc.rollback(rolled_back)
        async with refused(grpc.StatusCode.FAILED_PRECONDITION, "TXN_STATE"):
            await rpc.commit(rolled_back)
        # A server that leaves a channel to others says in the log what it has ended.
        is_told = small_toml != SMALL_TOML and not is_killed
        unknown = (grpc.StatusCode.NOT_FOUND, "TXN_NOT_FOUND")
        async with refused(*((grpc.StatusCode.ABORTED, "LEASE_EXPIRED") if is_told else unknown)):
            await rpc.commit(left)
        assert await take_all(rpc) == [b"put", b"put", b"last"]


async def test_restart_with_another_capacity_keeps_what_is_there(
    start_millraced: StartMillraced, small_toml: str
) -> None:
    """A channel that exceeds its new capacity delivers everything, and accepts events once they fit."""
    server = start_millraced(small_toml + "capacity = 5\n")
    async with open_on(server) as rpc:
        await rpc.append("orders", *(b"%d" % number for number in range(5)))
        async with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "CHANNEL_FULL"):
            await rpc.append("orders", b"5")
    server.kill()
    again = start_millraced(small_toml + "capacity = 3\n", server.data_dir)
    async with open_on(again) as rpc:
        txn_id = await rpc.begin("orders")
        await rpc.take(txn_id, max_events=2)
        await rpc.commit(txn_id)
        async with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "CHANNEL_FULL"):
            await rpc.append("orders", b"5")
        # The same while the server runs.
        limits = admin_service_pb2.ChannelConfig(capacity=4)
        update = admin_service_pb2.UpdateChannelRequest(name="orders", config=limits)
        assert (await rpc.admin.UpdateChannel(update)).applied
        await rpc.append("orders", b"5")
        async with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "CHANNEL_FULL"):
            await rpc.append("orders", b"6")
    again.kill()
    async with open_on(start_millraced(small_toml + "capacity = 6\n", server.data_dir)) as rpc:
        await rpc.append("orders", b"6", b"7")
        assert await take_all(rpc) == [b"2", b"3", b"4", b"5", b"6", b"7"]


def _key_file(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def _sealed_toml(keys: dict[str, Path], active_key: str, compression: str) -> str:
    named = ", ".join(f"{key_id} = '{path}'" for key_id, path in keys.items())
    sealed = f"{SMALL_TOML}compression = '{compression}'\n"
    return f"{sealed}encryption = {{ keys = {{ {named} }}, active_key = '{active_key}' }}\n" if keys else sealed


async def test_restarts_with_other_keys_and_compression_read_all_that_was_written(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """A channel's log may use several keys; each is needed as long as anything is encrypted with it."""
    old, new = _key_file(tmp_path / "old", b"o" * 32), _key_file(tmp_path / "new", b"n" * 32)
    both = {"old": old, "new": new}
    phases = [
        _sealed_toml({}, "", "none"),
        _sealed_toml({"old": old}, "old", "none"),
        _sealed_toml(both, "new", "zstd"),
        _sealed_toml(both, "old", "zstd"),
        _sealed_toml(both, "new", "none"),
        _sealed_toml(both, "new", "zstd"),
    ]
    data_dir = None
    for number, phase in enumerate(phases):
        server = start_millraced(phase, data_dir)
        data_dir = server.data_dir
        async with open_on(server) as rpc:
            # More than a segment holds, so that each part has a segment of its own.
            for part in range(2):
                await rpc.append("orders", b"phase %d part %d " % (number, part) + b"secret" * 7000)
        if number % 2:
            server.kill()
        else:
            assert server.stop() == 0
    assert data_dir is not None
    plain = [b"phase %d" % number for number in range(len(phases))]
    files = b"".join(path.read_bytes() for path in data_dir.rglob("segment-*"))
    assert [body for body in plain if body in files] == [b"phase 0"]

    without = start_millraced(_sealed_toml({"new": new}, "new", "zstd"), data_dir)
    async with connected(without.grpc) as rpc:
        await state_of(rpc)
        # If a checkpoint covers events that need the key, the error comes with the read.
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            await rpc.take(await rpc.begin("orders"))
        assert lost.value.code() is grpc.StatusCode.DATA_LOSS
        assert "the encryption key 'old' is needed" in without.wait_for("channel changed its state")["reason"]
    without.kill()

    async with open_on(start_millraced(phases[-1], data_dir)) as rpc:
        bodies = await take_all(rpc)
    assert [body[:14] for body in bodies] == [
        b"phase %d part %d" % (number, part) for number in range(len(phases)) for part in range(2)
    ]
    assert {body[15:] for body in bodies} == {b"secret" * 7000}


async def test_start_with_another_key_under_the_id_tells_of_the_key(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """The state is LOG_FAILED, not CORRUPT; with the right key the channel opens with all events."""
    key, other = tmp_path / "key", tmp_path / "other"
    for file in (key, other):
        file.write_bytes(os.urandom(32))
        file.chmod(0o600)
    server = start_millraced(_sealed_toml({"k": key}, "k", "none"))
    async with open_on(server) as rpc:
        await rpc.append("orders", b"1")
    server.kill()
    wrong = start_millraced(_sealed_toml({"k": other}, "k", "none"), server.data_dir)
    async with connected(wrong.grpc) as rpc:
        assert await state_of(rpc) == LOG_FAILED
        assert "an encryption key is missing, or a different key was given for it" in (await rpc.look("orders")).fault
    assert "the one given is most likely another" in wrong.wait_for("a channel cannot be opened")["error"]
    wrong.kill()
    async with open_on(start_millraced(_sealed_toml({"k": key}, "k", "none"), server.data_dir)) as rpc:
        assert await take_all(rpc) == [b"1"]


async def test_start_with_a_key_that_anybody_may_read_is_refused(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """The log says how to protect the key, and nothing is written."""
    key = _key_file(tmp_path / "key", b"k" * 32, 0o644)
    server = start_millraced(_sealed_toml({"k": key}, "k", "none"))
    async with connected(server.grpc) as rpc:
        assert await state_of(rpc) == LOG_FAILED
    assert "chmod 600" in server.wait_for("a channel cannot be opened")["error"]
    assert not list(server.data_dir.rglob("segment-*"))


async def test_restart_with_several_directories_finds_all_in_any_order(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """Segments go to the directories in turn; all directories are needed, in any order."""
    disks = [tmp_path / f"disk-{number}" for number in range(3)]
    checkpoints = tmp_path / "checkpoints"

    def toml(*data_dirs: Path) -> str:
        return f"{SMALL_TOML}data_dirs = {[str(path) for path in data_dirs]}\ncheckpoint_dir = '{checkpoints}'\n"

    server = start_millraced(toml(*disks))
    bodies = [b"%d " % number + bytes(30_000) for number in range(20)]
    async with open_on(server) as rpc:
        for body in bodies:
            await rpc.append("orders", body)
    server.kill()
    assert all(list((disk / "orders").glob("segment-*.log")) for disk in disks)
    assert not list(data_of(server).glob("*"))

    for fewer in (disks[:2], [disks[0], disks[2], tmp_path / "empty"]):
        short = start_millraced(toml(*fewer), server.data_dir)
        async with connected(short.grpc) as rpc:
            assert await state_of(rpc) == LOG_FAILED
        assert "is not among those given" in short.wait_for("a channel cannot be opened")["error"]
        short.kill()

    shutil.rmtree(checkpoints)
    async with open_on(start_millraced(toml(*reversed(disks)), server.data_dir)) as rpc:
        assert await take_all(rpc) == bodies


async def test_kill_behind_an_acknowledged_release_brings_no_claim_back(
    start_millraced: StartMillraced, small_toml: str
) -> None:
    """A SIGKILL directly after the response does not restore the claim."""
    server = start_millraced(small_toml)
    epochs = []
    for reader_id in ("first", "second", "third"):
        async with open_on(server) as rpc:
            epochs.append((await rpc.claim("orders", reader_id, lease=seconds(600))).epoch)
            await rpc.channels.Release(pb.ReleaseRequest(channel="orders", reader_id=reader_id))
            server.kill()
        server = start_millraced(small_toml, server.data_dir)
    assert epochs == sorted(set(epochs))


async def test_restart_keeps_a_claim_with_its_epoch(start_millraced: StartMillraced, small_toml: str) -> None:
    """The reader continues from its position; another reader still waits, and a later claim has a later epoch."""
    server = start_millraced(small_toml)
    async with open_on(server) as rpc:
        await rpc.append("orders", b"1", b"2", b"3")
        claim = await rpc.claim("orders", "reader", lease=seconds(600))
    server.kill()
    async with open_on(start_millraced(small_toml, server.data_dir)) as rpc:
        async with refused(grpc.StatusCode.FAILED_PRECONDITION, "CHANNEL_CLAIMED"):
            await rpc.claim("orders", "other")
        again = await rpc.claim("orders", "reader")
        assert (again.epoch, again.channel_id, again.first_sequence) == (claim.epoch, claim.channel_id, 1)
        assert sequences_of(await rpc.read("orders", "reader", epoch=claim.epoch)) == [1, 2, 3]
        assert (await rpc.claim("orders", "other", takeover=True)).epoch > claim.epoch
        async with refused(grpc.StatusCode.ABORTED, "STALE_EPOCH"):
            await rpc.read("orders", "reader", epoch=claim.epoch)
