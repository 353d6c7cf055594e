import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from millrace.v1 import admin_service_pb2 as admin_pb
from millrace_server.agent.channel_reader import ChannelReader
from millrace_server.agent.components import Component, ComponentState
from millrace_server.agent.sinks.millrace import pipeline
from millrace_server.agent.sinks.millrace.sink import ForwardingSink
from millrace_server.agent.supervision import ComponentError, ComponentFailedError
from millrace_server.channels.channel import Channel
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import DiskFullError
from tests.agent_components import registry_with
from tests.channel_events import append, check_accounts, queued
from tests.forward_targets import (
    STORED,
    EndOfStreamError,
    FakeTarget,
    Request,
    Response,
    bodies_in,
    config_of,
    fake_target,
    reader_of,
    refused,
    served,
)
from tests.waiting import until

FULL = refused("CHANNEL_FULL", grpc.StatusCode.RESOURCE_EXHAUSTED, 1.0)
TOO_MANY = refused("TXN_CAPACITY", grpc.StatusCode.INVALID_ARGUMENT)
TOO_LARGE = refused("EVENT_TOO_LARGE", grpc.StatusCode.INVALID_ARGUMENT)


@dataclass
class Scene:
    """A channel, and the server to which its events are forwarded."""

    registry: ChannelRegistry
    target: FakeTarget
    scratch: Path
    reader: ChannelReader = field(init=False)

    def __post_init__(self) -> None:
        self.reader = reader_of(self.registry)

    @property
    def channel(self) -> Channel:
        return self.registry.get("orders")

    @property
    def component(self) -> Component:
        return self.reader._component

    def sink(self, **settings: Any) -> ForwardingSink:
        return ForwardingSink(config_of(self.target.address, **settings), self.scratch)

    async def give_up(self, words: str, sink: ForwardingSink | None = None) -> ComponentError:
        """Runs a sink that must give up, and checks its reason."""
        with pytest.raises(ComponentError, match=words) as raised:
            await (sink or self.sink()).run(self.reader)
        self.reader.nack_all()
        return raised.value


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with fake_target() as target:
        registry = registry_with("orders", "rejected", capacity=1_000_000, transaction_capacity=10_000)
        yield Scene(registry, target, tmp_path)


async def fill(channel: Channel, count: int, batch_events: int = 10) -> list[bytes]:
    """Appends events; returns their bodies."""
    bodies = [b"%d" % number for number in range(count)]
    for start in range(0, count, batch_events):
        await append(channel, *bodies[start : start + batch_events])
    return bodies


async def empty(channel: Channel) -> None:
    await until(lambda: not channel._contents.capacity.event_count)


@asynccontextmanager
async def running(sink: ForwardingSink, reader: ChannelReader) -> AsyncIterator[None]:
    """Runs the sink inside the block and stops it at the end; a sink that gives up fails the test."""
    async with asyncio.TaskGroup() as working:
        working.create_task(sink.run(reader))
        yield
        reader.close()


@dataclass
class Held:
    """Responds to that wait until the test releases them."""

    response: Response = field(default_factory=lambda: STORED)
    may_go: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, _request: Request) -> Response:
        await self.may_go.wait()
        return self.response


# Normal operation.


async def test_run_forwards_all_events_in_order_and_removes_them(scene: Scene) -> None:
    """Each event is sent once, under its id in its channel."""
    bodies = await fill(scene.channel, 200)
    async with running(scene.sink(), scene.reader):
        await empty(scene.channel)
        bodies += await fill(scene.channel, 100)
        await empty(scene.channel)
    assert bodies_in(scene.target.requests) == bodies
    [stream] = scene.target.streams
    stamps = [request.stamp for request in stream]
    assert {stamp.producer_id for stamp in stamps} == {scene.channel.channel_id}
    assert [stamp.first_sequence for stamp in stamps] == list(range(1, 301, 10))
    assert [stamp.after_sequence for stamp in stamps] == [0, *range(10, 300, 10)]
    check_accounts(scene.channel)


