"""The servers of a producer, each server's channels with their sessions, and the batches that are sent there."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol

import grpc

from millrace.v1 import channel_service_pb2 as pb
from millrace_client._retries import Backoff, RetryPolicy
from millrace_client._settings import ConnectionSettings, Numbering
from millrace_client.append_session import ThreadedAppendSession
from millrace_client.errors import (
    BadArgumentError,
    DiskFullError,
    MillraceError,
    NotOwnerError,
    RetryAdvice,
    SendAttempt,
    UnavailableError,
)
from millrace_client.events import Stamp
from millrace_client.grpc_errors import ErrorTranslator
from millrace_client.producing.channel_buffer import ChannelBuffer, OrderingBucket
from millrace_client.producing.config import ProducerConfig
from millrace_client.producing.metrics import ServerMetrics
from millrace_client.producing.pages import Page
from millrace_client.producing.targets import ConnectionOptions, HealthWatch, Target, call_in_loop
from millrace_client.security import FileWatch

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class Part(NamedTuple):
    """Events of one page that are adjacent in a batch."""

    page: Page
    start: int
    stop: int


@dataclass(slots=True, eq=False)
class Batch:
    """Events that are encoded once, with a stamp that never changes, so that a server recognizes a repeat.

    A batch holds the buckets of its keys until it is settled, and later events in the same buckets wait for it.
    """

    buffer: ChannelBuffer
    parts: Sequence[Part]
    stamp: Stamp
    request: bytes
    created_at: float
    """When its first event was sent."""
    timed_from: float
    """When its delivery time began."""
    held_bytes: int
    """Bytes of the buffer that it takes."""
    attempts: deque[SendAttempt]
    buckets: list[OrderingBucket] = field(default_factory=list)
    followers: deque["Batch"] = field(default_factory=deque)
    """The later parts of a batch that was split; they take over its buckets one after the other."""
    attempt_count: int = 0
    doubted: "ServerChannel | None" = None
    """The channel that may have stored it, because an attempt there got no response."""
    doubted_at: float = 0.0
    sent_at: float = 0.0
    last_error: MillraceError | None = None
    span: "Span | None" = None
    """Its span, until it is settled or split; None if it is not traced."""

    @property
    def count(self) -> int:
        return self.stamp.last_sequence - self.stamp.first_sequence + 1

    @property
    def channel(self) -> str:
        """The name of the channel that it goes to."""
        return self.buffer.channel

    @property
    def is_ordered(self) -> bool:
        """Whether nothing after it may be stored unless it is."""
        return self.buffer.is_ordered

    def note_attempt(self, server: str, error: MillraceError | None) -> SendAttempt:
        """Records how an attempt ended."""
        attempt = SendAttempt(
            time=datetime.now(UTC),
            server=server,
            reason="" if error is None else error.reason,
            message="" if error is None else error.message,
        )
        self.attempts.append(attempt)
        self.attempt_count += 1
        self.last_error = error
        return attempt


class Server:
    """The connection to one server, on one event loop."""

    def __init__(
        self, target: Target, connection: ConnectionOptions, config: ProducerConfig, on_change: Callable[[], None]
    ) -> None:
        self.target = target
        self.config = config
        self.errors = ErrorTranslator(target.address)
        self.is_ready = False
        """Whether it is connected and serves. Batches are sent only then, so that none fails before it is sent."""
        self.is_down = False
        """Whether the last attempt to reach it failed."""
        self.is_retired = False
        """Whether its name no longer resolves to it: it gets no new batches."""
        self.inflight_count = 0
        self._settings = ConnectionSettings(
            endpoint=target.address,
            timeout_seconds=config.timeout_seconds,
            wait_for_ready=False,
            tls=connection.tls,
            token=connection.token,
            options=(*_naming_options(target, connection), *connection.options),
        )
        self.loop = asyncio.get_running_loop()
        self.threads: set[threading.Thread] = set()
        """Threads that read from this server. Each of them ends soon after the server is closed."""
        self._on_change = on_change
        self.channels: dict[str, ServerChannel] = {}
        self._connect(self._settings.watch_files(), self._settings.open_channel(grpc))

    def _connect(self, file_watch: FileWatch | None, channel: grpc.Channel) -> None:
        self._file_watch = file_watch
        self.channel = channel
        self._health = HealthWatch(
            self.channel, Backoff(self.config.backoff_seconds, self.config.backoff_seconds_max), self._report_health
        )
        self.start_thread(self._health.run, "health")

    def renew_connection(self) -> None:
        """Connects again if files have changed since it was connected to, and calls would fail with the former ones."""
        is_wanted = self.is_down or self._settings.token is not None
        if is_wanted and self._file_watch is not None and self._file_watch.has_changed():
            # Where the files cannot be used yet, the former ones are tried further, and these the next time.
            with suppress(BadArgumentError):
                file_watch, channel = self._settings.watch_files(), self._settings.open_channel(grpc)
                # Streams in progress keep the former gRPC channel until they end.
                self._health.stop()
                self._connect(file_watch, channel)

    @property
    def is_stopping(self) -> bool:
        """Whether it responds, and says that it does not serve."""
        return self._health.is_stopping

    def unreachable_error(self, channel: str) -> MillraceError:
        """Returns the error for events that could not be sent at all."""
        message = f"cannot reach a Millrace server at {self.target.names}; is millraced running there?"
        return UnavailableError(message, channel=channel, code=grpc.StatusCode.UNAVAILABLE)

    def metrics(self, now: float) -> ServerMetrics:
        return ServerMetrics(
            server=self.target.address,
            is_connected=self.is_ready,
            is_sick=self.is_down or any(now < channel.paused_until for channel in tuple(self.channels.values())),
            inflight_batches=self.inflight_count,
        )

    def _report_health(self, is_ready: bool, is_down: bool) -> None:  # noqa: FBT001 - passed on by position
        call_in_loop(self.loop, self._note_health, is_ready, is_down)

    def _note_health(self, is_ready: bool, is_down: bool) -> None:  # noqa: FBT001 - as above
        if (self.is_ready, self.is_down) != (is_ready, is_down):
            self.is_ready, self.is_down = is_ready, is_down
            self.renew_connection()
            self._on_change()

    def check_health(self) -> None:
        """Checks again whether the server can be reached, if it offers no health watch."""
        self._health.check()

    def start_thread(self, read: Callable[[], None], name: str) -> None:
        """Starts a daemon thread that reads from this server."""
        # Not by themselves: the producer waits for those that are about to end, too.
        self.threads = {thread for thread in self.threads if thread.is_alive()}
        thread = threading.Thread(target=read, name=f"millrace-producer-{name}", daemon=True)
        thread.start()
        self.threads.add(thread)

    def close(self) -> None:
        """Ends its streams without a report, and disconnects."""
        self._health.stop()
        for channel in self.channels.values():
            channel.abort()
        self.channel.close()


class ResponseListener(Protocol):
    """Learns the outcome of batches, on the event loop."""

    def on_response(
        self, channel: "ServerChannel", batch: Batch, response: pb.AppendStreamResponse, error: MillraceError | None
    ) -> None:
        """Called with the server's response for a batch, and its error if the batch was refused."""

    def on_stream_end(self, channel: "ServerChannel", batches: Sequence[Batch], error: MillraceError) -> None:
        """Called when a stream has ended and none of these batches will get a response."""


