"""Pipelines, which forward deliveries through an AppendStream, and settle those that the target has stored."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from millrace.v1 import channel_service_pb2 as pb
from millrace_client.append_session import AsyncAppendSession
from millrace_client.errors import MessageTooLargeError, MillraceError
from millrace_server.agent.channel_reader import ChannelReader, Delivery
from millrace_server.agent.sinks.millrace.requests import Request, RequestEncoder
from millrace_server.agent.sinks.millrace.target import TargetChannel
from millrace_server.agent.supervision import ComponentError, ComponentFailedError, ResponseTimeoutError

SLOW_SECONDS = 5.0
"""A target that has not responded for this long is reported in the sink's state."""

IDLE_SECONDS = 1.0
"""A target that was connected but idle for this long counts as healthy."""


class PipelineLimits(NamedTuple):
    """The limits of a pipeline."""

    deliveries_max: int
    """Deliveries that have no response yet; as many again may be being settled."""
    bytes_max: int
    """Bytes of their requests, unless a single delivery has more."""
    body_bytes_max: int
    """The maximum bytes of bodies in a delivery."""
    events_max: int
    """The maximum number of events in a request."""
    response_seconds_max: float
    """How long a response may take."""
    single_count: int = 0
    """How many deliveries are sent one by one, each after the response to the previous one."""


class RefusedError(Exception):
    """Raised when the target has refused a delivery, or the whole stream.

    Later deliveries were returned to their channel.

    Attributes:
        delivery: The first delivery that was not stored, which is still open.
        has_condition: Whether the request required that another event had been stored before.
        was_alone: Whether no other delivery was in progress when it was sent.
        in_flight_count: Deliveries in progress when it was refused, this one included.
    """

    def __init__(self, error: MillraceError, sent: "_Sent", in_flight_count: int) -> None:
        super().__init__(str(error))
        self.error = error
        self.delivery = sent.delivery
        self.event_count = sent.request.event_count
        self.has_condition = sent.request.has_condition
        self.was_alone = sent.was_alone
        self.in_flight_count = in_flight_count


class _Sent(NamedTuple):
    delivery: Delivery
    request: Request
    was_alone: bool
    """Whether no other delivery was in progress."""
    is_last: bool
    """Whether the delivery has no further request."""