async def test_run_sends_ahead_of_the_responds_and_settles_none_without(scene: Scene) -> None:
    """The sink sends up to its limit; events without a response stay in their channel."""
    held = scene.target.respond = Held()
    await fill(scene.channel, 200)
    async with running(scene.sink(), scene.reader):
        await until(lambda: len(scene.target.requests) == 8)
        assert (scene.reader.unsettled_count, scene.channel._contents.capacity.event_count) == (8, 200)
        held.may_go.set()
        await empty(scene.channel)
    assert len(scene.target.streams) == 1


async def test_run_bounds_the_bytes_on_their_way(scene: Scene) -> None:
    """The bytes are bounded in addition to the number of batches; a larger batch is sent alone."""
    held = scene.target.respond = Held()
    sink = scene.sink(inflight_bytes_max=5_000, batch_bytes_max=2_000)
    for size in (1_800, 1_800, 1_800, 9_000, 100):
        await append(scene.channel, bytes(size))
    async with running(sink, scene.reader):
        await until(lambda: len(scene.target.requests) == 3)
        held.may_go.set()
        await empty(scene.channel)
    assert [len(bodies_in([request])) for request in scene.target.requests] == [1, 1, 1, 1, 1]


async def test_run_whose_reader_closes_waits_for_the_responses(scene: Scene) -> None:
    """Events that were sent are settled; the others stay."""
    held = scene.target.respond = Held()
    await fill(scene.channel, 200)
    work = asyncio.create_task(scene.sink().run(scene.reader))
    await until(lambda: len(scene.target.requests) == 8)
    scene.reader.close()
    held.may_go.set()
    await work
    assert len(queued(scene.channel)) == 120
    check_accounts(scene.channel)


async def test_run_cancelled_leaves_what_was_not_acknowledged(scene: Scene) -> None:
    """The next run sends the events again in order; the target recognizes the stored ones by their stamps."""
    scene.target.respond = Held()
    bodies = await fill(scene.channel, 100)
    work = asyncio.create_task(scene.sink().run(scene.reader))
    await until(lambda: len(scene.target.requests) == 8)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert queued(scene.channel) == bodies
    scene.target.respond = Held(may_go=_set())
    async with running(scene.sink(), scene.reader):
        await empty(scene.channel)
    assert bodies_in(scene.target.streams[-1]) == bodies
    check_accounts(scene.channel)


def _set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


# Refusals.


async def test_run_of_a_refused_append_sends_all_again_from_there(scene: Scene) -> None:
    """The sink's state has the reason and the retry delay, and all events keep their places."""
    bodies = await fill(scene.channel, 100)

    async def respond(request: Request) -> Response:
        return FULL if request.stamp.first_sequence == 31 else STORED

    scene.target.respond = respond
    error = await scene.give_up(r"127.0.0.1:\d+ does not accept .* channel orders: CHANNEL_FULL: ")
    assert error.retry_delay_seconds == 1.0
    assert queued(scene.channel) == bodies[30:]
    assert scene.reader.unsettled_count == 0
    check_accounts(scene.channel)


async def test_run_to_a_full_channel_keeps_the_order(scene: Scene) -> None:
    """When some of several requests are refused for lack of space, no later one is stored before them."""
    there = registry_with("orders", capacity=35, transaction_capacity=30, keep_alive_seconds=0.02)
    chance = random.Random(5)
    bodies = await fill(scene.channel, 600)
    got: list[bytes] = []

    async def consume() -> None:
        while len(got) < 600:
            await asyncio.sleep(chance.uniform(0.0, 0.04))
            delivery = await there.get("orders").deliveries.deliver(TakeLimits(events_max=chance.randrange(1, 40)))
            got.extend(body for batch in delivery.takes for _, body in batch.window.rows())
            _ = there.get("orders").deliveries.settle(delivery)

    async with served(there, scene.scratch) as address:
        sink = ForwardingSink(config_of(address), scene.scratch)
        consuming = asyncio.create_task(consume())
        refusals = 0
        while scene.channel._contents.capacity.event_count:
            work = asyncio.create_task(sink.run(scene.reader))
            await asyncio.wait({work, asyncio.create_task(empty(scene.channel))}, return_when=asyncio.FIRST_COMPLETED)
            scene.reader.close()
            refusals += isinstance((await asyncio.gather(work, return_exceptions=True))[0], ComponentError)
            scene.reader._is_closing = False
        await consuming
    assert refusals > 3
    assert got == bodies


