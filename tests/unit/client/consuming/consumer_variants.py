"""Both consumers, used without `await`, and a server that delivers as a channel does."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

import millrace_client as millrace
import millrace_client.aio
from millrace.v1 import channel_service_pb2 as pb
from millrace_client import ConsumerConfig
from tests.client_variants import SyncWrapper
from tests.unit.client.consuming.fakes import response_of
from tests.unit.client.fake_server import FakeServer, unavailable
from tests.waiting import until, wait_until

WAIT_SECONDS = 60.0


QUICK: dict[str, Any] = {"reconnect_seconds": 0.01, "retry_seconds": 0.01, "close_seconds": WAIT_SECONDS}


class Deliverer:
    """Serves Consume streams; as in a channel, what is not acknowledged is delivered again in order.

    Attributes:
        acked: Bodies that were acknowledged, in order.
        nacked: Bodies that were returned.
        stream_count: The number of streams so far.
        ended_well: The number of streams that the client half-closed.
    """

    def __init__(self, *bodies: bytes, breaks_after: int | None = None) -> None:
        self.acked: list[bytes] = []
        self.nacked: list[bytes] = []
        self.stream_count = 0
        self.ended_well = 0
        self.news = threading.Condition()
        self._waiting: list[bytes] = []
        self._sequences: dict[bytes, int] = {}
        self._breaks_after = breaks_after
        self.add(*bodies)

    def add(self, *bodies: bytes) -> None:
        """Appends events, which are delivered at once."""
        with self.news:
            for body in bodies:
                self._sequences[body] = len(self._sequences) + 1
                self._waiting.append(body)
            self.news.notify_all()

    def __call__(self, requests: Iterator[pb.ConsumeRequest], context: Any) -> Iterator[pb.ConsumeResponse]:
        prefetch = next(requests).start.prefetch
        out: dict[int, bytes] = {}
        is_over = threading.Event()

        def listen() -> None:
            try:
                for request in requests:
                    with self.news:
                        self._settle(out, request)
            except grpc.RpcError:
                pass
            else:
                self.ended_well += 1
            with self.news:
                is_over.set()
                self.news.notify_all()

        with self.news:
            self.stream_count += 1
            breaks = self._breaks_after is not None and self.stream_count == 1
        threading.Thread(target=listen, daemon=True).start()
        try:
            for delivery_id in itertools.count(1):
                if breaks and delivery_id > (self._breaks_after or 0):
                    raise unavailable()
                with self.news:
                    ready = lambda: is_over.is_set() or (self._waiting and len(out) < prefetch)  # noqa: E731 - short
                    self.news.wait_for(ready)
                    if is_over.is_set():
                        return
                    body = out[delivery_id] = self._waiting.pop(0)
                yield response_of(delivery_id, body, first_sequence=self._sequences[body])
        finally:
            with self.news:
                self._waiting[:0] = out.values()
                out.clear()
                self.news.notify_all()

    def _settle(self, out: dict[int, bytes], request: pb.ConsumeRequest) -> None:
        # Acks of lost deliveries have come too late.
        self.acked += [out.pop(each) for each in request.ack.delivery_ids if each in out]
        nacked = [out.pop(each) for each in request.nack.delivery_ids if each in out]
        self.nacked += nacked
        self._waiting[:0] = nacked
        self.news.notify_all()

    def wait_for(self, condition: Any) -> None:
        """Waits until a condition holds."""
        with self.news:
            assert self.news.wait_for(lambda: condition(self), WAIT_SECONDS)


class SyncConsumer(SyncWrapper):
    """An asyncio consumer that tests use without `await`; its `close` returns the report."""

    def close(self, *args: float) -> Any:
        return self._run(self._inner.close(*args))


class Variant:
    """One of the two consumers, used without `await`."""

    def __init__(self, name: str, address: str, runner: asyncio.Runner) -> None:
        self.name = name
        self._address = address
        self._runner = runner
        self._made: list[Any] = []

    def consumer(self, *endpoints: str, channels: tuple[str, ...] = ("orders",), **config: Any) -> Any:
        limits = ConsumerConfig(**{**QUICK, **config})
        servers = endpoints or (self._address,)
        if self.name == "sync":
            made: Any = millrace.Consumer(servers, channels, limits)
        else:
            made = SyncConsumer(self._runner, millrace_client.aio.AsyncConsumer(servers, channels, limits))
        self._made.append(made)
        return made

    def queue(self, consumer: Any, deliverer: "Deliverer", *bodies: bytes) -> None:
        """Has a consumer queue deliveries of these bodies, so that a loop with a short idle time finds them all."""
        # Reads from now on. Without events, this cannot return a delivery.
        assert consumer.receive(0) is None
        deliverer.add(*bodies)
        self.wait_until(lambda: consumer.metrics().queued_deliveries == len(bodies))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition holds, while the consumer reads."""
        if self.name == "sync":
            wait_until(condition, seconds_between=0.001)
        else:
            self._runner.run(until(condition))

    def handler(self, work: Any) -> Any:
        """A function as a handler of this variant; its delivery may be settled without awaiting."""
        if self.name == "sync":
            return work

        async def handle(delivery: Any) -> None:
            work(delivery)

        return handle

    def close(self) -> None:
        for made in self._made:
            made.close()


def deliver(server: FakeServer, *bodies: bytes, breaks_after: int | None = None) -> Deliverer:
    """Has a server deliver events with these bodies."""
    deliverer = Deliverer(*bodies, breaks_after=breaks_after)
    server.script("Consume", deliverer)
    return deliverer