class Pipeline:
    """Forwards deliveries in order, several at a time, and settles each once it is stored.

    Calls `on_success` for each delivery that the target has stored, and when the target was connected but idle.
    """

    def __init__(
        self, target: TargetChannel, reader: ChannelReader, limits: PipelineLimits, on_success: Callable[[], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._target = target
        self._reader = reader
        self._limits = limits
        self._on_success = on_success
        self._encoder = RequestEncoder(target.channel, target.transaction_capacity, limits.events_max)
        self._session: AsyncAppendSession[_Sent] = target.append_session()
        self._in_flight_count = 0
        self._in_flight_bytes = 0
        self._singles_left = limits.single_count
        self._idle_since: float | None = None
        self._settling: set[asyncio.Task[None]] = set()
        self._has_space = asyncio.Event()
        self._has_finished = False
        self._abort_error: Exception | None = None
        self._watch: asyncio.Handle = self._loop.call_soon(self._check_responses)

    async def run(self) -> None:
        """Forwards until the reader has no more events, and everything is settled.

        Raises RefusedError if the target has refused a delivery, ComponentError if the target cannot be reached or does
        not respond, and MillraceError if a stored delivery cannot be removed from its channel.
        """
        sending = asyncio.create_task(self._send())
        receiving = asyncio.create_task(self._receive())
        refused: RefusedError | None = None
        try:
            await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_EXCEPTION)
            # The target's response is more relevant than an error of sending that followed it.
            for task in (receiving, sending):
                if task.done():
                    task.result()
        except RefusedError as error:
            refused = error
            raise
        finally:
            self._watch.cancel()
            self._session.cancel()
            self._end_idle()
            sending.cancel()
            receiving.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)
            for sent in self._session.in_flight:
                if refused is None or sent.delivery is not refused.delivery:
                    sent.delivery.nack()
            while self._settling:
                await asyncio.wait(self._settling)
        if self._abort_error is not None:
            raise self._abort_error

    async def _send(self) -> None:
        while (delivery := await self._next_delivery()) is not None:
            for request in self._encoded(delivery):
                if not await self._session.write(request.encoded):
                    # The stream has ended; `_receive` raises the reason.
                    return
        self._has_finished = True
        await self._session.half_close()

    async def _next_delivery(self) -> Delivery | None:
        while not self._admits_more():
            self._has_space.clear()
            await self._has_space.wait()
        if not self._session.in_flight:
            self._idle_since = self._loop.time()
        delivery = await self._reader.take(self._limits.body_bytes_max)
        self._end_idle()
        return delivery

    def _end_idle(self) -> None:
        if self._idle_since is not None and self._loop.time() - self._idle_since >= IDLE_SECONDS:
            self._on_success()
        self._idle_since = None

    def _admits_more(self) -> bool:
        deliveries_max = 1 if self._singles_left > 0 else self._limits.deliveries_max
        return (
            self._in_flight_count < deliveries_max
            and self._in_flight_bytes < self._limits.bytes_max
            and len(self._settling) < self._limits.deliveries_max
        )

    def _encoded(self, delivery: Delivery) -> list[Request]:
        if delivery.channel_id == self._target.channel_id:
            raise ComponentFailedError(
                f"target_channel: is {self._target.channel} of {self._target.endpoint}, which is the channel that the "
                "sink empties; its events would circulate forever"
            )
        requests = self._encoder.requests(delivery)
        was_alone = not self._session.in_flight
        now = self._loop.time()
        for request in requests:
            self._session.note_sent(_Sent(delivery, request, was_alone, is_last=request is requests[-1]), now)
            self._in_flight_bytes += len(request.encoded)
        self._in_flight_count += 1
        return requests

    async def _receive(self) -> None:
        try:
            while (response := await self._session.read()) is not None:
                self._take_response(response)
        except MillraceError as error:
            raise self._end_error(error) from None
        except asyncio.CancelledError:
            if self._abort_error is None:
                raise
            raise self._abort_error from None
        if self._session.in_flight or not self._has_finished:
            raise ComponentError(f"{self._target.endpoint} closed the stream")

    def _take_response(self, response: pb.AppendStreamResponse) -> None:
        if not self._session.in_flight:
            raise ComponentError(f"{self._target.endpoint} has responded to a request that was not sent")
        sent, error = self._session.match(response, self._loop.time())
        if error is not None:
            raise RefusedError(error, sent, self._in_flight_count)
        self._in_flight_bytes -= len(sent.request.encoded)
        if sent.is_last:
            self._in_flight_count -= 1
            self._singles_left -= 1
            self._encoder.note_stored()
            self._on_success()
            self._settle(sent.delivery)
        self._has_space.set()

    def _end_error(self, error: MillraceError) -> Exception:
        if isinstance(error, MessageTooLargeError) and self._session.in_flight:
            return RefusedError(error, self._session.in_flight[0], self._in_flight_count)
        return self._target.component_error(error)

    # Deliveries are settled in tasks, so that deliveries that get responses together share an fsync.

    def _settle(self, delivery: Delivery) -> None:
        task = asyncio.create_task(delivery.settle())
        self._settling.add(task)
        task.add_done_callback(self._note_settled)

    def _note_settled(self, task: "asyncio.Task[None]") -> None:
        self._settling.discard(task)
        self._has_space.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, Exception), error
            self._abort(error)

    # Ending.

    def _check_responses(self) -> None:
        """Reports a target that responds slowly, and ends the stream if it does not respond in time."""
        seconds_max = self._limits.response_seconds_max
        waited_seconds = self._loop.time() - self._session.waiting_since if self._session.in_flight else 0.0
        if waited_seconds >= seconds_max:
            self._abort(ResponseTimeoutError(f"{self._target.endpoint} does not respond", waited_seconds))
            return
        if waited_seconds >= SLOW_SECONDS:
            self._reader.report_problem(f"{self._target.endpoint} has not responded for {SLOW_SECONDS:g} s or more")
            due_seconds = seconds_max
        else:
            due_seconds = min(seconds_max, SLOW_SECONDS)
        self._watch = self._loop.call_later(due_seconds - waited_seconds, self._check_responses)

    def _abort(self, error: Exception) -> None:
        self._abort_error = self._abort_error or error
        self._session.cancel()
