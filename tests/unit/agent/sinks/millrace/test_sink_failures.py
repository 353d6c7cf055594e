"""A sink of type `millrace` whose servers cannot be reached, do not respond or change."""

import asyncio
import socket
from typing import Any

import grpc
import pytest

from millrace.v1 import admin_service_pb2 as admin_pb
from millrace_server.agent.components import ComponentState
from millrace_server.agent.sinks.millrace import pipeline
from millrace_server.agent.sinks.millrace.sink import ForwardingSink
from millrace_server.agent.sinks.millrace.target import Endpoints
from millrace_server.errors import DiskFullError
from tests.channel_events import check_accounts, queued
from tests.fake_clock import FakeClock
from tests.forward_scene import FULL, Held, Scene, empty, fill, responding, running
from tests.forward_targets import STORED, EndOfStreamError, Request, Response, bodies_in, config_of, fake_target
from tests.waiting import until


async def test_run_without_a_listening_receiver_takes_nothing(scene: Scene) -> None:
    """The events stay for other sinks, in order; the state names the unreachable target."""
    await fill(scene.channel, 10)
    sink = ForwardingSink(config_of("127.0.0.1:1"), scene.scratch)
    await scene.give_up(r"cannot reach a Millrace server at 127.0.0.1:1; is millraced running", sink)
    assert (scene.reader.unsettled_count, scene.channel._contents.counters.take_attempts) == (0, 0)


async def test_run_where_the_server_does_not_respond_gives_up_in_time(scene: Scene) -> None:
    """A sink does not wait without limit for a connection that is not served."""
    # The kernel accepts the connection, as for a stopped process.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "{}:{}".format(*silent.getsockname())
        sink = ForwardingSink(config_of(address, connect_timeout_seconds=0.1), scene.scratch)
        await scene.give_up(f"{address} does not respond", sink)


async def test_run_to_a_missing_channel_reports_it(scene: Scene) -> None:
    """The channel may still be created; no event was taken for it."""
    scene.target.found = None
    await fill(scene.channel, 10)
    await scene.give_up("does not accept events for its channel orders: CHANNEL_NOT_FOUND")
    assert scene.channel._contents.counters.take_attempts == 0


@pytest.mark.parametrize(
    ("state", "fault", "words"),
    [
        (admin_pb.CHANNEL_STATE_REPLAYING, "", "it is replaying its log"),
        (admin_pb.CHANNEL_STATE_LOG_FAILED, "the disk is broken", "the disk is broken"),
        (admin_pb.CHANNEL_STATE_CORRUPT, "", "its files are damaged"),
    ],
)
async def test_run_to_an_unavailable_channel_takes_nothing(
    scene: Scene, state: admin_pb.ChannelState, fault: str, words: str
) -> None:
    """The reason is the target's."""
    assert scene.target.found is not None
    scene.target.found.state = state
    scene.target.found.fault = fault
    await fill(scene.channel, 10)
    await scene.give_up(f"does not accept events for its channel orders: {words}")
    assert scene.channel._contents.counters.take_attempts == 0


async def test_run_to_a_server_that_stands_by_goes_on_at_the_owner(scene: Scene) -> None:
    """The server names the owner of the channel; one that names nobody, or itself, is not waited for."""
    bodies = await fill(scene.channel, 10)
    async with fake_target() as standby:
        assert standby.found is not None
        standby.found.state = admin_pb.CHANNEL_STATE_STANDING_BY
        for owner in ("", standby.address):
            standby.found.owner = owner
            sink = ForwardingSink(config_of(standby.address), scene.scratch)
            await scene.give_up(f"no server is known to own channel orders; {standby.address} stands by", sink)
        standby.found.owner = scene.target.address
        async with running(ForwardingSink(config_of(standby.address), scene.scratch), scene.reader):
            await until(lambda: bodies_in(scene.target.requests) == bodies)
        assert standby.requests == []


async def test_run_whose_responses_do_not_come_ends_after_a_while(scene: Scene) -> None:
    """A server may accept requests and never respond; their events return to their places."""
    bodies = await fill(scene.channel, 100)
    scene.target.respond = Held()
    await scene.give_up(f"{scene.target.address} does not respond", scene.sink(timeout_seconds=0.1))
    assert queued(scene.channel) == bodies
    check_accounts(scene.channel)


async def test_run_whose_responses_are_late_reports_it_until_they_come(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink's state shows that it makes no progress long before it gives up."""
    monkeypatch.setattr(pipeline, "SLOW_SECONDS", 0.05)
    held = scene.target.respond = Held()
    await fill(scene.channel, 10)
    async with running(scene.sink(), scene.reader):
        await until(lambda: scene.component.state is ComponentState.BACKING_OFF)
        assert scene.component.reason == f"{scene.target.address} has not responded for 0.05 s or more"
        held.may_go.set()
        await empty(scene.channel)
        assert scene.component.state is ComponentState.RUNNING
    assert len(scene.target.streams) == 1


async def test_run_that_waits_for_events_waits_as_long_as_it_takes(scene: Scene) -> None:
    """As long as nothing was sent, no response is late."""
    async with running(scene.sink(timeout_seconds=0.05), scene.reader):
        await until(lambda: bool(scene.target.streams))
        await asyncio.sleep(0.15)
    assert len(scene.target.streams) == 1


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (EndOfStreamError(), "closed the stream$"),
        (EndOfStreamError(grpc.StatusCode.UNAVAILABLE, "going away"), r"cannot reach .* \(going away\)"),
        (EndOfStreamError(grpc.StatusCode.INTERNAL, "a bug"), "failed: INTERNAL: a bug"),
        (EndOfStreamError(grpc.StatusCode.DEADLINE_EXCEEDED, ""), "did not respond in time"),
    ],
)
async def test_run_whose_stream_ends_returns_in_flight_events(scene: Scene, end: EndOfStreamError, words: str) -> None:
    """Whatever ends the stream; events responded before are removed."""
    bodies = await fill(scene.channel, 100)

    async def respond(request: Request) -> Response:
        if request.stamp.first_sequence > 50:
            # During a write, gRPC may report the failure of that instead.
            await until(lambda: len(scene.target.requests) == 10)
            raise end
        return STORED

    scene.target.respond = respond
    await scene.give_up(words)
    assert queued(scene.channel) == bodies[50:]
    check_accounts(scene.channel)


