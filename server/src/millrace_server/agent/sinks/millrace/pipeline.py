"""One AppendStream: deliveries go up, answers come down, and what was answered leaves its channel."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from grpc import aio

from millrace.v1 import channel_service_pb2 as pb
from millrace_server.agent.channel_reader import ChannelReader, Delivery
from millrace_server.agent.sinks.millrace.refusals import Refusal, refusal_of_error, refusal_of_status
from millrace_server.agent.sinks.millrace.requests import Request, RequestEncoder
from millrace_server.agent.sinks.millrace.target import TargetChannel
from millrace_server.agent.supervision import ComponentError, ComponentFailedError, SilentError

SLOW_SECONDS = 5.0
"""Who has not answered for so long is in trouble, as the sink's state tells."""

IDLE_SECONDS = 1.0
"""Who was connected for so long and had nothing to do was well."""


class PipelineLimits(NamedTuple):
    """What bounds a pipeline."""

    deliveries_max: int
    """Deliveries that are not answered yet, and as many again that are being settled."""
    bytes_max: int
    """Bytes of their requests, unless a single delivery has more."""
    body_bytes_max: int
    """Bytes of bodies in a delivery."""
    events_max: int
    """Events in a request."""
    answer_seconds_max: float
    """How long an answer may take."""
    careful_count: int = 0
    """So many deliveries go one by one, each once the one before it is answered."""


class RefusedError(Exception):
    """Returned when the target has refused a delivery, or the whole stream.

    What came behind is back in its channel.

    Attributes:
        refusal: Why.
        delivery: What was refused, still out of its channel: the first that was not answered otherwise.
        event_count: Events of the request that was refused.
        has_condition: Whether the request named one that had to be stored before.
        was_alone: Whether no other delivery was on its way when it was sent.
        unanswered_count: Deliveries that were on their way when it was refused, this one included.
    """

    def __init__(self, refusal: Refusal, sent: "_Sent", unanswered_count: int) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal
        self.delivery = sent.delivery
        self.event_count = sent.request.event_count
        self.has_condition = sent.request.has_condition
        self.was_alone = sent.was_alone
        self.unanswered_count = unanswered_count


class _Sent(NamedTuple):
    delivery: Delivery
    request: Request
    was_alone: bool
    """Whether no other delivery was on its way."""
    is_last: bool
    """Whether the delivery has no further request."""


