"""Helpers of the tests of consumers: deliveries, randomness without jitter, scripted streams."""

import asyncio
import random
from typing import Any

from millrace.columns import columns_from_events
from millrace.v1 import channel_service_pb2 as pb
from millrace_client import ConsumerConfig, ConsumerHooks, MillraceError, StreamEndedError
from millrace_client._deliveries import DeliveredEvents, Settlement
from millrace_client.aio.consumer_tasks import ConsumerDelivery, TaskEngine
from millrace_client.consuming.subscription import Subscription, TrackedDelivery


def response_of(delivery_id: int, *bodies: bytes, first_sequence: int | None = None) -> pb.ConsumeResponse:
    """A delivery on the wire; its sequences begin at ten times its id unless given."""
    [columns] = columns_from_events([({}, body) for body in bodies or (b"x",)])
    first = delivery_id * 10 if first_sequence is None else first_sequence
    return pb.ConsumeResponse(delivery_id=delivery_id, batches=[{"first_sequence": first, "columns": columns}])


class NoJitter(random.Random):
    """Randomness that shortens no pause, so that pauses are known."""

    def uniform(self, a: float, b: float) -> float:
        return b


class RecordingHooks(ConsumerHooks):
    """Hooks that record their calls."""

    def __init__(self) -> None:
        self.all: list[tuple[Any, ...]] = []

    def delivered(self, delivery: DeliveredEvents) -> None:
        self.all.append(("delivered", delivery.delivery_id))

    def settled(self, delivery: DeliveredEvents, work_seconds: float, *, is_ack: bool) -> None:
        self.all.append(("settled", delivery.delivery_id, work_seconds, is_ack))

    def lost(self, delivery: DeliveredEvents) -> None:
        self.all.append(("lost", delivery.delivery_id))

    def handler_failed(self, delivery: DeliveredEvents, error: Exception, retry_seconds: float) -> None:
        self.all.append(("handler_failed", delivery.delivery_id, str(error), retry_seconds))

    def disconnected(self, endpoint: str, channel: str, error: Exception, retry_seconds: float) -> None:
        self.all.append(("disconnected", endpoint, channel, str(error), retry_seconds))

    def failed(self, endpoint: str, channel: str, error: Exception) -> None:
        self.all.append(("failed", endpoint, channel, str(error)))

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        """The calls of one hook."""
        return [call[1:] for call in self.all if call[0] == kind]


class ScriptedStream:
    """A stream for tasks, whose deliveries and end come from the test; records what was settled.

    Attributes:
        opened_at: When it was opened, on the loop's clock.
        settled: What was settled, in order: delivery id, and whether it was an ack.
        read_count: How many deliveries were read.
        answered: Set once the server has responded to its start.
    """

    def __init__(self, subscription: Subscription[ConsumerDelivery], *, is_answered: bool) -> None:
        self.subscription = subscription
        self.opened_at = asyncio.get_running_loop().time()
        self.settled: list[tuple[int, bool]] = []
        self.read_count = 0
        self.is_finished = False
        self.ends_late = False
        self.answered = asyncio.Event()
        if is_answered:
            self.answered.set()
        self._responses: asyncio.Queue[pb.ConsumeResponse | MillraceError | None] = asyncio.Queue()
        self._is_over = False

    def deliver(self, *responses: pb.ConsumeResponse) -> None:
        """Makes deliveries available to the reader."""
        for response in responses:
            self._responses.put_nowait(response)

    def break_off(self, error: MillraceError | None) -> None:
        """Ends the stream from the server's side."""
        self._is_over = True
        self._responses.put_nowait(error)

    async def wait_for_server(self) -> bool:
        await self.answered.wait()
        return not self._is_over

    async def next_response(self) -> pb.ConsumeResponse | None:
        response = await self._responses.get()
        if isinstance(response, MillraceError):
            raise response
        self.read_count += response is not None
        return response

    async def settle(self, settlement: Settlement) -> None:
        if self._is_over:
            raise StreamEndedError("over")
        self.settled.append((settlement.delivery_id, settlement.is_ack))

    async def finish(self, timeout_seconds: float | None = None) -> None:
        self.is_finished = True
        if self.ends_late:
            await asyncio.sleep(timeout_seconds or 0.0)
            raise MillraceError("too late")
        self.break_off(None)


class EngineHarness:
    """An engine with scripted streams and without jitter, on the virtual clock.

    Attributes:
        streams: All streams opened, in order.
        refusals: What opening a stream raises, next first.
        is_answered: Whether the server responds to the streams that are opened from now on.
    """

    def __init__(self, endpoints: str = "one", channels: str = "orders", **config: Any) -> None:
        self.hooks = RecordingHooks()
        self.streams: list[ScriptedStream] = []
        self.refusals: list[Exception] = []
        self.is_answered = True
        self.engine = TaskEngine(
            endpoints.split(),
            channels.split(),
            ConsumerConfig(hooks=self.hooks, **config),
            open_stream=self._open,
            chance=NoJitter(),
        )

    async def _open(self, subscription: Subscription[ConsumerDelivery]) -> ScriptedStream:
        if self.refusals:
            raise self.refusals.pop(0)
        self.streams.append(ScriptedStream(subscription, is_answered=self.is_answered))
        return self.streams[-1]

    async def take(self, seconds: float | None = None) -> ConsumerDelivery:
        """The next delivery; fails the test if there is none."""
        delivery = await self.engine.take(seconds)
        assert delivery is not None
        return delivery


def ids(*deliveries: TrackedDelivery | None) -> list[int | None]:
    """The ids of deliveries."""
    return [None if delivery is None else delivery.delivery_id for delivery in deliveries]