class ServerChannel:
    """One channel of one server, or of the server that owns it, as that one has said.

    After a failure it gets no batches for a pause that grows with each further failure, and then one batch at a time
    until one has succeeded.
    """

    def __init__(
        self, server: Server, name: str, policy: RetryPolicy, numbering: Numbering, listener: ResponseListener
    ) -> None:
        self.server = server
        """The server that gets the batches. Another one continues with the same numbers: the channel is the same."""
        self.name = name
        self.sends_singly = False
        """Whether batches go one by one, because one of them is too large for the server and it is unknown which."""
        self.paused_until = 0.0
        self.is_shared = bool(server.target.others)
        """Whether servers are known to share the channel, which one of them owns."""
        self.last_error: MillraceError | None = None
        """Why it was paused last; None since a batch has succeeded."""
        self._policy = policy
        self._numbering = numbering
        self._listener = listener
        self._failure_count = 0
        self._failed_at = -1.0
        self._session: ThreadedAppendSession[Batch] | None = None
        self._next_server: Server | None = None

    @property
    def address(self) -> str:
        return self.server.target.address

    def is_healthy(self, now: float) -> bool:
        """Whether it is not known to fail: a server that is being connected to is waited for."""
        return not self.server.is_down and now >= self.paused_until

    def is_full(self, now: float) -> bool:
        """Whether it is paused only because the channel has no space."""
        return (
            not self.server.is_down
            and now < self.paused_until
            and self.last_error is not None
            and self.last_error.advice is RetryAdvice.FULL
            # A server whose disk is full is not healthy: others stand in for it.
            and not isinstance(self.last_error, DiskFullError)
        )

    def has_capacity(self, now: float) -> bool:
        """Whether a batch could be sent now."""
        server = self.server
        if (
            not server.is_ready
            or self._next_server is not None
            or now < self.paused_until
            or server.inflight_count >= server.config.inflight_batches_max
        ):
            return False
        return not (self._failure_count or self.sends_singly) or not self._is_waiting

    @property
    def _is_waiting(self) -> bool:
        return self._session is not None and bool(self._session.in_flight)

    def can_be_asked(self, now: float) -> bool:
        """Whether a batch could be sent to a server that is stopping, to learn which one owns the channel now."""
        may_send = self._next_server is None and now >= self.paused_until and not self._is_waiting
        return may_send and self.server.is_stopping

    def next_stamp(self, event_count: int) -> Stamp:
        """Returns the numbers for a batch that is sealed for this channel."""
        return self._numbering.next_stamp(self.name, event_count)

    def note_gap(self) -> None:
        """Counts numbers that were assigned here and may never have been stored here."""
        self._numbering.note_gap(self.name)

    def send(self, batch: Batch, now: float) -> None:
        batch.sent_at = now
        self.server.inflight_count += 1
        session = self._session
        if session is None:
            self.server.renew_connection()
            session = self._session = ThreadedAppendSession(self.server.channel, self.server.errors, self.name)
            _Reader(self, session)
        session.send(batch, batch.request, now)

    def move(self, server: Server) -> None:
        """Sends to another server, from the moment when nothing is in progress at this one."""
        self._next_server = None if server is self.server else server
        self._move_if_idle()

    def _move_if_idle(self) -> None:
        if self._next_server is not None and not self._is_waiting:
            if self._session is not None:
                self._session.half_close()
            self._session = None
            self.server, self._next_server = self._next_server, None

    def follow(self, owner: Server, batch: Batch, error: NotOwnerError, now: float) -> float:
        """Continues at the owner of the channel; returns the pause of the batch that was refused here.

        The first hop is immediate, further ones wait, so that servers that name each other are asked now and then.
        """
        self.move(owner)
        if self.last_error is None:
            self.last_error, self._failed_at = error, now
            return 0.0
        self.note_failure(batch, error, now)
        return self._policy.batch_pause_seconds(max(self._failure_count, 1), error, is_shared=True)

    def note_success(self) -> None:
        """Ends the pauses."""
        self._failure_count = 0
        self.last_error = None

    def note_failure(self, batch: Batch, error: MillraceError, now: float) -> None:
        """Counts a failure and begins a pause, once for batches that failed together."""
        if batch.sent_at > self._failed_at:
            self._failure_count += 1
            self._failed_at = now
            pause_seconds = self._policy.server_pause_seconds(self._failure_count, error, is_shared=self.is_shared)
            self.paused_until = now + pause_seconds
            self.last_error = error

    def response_due(self) -> float | None:
        """Returns when the next response must have come; None if no batch is in progress."""
        session = self._session
        if session is None or not session.in_flight:
            return None
        return session.waiting_since + self.server.config.timeout_seconds

    def cancel_overdue(self) -> None:
        """Ends a stream that does not respond."""
        if self._session is not None:
            self._session.cancel(self.server.errors.deadline(self.name))

    def abort(self) -> list[Batch]:
        """Ends the stream without a report; returns the batches that it has not responded."""
        session, self._session = self._session, None
        if session is None:
            return []
        session.cancel()
        batches = session.take_in_flight()
        self.server.inflight_count -= len(batches)
        return batches

    def take_response(self, session: ThreadedAppendSession[Batch], response: pb.AppendStreamResponse) -> None:
        """Reports the response for the oldest batch in progress."""
        if self._session is not session or not session.in_flight:
            return
        batch, error = session.match(response, self.server.loop.time())
        self.server.inflight_count -= 1
        self._move_if_idle()
        self._listener.on_response(self, batch, response, error)

    def take_end(self, session: ThreadedAppendSession[Batch], error: MillraceError) -> None:
        """Reports the batches that an ended stream has not responded."""
        if self._session is not session:
            return
        self._session = None
        batches = session.take_in_flight()
        self.server.inflight_count -= len(batches)
        self.server.check_health()
        self._move_if_idle()
        self._listener.on_stream_end(self, batches, error)