class Pipeline:
    """Forwards deliveries in their order, several at once; one that is answered is settled.

    Args:
        target: Where they go.
        reader: Where they come from.
        limits: What bounds it.
        on_success: Called with each delivery that the target has taken, and where it was there and had nothing to take.
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
        self._call = target.append_stream()
        self._unanswered: deque[_Sent] = deque()
        self._unanswered_count = 0
        self._unanswered_bytes = 0
        self._careful_left = limits.careful_count
        self._waiting_since = 0.0
        self._idle_since: float | None = None
        self._settling: set[asyncio.Task[None]] = set()
        self._has_room = asyncio.Event()
        self._has_finished = False
        self._cut_error: Exception | None = None
        self._watch: asyncio.Handle = self._loop.call_soon(self._look)

    async def run(self) -> None:
        """Forwards until the reader has no more, and all is settled.

        Raises:
            RefusedError: The target has refused something.
            ComponentError: It cannot be reached, or does not answer.
            MillraceError: What was forwarded cannot be removed from its channel.
        """
        sending = asyncio.create_task(self._send())
        receiving = asyncio.create_task(self._receive())
        refused: RefusedError | None = None
        try:
            await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_EXCEPTION)
            # What the target has said counts more than what sending met after that.
            for task in (receiving, sending):
                if task.done():
                    task.result()
        except RefusedError as error:
            refused = error
            raise
        finally:
            self._watch.cancel()
            self._call.cancel()
            self._end_idling()
            sending.cancel()
            receiving.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)
            for sent in self._unanswered:
                if refused is None or sent.delivery is not refused.delivery:
                    sent.delivery.nack()
            await self._settle_all()
        if self._cut_error is not None:
            raise self._cut_error

    async def _send(self) -> None:
        try:
            while (delivery := await self._next_delivery()) is not None:
                for request in self._encoded(delivery):
                    await self._call.write(request.encoded)
            self._has_finished = True
            await self._call.done_writing()
        except (aio.AioRpcError, asyncio.InvalidStateError):
            # The stream has ended; whoever receives is told why.
            return

    async def _next_delivery(self) -> Delivery | None:
        while not self._admits_more():
            self._has_room.clear()
            await self._has_room.wait()
        if not self._unanswered:
            self._idle_since = self._loop.time()
        delivery = await self._reader.take(self._limits.body_bytes_max)
        self._end_idling()
        return delivery

    def _end_idling(self) -> None:
        if self._idle_since is not None and self._loop.time() - self._idle_since >= IDLE_SECONDS:
            self._on_success()
        self._idle_since = None

    def _admits_more(self) -> bool:
        deliveries_max = 1 if self._careful_left > 0 else self._limits.deliveries_max
        return (
            self._unanswered_count < deliveries_max
            and self._unanswered_bytes < self._limits.bytes_max
            and len(self._settling) < self._limits.deliveries_max
        )

    def _encoded(self, delivery: Delivery) -> list[Request]:
        if delivery.channel_id == self._target.channel_id:
            raise ComponentFailedError(
                f"target_channel: is {self._target.channel} of {self._target.endpoint}, which is the channel that the "
                "sink empties; its events would go round for ever"
            )
        requests = self._encoder.requests(delivery)
        was_alone = not self._unanswered
        if was_alone:
            self._waiting_since = self._loop.time()
        for request in requests:
            self._unanswered.append(_Sent(delivery, request, was_alone, is_last=request is requests[-1]))
            self._unanswered_bytes += len(request.encoded)
        self._unanswered_count += 1
        return requests

    async def _receive(self) -> None:
        try:
            while isinstance(raw := await self._call.read(), bytes):
                self._take_answer(pb.AppendStreamResponse.FromString(raw))
        except aio.AioRpcError as error:
            raise self._error_of(refusal_of_error(error)) from None
        except asyncio.CancelledError:
            if self._cut_error is None:
                raise
            raise self._cut_error from None
        if self._unanswered or not self._has_finished:
            raise ComponentError(f"{self._target.endpoint} has ended the stream")

    def _take_answer(self, answer: pb.AppendStreamResponse) -> None:
        if not self._unanswered:
            raise ComponentError(f"{self._target.endpoint} has answered what was not sent")
        if answer.HasField("error"):
            raise self._refused(refusal_of_status(answer.error))
        sent = self._unanswered.popleft()
        self._waiting_since = self._loop.time()
        self._unanswered_bytes -= len(sent.request.encoded)
        if sent.is_last:
            self._unanswered_count -= 1
            self._careful_left -= 1
            self._encoder.note_taken()
            self._on_success()
            self._settle(sent.delivery)
        self._has_room.set()

    def _error_of(self, refusal: Refusal) -> Exception:
        """What the end of the stream comes to."""
        if refusal.is_about_stream and self._unanswered:
            return self._refused(refusal)
        return self._target.error_of(refusal)

    def _refused(self, refusal: Refusal) -> RefusedError:
        return RefusedError(refusal, self._unanswered[0], self._unanswered_count)

    # Settling: beside the rest, so that those which are answered together share a sync.

    def _settle(self, delivery: Delivery) -> None:
        task = asyncio.create_task(delivery.settle())
        self._settling.add(task)
        task.add_done_callback(self._note_settled)

    def _note_settled(self, task: "asyncio.Task[None]") -> None:
        self._settling.discard(task)
        self._has_room.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, Exception), error
            self._cut(error)

    async def _settle_all(self) -> None:
        while self._settling:
            await asyncio.wait(self._settling)

    # Ending.

    def _look(self) -> None:
        """Tells where the target does not answer, and ends the stream where it still does not."""
        seconds_max = self._limits.answer_seconds_max
        waited_seconds = self._loop.time() - self._waiting_since if self._unanswered else 0.0
        if waited_seconds >= seconds_max:
            self._cut(SilentError(f"{self._target.endpoint} does not answer", waited_seconds))
            return
        if waited_seconds >= SLOW_SECONDS:
            self._reader.note_trouble(f"{self._target.endpoint} has not answered for {SLOW_SECONDS:g} s or more")
            due_seconds = seconds_max
        else:
            due_seconds = min(seconds_max, SLOW_SECONDS)
        self._watch = self._loop.call_later(due_seconds - waited_seconds, self._look)

    def _cut(self, error: Exception) -> None:
        """Ends the stream for a reason of its own."""
        self._cut_error = self._cut_error or error
        self._call.cancel()