async def test_run_to_a_channel_for_smaller_commits_sends_smaller_ones(scene: Scene) -> None:
    """The sink asks before it sends, and notices later changes; no call waits for that."""
    assert scene.target.found is not None
    scene.target.found.config.transaction_capacity = 7

    async def respond(request: Request) -> Response:
        return TOO_MANY if request.columns.count > 3 else STORED

    scene.target.respond = respond
    bodies = await fill(scene.channel, 60)
    async with running(scene.sink(), scene.reader):
        await empty(scene.channel)
    sizes = [request.columns.count for request in scene.target.requests]
    assert max(sizes) == 7
    assert max(request.columns.count for request in scene.target.streams[-1]) == 3
    assert bodies_in(scene.target.streams[-1]) == bodies[-len(bodies_in(scene.target.streams[-1])) :]


async def test_run_to_an_overloaded_server_sends_less_at_once(scene: Scene) -> None:
    """The sink does not wait for others if only its own requests overload the server."""
    stored: list[int] = []
    under_way = 0

    async def respond(request: Request) -> Response:
        nonlocal under_way
        if under_way or request.stamp.after_sequence not in (0, *stored):
            return refused("OVERLOADED", grpc.StatusCode.RESOURCE_EXHAUSTED, 30.0)
        under_way += 1
        await asyncio.sleep(0.001)
        under_way -= 1
        stored.append(request.stamp.last_sequence)
        return STORED

    scene.target.respond = respond
    await fill(scene.channel, 200)
    async with running(scene.sink(), scene.reader):
        await empty(scene.channel)
    assert stored == list(range(10, 201, 10))


async def test_run_whose_idle_stream_ends_reports_it(scene: Scene) -> None:
    """The end of the stream is an error, since events may follow at any time."""
    scene.target.ends_streams = True
    await scene.give_up("closed the stream$")


async def test_run_sets_the_one_event_aside_that_is_too_large(scene: Scene) -> None:
    """The other events arrive in order; the large one goes to the dead-letter channel with the target's reason."""
    scene.reader = reader_of(scene.registry, dead_letter_channel="rejected", deliveries_max=1)
    bodies = await fill(scene.channel, 100)

    stored: dict[int, bytes] = {}

    async def respond(request: Request) -> Response:
        first, numbered = request.stamp.first_sequence, bodies_in([request])
        if b"42" in numbered:
            return TOO_LARGE
        if request.stamp.HasField("after_sequence") and request.stamp.after_sequence not in stored:
            return refused("OFFSET_GAP", grpc.StatusCode.INVALID_ARGUMENT)
        stored.update(enumerate(numbered, start=first))
        return STORED

    scene.target.respond = respond
    async with running(scene.sink(), scene.reader):
        await empty(scene.channel)
    assert list(stored.values()) == [body for body in bodies if body != b"42"]
    [batch] = scene.registry.get("rejected")._contents.queue
    [(headers, body)] = batch.window.rows()
    assert body == b"42"
    assert "EVENT_TOO_LARGE: the test says" in headers["millrace.dead_letter.reason"]
    assert headers["millrace.dead_letter.sequence"] == "43"


async def test_run_of_a_lone_event_above_the_capacity_sets_it_aside(scene: Scene) -> None:
    """An event that does not fit a commit of its own will never fit."""
    scene.reader = reader_of(scene.registry, dead_letter_channel="rejected", deliveries_max=1)
    await fill(scene.channel, 20)

    async def respond(request: Request) -> Response:
        return TOO_MANY if b"7" in bodies_in([request]) else STORED

    scene.target.respond = respond
    async with running(scene.sink(), scene.reader):
        await empty(scene.channel)
    assert queued(scene.registry.get("rejected")) == [b"7"]


async def test_run_of_a_rejected_event_without_a_dead_letter_channel_tries_again(scene: Scene) -> None:
    """Nothing is dropped; the sink's state names the event."""
    bodies = await fill(scene.channel, 10)
    scene.target.respond = Held(TOO_LARGE, _set())
    for _ in range(3):
        await scene.give_up(r"event 1 of channel orders was rejected: .*EVENT_TOO_LARGE")
    assert queued(scene.channel) == bodies