class _Reader:
    """A thread that hands a session's responses over to the event loop.

    gRPC's asyncio API would need no threads. But it serves all event loops of a process through one queue, and a
    program whose own loop uses it too would find the other loop's noise in its log.
    """

    def __init__(self, channel: ServerChannel, session: ThreadedAppendSession[Batch]) -> None:
        self._channel = channel
        self._session = session
        self._loop = channel.server.loop
        self._responses: deque[pb.AppendStreamResponse] = deque()
        channel.server.start_thread(self._read, "responses")

    def _read(self) -> None:
        channel = self._channel
        error: MillraceError = UnavailableError(
            f"{channel.address} closed the stream", channel=channel.name, code=grpc.StatusCode.UNAVAILABLE
        )
        try:
            for response in self._session.responses():
                self._responses.append(response)
                if len(self._responses) == 1:
                    call_in_loop(self._loop, self._hand_over)
        except MillraceError as failure:
            error = failure
        call_in_loop(self._loop, self._finish, error)

    def _hand_over(self) -> None:
        while self._responses:
            # The response is removed only afterwards, so that the reading thread sees that a hand-over is in progress.
            self._channel.take_response(self._session, self._responses[0])
            self._responses.popleft()

    def _finish(self, error: MillraceError) -> None:
        self._hand_over()
        self._channel.take_end(self._session, error)


def _naming_options(target: Target, connection: ConnectionOptions) -> list[tuple[str, str | int]]:
    if not target.authority:
        return []
    options: list[tuple[str, str | int]] = [("grpc.default_authority", target.authority)]
    if connection.tls is not None:
        options.append(("grpc.ssl_target_name_override", target.authority.rpartition(":")[0]))
    return options