async def test_run_whose_events_cannot_be_removed_reports_it_and_sends_them_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target has stored the events, and recognizes them when they are sent again."""
    bodies = await fill(scene.channel, 30)
    settle = scene.channel.deliveries.settle

    def fail_once(delivery: Any) -> Any:
        monkeypatch.setattr(scene.channel.deliveries, "settle", settle)
        scene.channel.deliveries.nack(delivery)
        raise DiskFullError("no space")

    monkeypatch.setattr(scene.channel.deliveries, "settle", fail_once)
    with pytest.raises(DiskFullError):
        await scene.sink().run(scene.reader)
    scene.reader.nack_all()
    assert queued(scene.channel)[:10] == bodies[:10]
    async with running(scene.sink(), scene.reader):
        await empty(scene.channel)
    assert scene.target.streams[-1][0].stamp.first_sequence == 1


async def test_run_that_ends_waits_until_all_is_removed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sink waits until the channel has removed what the target accepted, and raises if that fails."""
    await fill(scene.channel, 10)
    removal: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(scene.channel.deliveries, "settle", lambda _delivery: removal)
    work = asyncio.create_task(scene.sink().run(scene.reader))
    await until(lambda: bool(scene.target.requests))
    scene.reader.close()
    await asyncio.wait({work}, timeout=0.1)
    assert not work.done()
    removal.set_exception(DiskFullError("no space"))
    with pytest.raises(DiskFullError):
        await work


async def test_run_of_a_server_that_responds_too_much_reports_it(scene: Scene) -> None:
    """A server that counts responses wrongly is not trusted with further events."""
    scene.target.responses_each = 2
    await fill(scene.channel, 10)
    await scene.give_up("has responded to a request that was not sent")
    assert not queued(scene.channel)


# Several servers.


async def test_run_continues_with_the_next_server_once_one_has_failed_for_long(scene: Scene) -> None:
    """The choice survives a restart."""
    config = config_of("127.0.0.1:1", scene.target.address, failover_seconds=0.0)
    sink = ForwardingSink(config, scene.scratch)
    bodies = await fill(scene.channel, 50)
    await scene.give_up(r"127\.0\.0\.1:1;", sink)
    async with running(sink, scene.reader):
        await empty(scene.channel)
    assert bodies_in(scene.target.requests) == bodies
    scene.reader._is_closing = False
    async with running(ForwardingSink(config, scene.scratch), scene.reader):
        await fill(scene.channel, 10)
        await empty(scene.channel)
    assert len(scene.target.streams) == 2


@pytest.mark.parametrize("is_found", [True, False])
async def test_run_leaves_a_server_that_hangs_once_it_was_silent_for_long_enough(
    scene: Scene, *, is_found: bool
) -> None:
    """The time without a response counts, whether to the first call or to requests."""
    bodies = await fill(scene.channel, 50)
    scene.target.respond = Held()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hanging = scene.target.address if is_found else "{}:{}".format(*silent.getsockname())
        async with fake_target() as other:
            quick = {"timeout_seconds": 0.25, "connect_timeout_seconds": 0.25}
            sink = ForwardingSink(config_of(hanging, other.address, failover_seconds=0.2, **quick), scene.scratch)
            await scene.give_up(f"{hanging} does not respond", sink)
            # The other one may be slow.
            sink._config = config_of(hanging, other.address)
            async with running(sink, scene.reader):
                await empty(scene.channel)
            assert bodies_in(other.requests) == bodies


async def test_run_stays_with_a_server_that_has_failed_for_a_moment(scene: Scene) -> None:
    """Only that server recognizes events that it has stored without a response."""
    async with fake_target() as other:
        sink = ForwardingSink(config_of(scene.target.address, other.address), scene.scratch)
        await fill(scene.channel, 50)
        scene.target.respond = responding(FULL)
        for _ in range(3):
            await scene.give_up("CHANNEL_FULL", sink)
        scene.target.respond = responding(STORED)
        async with running(sink, scene.reader):
            await empty(scene.channel)
        assert other.requests == []


async def test_run_stays_with_a_server_that_was_there_and_had_nothing_to_do(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure long ago and one now are no reason to leave the server."""
    monkeypatch.setattr(pipeline, "IDLE_SECONDS", 0.02)
    clock = FakeClock()
    async with fake_target() as other:
        config = config_of(scene.target.address, other.address)
        sink = ForwardingSink(config, scene.scratch)
        sink._endpoints = Endpoints(config.endpoints, config.failover_seconds, scene.scratch, clock)
        found, scene.target.found = scene.target.found, None
        await scene.give_up("CHANNEL_NOT_FOUND", sink)
        scene.target.found = found
        async with running(sink, scene.reader):
            await until(lambda: bool(scene.target.streams))
            await asyncio.sleep(0.05)
        clock.now += 2 * config.failover_seconds
        scene.reader._is_closing = False
        scene.target.found = None
        await scene.give_up("CHANNEL_NOT_FOUND", sink)
        scene.target.found = found
        async with running(sink, scene.reader):
            await fill(scene.channel, 10)
            await empty(scene.channel)
        assert other.requests == []