async def test_run_with_an_event_above_the_message_limit_sets_it_aside(scene: Scene) -> None:
    """The target ends the stream without naming the event: the sink sends one at a time until it knows."""
    there = registry_with("orders", capacity=1_000, transaction_capacity=1_000)
    scene.reader = reader_of(scene.registry, dead_letter_channel="rejected", deliveries_max=1)
    for number in range(40):
        await append(scene.channel, b"%d" % number, b"x" * 9_000 if number == 17 else b"")
    async with (
        served(there, scene.scratch, message_bytes_max=4_096) as address,
        running(ForwardingSink(config_of(address), scene.scratch), scene.reader),
    ):
        await empty(scene.channel)
    assert queued(scene.registry.get("rejected")) == [b"x" * 9_000]
    arrived = queued(there.get("orders"))
    assert [body for body in arrived if body] == [b"%d" % number for number in range(40)]
    assert len(arrived) == 79


async def test_run_to_a_channel_that_forgot_what_it_had_stored_continues(scene: Scene) -> None:
    """A channel that was deleted and created again has stored nothing: the next stream begins without a condition."""
    bodies = await fill(scene.channel, 100)

    async def respond(request: Request) -> Response:
        is_forgotten = len(scene.target.streams) == 1 and request.stamp.first_sequence > 40
        return refused("OFFSET_GAP", grpc.StatusCode.INVALID_ARGUMENT) if is_forgotten else STORED

    scene.target.respond = respond
    async with running(scene.sink(), scene.reader):
        await empty(scene.channel)
    assert len(scene.target.streams) == 2
    assert bodies_in(scene.target.streams[1]) == bodies[40:]


async def test_run_to_the_channel_that_it_empties_fails(scene: Scene) -> None:
    """The sink would feed its own channel without end."""
    assert scene.target.found is not None
    scene.target.found.channel_id = scene.channel.channel_id
    bodies = await fill(scene.channel, 10)
    error = await scene.give_up(r"target_channel: is orders of .* its events would circulate forever")
    assert isinstance(error, ComponentFailedError)
    assert (queued(scene.channel), scene.target.requests) == (bodies, [])


# Failures.


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
        await asyncio.sleep(0.15)
        await fill(scene.channel, 10)
        await empty(scene.channel)
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
            config = config_of(
                hanging, other.address, failover_seconds=0.2, timeout_seconds=0.25, connect_timeout_seconds=0.25
            )
            sink = ForwardingSink(config, scene.scratch)
            await scene.give_up(f"{hanging} does not respond", sink)
            async with running(sink, scene.reader):
                await empty(scene.channel)
            assert bodies_in(other.requests) == bodies


async def test_run_stays_with_a_server_that_has_failed_for_a_moment(scene: Scene) -> None:
    """Only that server recognizes events that it has stored without a response."""
    async with fake_target() as other:
        sink = ForwardingSink(config_of(scene.target.address, other.address), scene.scratch)
        await fill(scene.channel, 50)
        scene.target.respond = Held(FULL, _set())
        for _ in range(3):
            await scene.give_up("CHANNEL_FULL", sink)
        scene.target.respond = Held(may_go=_set())
        async with running(sink, scene.reader):
            await empty(scene.channel)
        assert other.requests == []


async def test_run_stays_with_a_server_that_was_there_and_had_nothing_to_do(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure long ago and one now are no reason to leave the server."""
    monkeypatch.setattr(pipeline, "IDLE_SECONDS", 0.02)
    async with fake_target() as other:
        sink = ForwardingSink(config_of(scene.target.address, other.address, failover_seconds=0.25), scene.scratch)
        found, scene.target.found = scene.target.found, None
        await scene.give_up("CHANNEL_NOT_FOUND", sink)
        scene.target.found = found
        async with running(sink, scene.reader):
            await asyncio.sleep(0.3)
        scene.reader._is_closing = False
        scene.target.found = None
        await scene.give_up("CHANNEL_NOT_FOUND", sink)
        scene.target.found = found
        async with running(sink, scene.reader):
            await fill(scene.channel, 10)
            await empty(scene.channel)
        assert other.requests == []
