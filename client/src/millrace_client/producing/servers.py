"""Servers, and for each of their channels an outlet: one stream, its health, and the numbers of what goes up it."""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc

from millrace.v1 import channel_service_pb2 as pb
from millrace_client._failures import Failures
from millrace_client._methods import APPEND_STREAM
from millrace_client._service_config import channel_options
from millrace_client._settings import Numbering
from millrace_client.errors import DeadlineError, DiskFullError, MillraceError, RetryAdvice, UnavailableError
from millrace_client.events import Stamp
from millrace_client.producing.batches import Batch
from millrace_client.producing.config import ProducerConfig
from millrace_client.producing.health import HealthWatch
from millrace_client.producing.loops import call_in
from millrace_client.producing.metrics import ServerMetrics
from millrace_client.producing.retrying import RetrySchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One server's address."""

    address: str
    """Where to connect."""
    authority: str
    """The name that its certificate must bear, and under which it is addressed; empty: the address itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """How servers are connected to."""

    credentials: grpc.ChannelCredentials | None
    options: tuple[tuple[str, str | int], ...]


class Answers(Protocol):
    """Who is told what comes of batches."""

    def answered(self, outlet: "Outlet", batch: Batch, answer: pb.AppendStreamResponse) -> None:
        """The server has answered for a batch."""

    def broken(self, outlet: "Outlet", batches: Sequence[Batch], error: MillraceError) -> None:
        """A stream has ended, and will answer none of these."""

    def look(self) -> None:
        """Something has changed that may let a batch go."""


class Server:
    """One server. All of it belongs to one event loop."""

    def __init__(self, target: Target, how: Credentials, config: ProducerConfig, answers: Answers) -> None:
        self.target = target
        self.config = config
        self.answers = answers
        self.failures = Failures(target.address)
        self.outlets: dict[str, Outlet] = {}
        self.is_ready = False
        """Whether there is a connection. Nothing is sent without one: so what is sent fails only on the way."""
        self.is_down = False
        """Whether it could not be reached since there was a connection last."""
        self.is_retired = False
        """Whether its name resolves to other addresses by now: it gets nothing new."""
        self.inflight_count = 0
        options = [*channel_options(), *_naming_options(target, how), *how.options]
        self.channel = (
            grpc.insecure_channel(target.address, options)
            if how.credentials is None
            else grpc.secure_channel(target.address, how.credentials, options)
        )
        # Encoded requests up, parsed answers down.
        self.append_stream: grpc.StreamStreamMultiCallable[bytes, pb.AppendStreamResponse] = self.channel.stream_stream(
            APPEND_STREAM.path, None, APPEND_STREAM.parse
        )
        self.loop = asyncio.get_running_loop()
        self.threads: set[threading.Thread] = set()
        """Those that read from this server. Each of them ends soon after the server is closed."""
        self._health = HealthWatch(self, RetrySchedule(config))

    def outlet(self, channel: str, schedule: RetrySchedule, numbering: Numbering | None) -> "Outlet":
        """The way to one of its channels, with numbers of its own unless there are some for all servers."""
        known = self.outlets.get(channel)
        if known is None:
            known = self.outlets[channel] = Outlet(self, channel, schedule, numbering or Numbering())
        return known

    def unreachable_error(self, channel: str) -> MillraceError:
        """The error for what could not be sent at all."""
        message = f"cannot reach a Millrace server at {self.target.address}; is millraced running there?"
        return UnavailableError(message, channel=channel, code=grpc.StatusCode.UNAVAILABLE)

    def metrics(self, now: float) -> ServerMetrics:
        """How it stands."""
        return ServerMetrics(
            server=self.target.address,
            is_connected=self.is_ready,
            is_sick=self.is_down or any(now < outlet.sick_until for outlet in tuple(self.outlets.values())),
            inflight_batches=self.inflight_count,
        )

    def note_state(self, *, is_ready: bool, is_down: bool) -> None:
        """Takes what its watch has found."""
        if (self.is_ready, self.is_down) != (is_ready, is_down):
            self.is_ready, self.is_down = is_ready, is_down
            self.answers.look()

    def look_after(self) -> None:
        """Has it looked at whether it can still be reached."""
        self._health.look()

    def begin_thread(self, read: Callable[[], None], name: str) -> None:
        """Begins a thread that reads."""

        def run() -> None:
            try:
                read()
            finally:
                self.threads.discard(thread)

        thread = threading.Thread(target=run, name=f"millrace-producer-{name}", daemon=True)
        self.threads.add(thread)
        thread.start()

    def close(self) -> None:
        """Cuts everything off."""
        self._health.end()
        for outlet in self.outlets.values():
            outlet.end()
        self.channel.close()


class Outlet:
    """The way to one channel of one server.

    After a failure it is left alone for a pause that grows with each further one, and then gets one batch at a time
    until one has succeeded.
    """

    def __init__(self, server: Server, channel: str, schedule: RetrySchedule, numbering: Numbering) -> None:
        self.server = server
        self.channel = channel
        self.inflight: deque[Batch] = deque()
        self.is_careful = False
        """Whether batches go one by one, because one of them is too large for the server and it is not known which."""
        self.sick_until = 0.0
        self._schedule = schedule
        self._numbering = numbering
        self.last_error: MillraceError | None = None
        """Why it was left alone last; None since a batch has succeeded."""
        self._failure_count = 0
        self._failed_at = -1.0
        self._waiting_since = 0.0
        self._stream: _Stream | None = None

    @property
    def name(self) -> str:
        """Tells it from those of other servers."""
        return self.server.target.address

    def is_well(self, now: float) -> bool:
        """Whether it is not known to be sick: a server that is being connected to is waited for."""
        return not self.server.is_down and now >= self.sick_until

    def is_well_but_full(self, now: float) -> bool:
        """Whether nothing but want of room keeps it from taking a batch."""
        return (
            not self.server.is_down
            and now < self.sick_until
            and self.last_error is not None
            and self.last_error.advice is RetryAdvice.FULL
            # A server whose disk is full is not well: others stand in for it.
            and not isinstance(self.last_error, DiskFullError)
        )

    def has_capacity(self, now: float) -> bool:
        """Whether a batch could be sent now."""
        server = self.server
        if not server.is_ready or now < self.sick_until or server.inflight_count >= server.config.inflight_batches_max:
            return False
        return not self.inflight or not (self._failure_count or self.is_careful)

    def next_stamp(self, event_count: int) -> Stamp:
        """The numbers for a batch that is sealed for this outlet."""
        return self._numbering.next_stamp(self.channel, event_count)

    def note_gap(self) -> None:
        """Counts numbers that were given here and perhaps were never stored here."""
        self._numbering.note_gap(self.channel)

    def send(self, batch: Batch, now: float) -> None:
        """Sends a batch behind those before it."""
        batch.sent_at = now
        if not self.inflight:
            self._waiting_since = now
        self.inflight.append(batch)
        self.server.inflight_count += 1
        if self._stream is None:
            self._stream = _Stream(self)
        self._stream.send(batch.request)

    def note_success(self) -> None:
        """It is well."""
        self._failure_count = 0
        self.last_error = None

    def note_failure(self, batch: Batch, error: MillraceError, now: float) -> None:
        """Counts a failure, unless it is one of several batches that failed together."""
        if batch.sent_at > self._failed_at:
            self._failure_count += 1
            self._failed_at = now
            self.sick_until = now + self._schedule.rest_seconds(self._failure_count, error)
            self.last_error = error

    def answer_due(self) -> float | None:
        """By when the next answer must come; None where nothing is under way."""
        return self._waiting_since + self.server.config.timeout_seconds if self.inflight else None

    def cut_off(self) -> None:
        """Ends a stream that does not answer."""
        if self._stream is not None:
            self._stream.cut_off(self.server.failures.deadline_error(self.channel))

    def end(self) -> None:
        """Ends the stream; nobody is told."""
        if self._stream is not None:
            self._stream.end()
            self._stream = None

    def take_answer(self, stream: "_Stream", answer: pb.AppendStreamResponse) -> None:
        """Matches an answer with its batch: they come in the order in which batches were sent."""
        if self._stream is not stream or not self.inflight:
            return
        batch = self.inflight.popleft()
        self._waiting_since = self.server.loop.time()
        self.server.inflight_count -= 1
        self.server.answers.answered(self, batch, answer)

    def take_end(self, stream: "_Stream", error: MillraceError) -> None:
        """Gives up what a stream has not answered."""
        if self._stream is not stream:
            return
        self._stream = None
        batches = list(self.inflight)
        self.inflight.clear()
        self.server.inflight_count -= len(batches)
        self.server.look_after()
        self.server.answers.broken(self, batches, error)


class _Stream:
    """One AppendStream. gRPC's own thread writes what is queued, one of ours reads; both only hand over.

    The asynchronous face of gRPC would do without threads. But it serves all event loops of a process by one queue, and
    a program whose own loop uses it as well would find the other loop's noise in its log.
    """

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._loop = outlet.server.loop
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers: deque[pb.AppendStreamResponse] = deque()
        self._cut_error: DeadlineError | None = None
        self._call = outlet.server.append_stream(iter(self._requests.get, None))
        outlet.server.begin_thread(self._read, "answers")

    def send(self, request: bytes) -> None:
        """Queues a request."""
        self._requests.put(request)

    def cut_off(self, error: DeadlineError) -> None:
        """Ends it because of this error."""
        self._cut_error = error
        self._call.cancel()

    def end(self) -> None:
        """Ends it for no reason of its own."""
        self._call.cancel()
        self._requests.put(None)

    def _read(self) -> None:
        outlet = self._outlet
        error: MillraceError = UnavailableError(
            f"{outlet.name} has ended the stream", channel=outlet.channel, code=grpc.StatusCode.UNAVAILABLE
        )
        try:
            for answer in self._call:
                self._answers.append(answer)
                if len(self._answers) == 1:
                    call_in(self._loop, self._hand_over)
        except grpc.RpcError as failure:
            error = outlet.server.failures.error_of(failure, outlet.channel)
        # Lets go the thread that writes.
        self._requests.put(None)
        call_in(self._loop, self._finish, error)

    def _hand_over(self) -> None:
        while self._answers:
            # Only then is it taken out: so the next one to come sees that a hand-over is under way, or asks for one.
            self._outlet.take_answer(self, self._answers[0])
            self._answers.popleft()

    def _finish(self, error: MillraceError) -> None:
        self._hand_over()
        self._outlet.take_end(self, self._cut_error or error)


def _naming_options(target: Target, how: Credentials) -> list[tuple[str, str]]:
    if not target.authority:
        return []
    options = [("grpc.default_authority", target.authority)]
    if how.credentials is not None:
        options.append(("grpc.ssl_target_name_override", target.authority.rpartition(":")[0]))
    return options
