import asyncio
import itertools
import random

import grpc
import pytest

from millrace_server.agent.sinks.millrace.sink import ForwardingSink
from millrace_server.agent.supervision import ComponentError, ComponentFailedError
from millrace_server.channels.queue import TakeLimits
from tests.agent_components import registry_with
from tests.channel_events import append, check_accounts, queued
from tests.forward_scene import FULL, Held, Scene, empty, fill, responding, running
from tests.forward_targets import STORED, Request, Response, bodies_in, config_of, reader_of, refused, served
from tests.waiting import until

TOO_MANY = refused("TXN_CAPACITY", grpc.StatusCode.INVALID_ARGUMENT)
TOO_LARGE = refused("EVENT_TOO_LARGE", grpc.StatusCode.INVALID_ARGUMENT)


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
    scene.target.respond = responding(STORED)
    async with running(scene.sink(), scene.reader):
        await empty(scene.channel)
    assert bodies_in(scene.target.streams[-1]) == bodies
    check_accounts(scene.channel)


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
    refusals = 0

    async def consume() -> None:
        for take_count in itertools.count():
            if len(got) == 600:
                return
            await asyncio.sleep(chance.uniform(0.0, 0.04))
            # However slow the sink is, some requests are refused.
            await until(lambda: refusals > min(take_count, 3))  # noqa: B023 - of this turn
            delivery = await there.get("orders").deliveries.deliver(TakeLimits(events_max=chance.randrange(1, 40)))
            got.extend(body for batch in delivery.takes for _, body in batch.window.rows())
            _ = there.get("orders").deliveries.settle(delivery)

    async with served(there, scene.scratch) as address:
        sink = ForwardingSink(config_of(address), scene.scratch)
        consuming = asyncio.create_task(consume())
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
    scene.target.respond = responding(TOO_LARGE)
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
