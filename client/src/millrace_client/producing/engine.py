"""The engine of a producer: takes batches out of the accumulator, sends them, and retries or settles them.

It runs on one event loop and never blocks: whenever something has happened (an event, a response, a connection that was
made or broke) or a time has come, it does what can be done and sets a timer for the next time.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from functools import partial

from millrace.tracing import TRACING
from millrace.v1 import channel_service_pb2 as pb
from millrace_client._retries import Backoff, RetryPolicy
from millrace_client._settings import Numbering
from millrace_client.errors import (
    BadArgumentError,
    InternalError,
    MillraceError,
    NotOwnerError,
    ProducerClosedError,
    RetryAdvice,
    SendAttempt,
    UnavailableError,
)
from millrace_client.producing import batches as batching
from millrace_client.producing.accumulator import Accumulator
from millrace_client.producing.callbacks import CallbackRunner
from millrace_client.producing.channel_buffer import BUCKETS, ChannelBuffer, OrderingBucket
from millrace_client.producing.config import ProducerConfig, Routing
from millrace_client.producing.metrics import Latencies, ProducerCounters, ProducerHooks, ProducerMetrics, ServerMetrics
from millrace_client.producing.owners import Owners
from millrace_client.producing.routing import Router, ranked
from millrace_client.producing.servers import Batch, Server, ServerChannel
from millrace_client.producing.settling import LOG, BatchSettler
from millrace_client.producing.targets import ConnectionOptions, Resolve, resolve_host, targets_of
from millrace_client.producing.traced_batches import batch_span


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The configuration of an engine."""

    endpoints: Sequence[str]
    connection: ConnectionOptions
    config: ProducerConfig
    hooks: ProducerHooks | None = None
    resolve: Resolve = resolve_host

    def __post_init__(self) -> None:
        if self.config.is_resumable and len(self.endpoints) > 1:
            raise BadArgumentError(
                f"endpoints: are {len(self.endpoints)}; with producer_id there must be one, for only the server that"
                " stored an event recognizes it; servers that share the channel are one, with commas between them"
            )


class Engine:
    """Sends the events of an accumulator. For the event loop that it was created on, unless a method says otherwise."""

    def __init__(
        self,
        settings: EngineSettings,
        accumulator: Accumulator,
        counters: ProducerCounters,
        callbacks: CallbackRunner,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._config = settings.config
        self._accumulator = accumulator
        self._settler = BatchSettler(accumulator, counters, callbacks, settings.hooks, self._loop.time)
        self._retries = self._settler.retries
        backoff = Backoff(settings.config.backoff_seconds, settings.config.backoff_seconds_max)
        self._policy = RetryPolicy(settings.config.attempts_max, backoff)
        # The addresses of one name may all belong to one server; then its numbers continue whichever is used.
        self._routing = Routing.FAILOVER if self._config.is_resumable else self._config.routing
        self._numbering = (
            Numbering(self._config.producer_id, self._config.first_number) if self._config.is_resumable else None
        )
        self._router = Router(self._routing)
        self._servers: list[Server] = []
        self._owners = Owners(settings.connection, self._config, self.run_once)
        self._ranks: list[list[str]] = []
        self._resolve_error: OSError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_running = False
        self._is_closed = False
        self._deadline: float | None = None
        self._abandoned_count = 0
        self.drained = asyncio.Event()
        """Set once the engine is closing and everything is settled."""

    # From start to end.

    def start(self) -> None:
        self._resolving = self._loop.create_task(self._keep_resolving())

    def close_by(self, deadline: float) -> None:
        """Fails what is not settled by then. The latest of several deadlines counts."""
        if self._deadline is None or deadline > self._deadline:
            self._deadline = deadline
        self.run_once()

    def end(self) -> None:
        """Disconnects. What is not settled has failed."""
        self._abandon(_closed_error())
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._resolving.cancel()
        for server in [*self._servers, *self._owners.servers]:
            server.close()

    def join(self, seconds: float) -> None:
        """Waits for the reading threads after `end`, at most this long for each. For another thread."""
        for server in [*self._servers, *self._owners.servers]:
            for thread in tuple(server.threads):
                thread.join(seconds)

    @property
    def abandoned_count(self) -> int:
        """Events that were not settled when the time for closing had run out. For any thread."""
        return self._abandoned_count

    @property
    def retrying_count(self) -> int:
        """Batches that wait for another attempt. For any thread."""
        return len(self._retries)

    def server_metrics(self) -> list[ServerMetrics]:
        """Returns the metrics of the servers. For any thread."""
        now = self._loop.time()
        return [server.metrics(now) for server in (*self._servers, *self._owners.servers)]

    async def _keep_resolving(self) -> None:
        while True:
            await self._resolve()
            await asyncio.sleep(self._config.resolve_seconds if self._servers else 1.0)

    async def _resolve(self) -> None:
        self._close_retired()
        for server in self._servers:
            server.renew_connection()
        targets = []
        for endpoint in self._settings.endpoints:
            try:
                targets += await targets_of(endpoint, self._settings.resolve)
            except OSError as error:
                # Known servers stay; a name that cannot be resolved is no reason to leave a server.
                self._resolve_error = error
                targets += [server.target for server in self._servers if server.target.authority == endpoint]
        wanted = list(dict.fromkeys(targets))
        known = {server.target: server for server in self._servers}
        if set(wanted) == {target for target, server in known.items() if not server.is_retired}:
            return
        for target in wanted:
            if target not in known:
                with suppress(BadArgumentError):
                    # If a file cannot be read now, it is tried again later.
                    known[target] = Server(target, self._settings.connection, self._config, self.run_once)
        for target, server in known.items():
            server.is_retired = target not in wanted
        # By priority; retired servers come last, with the batches that are still theirs.
        self._servers = [known[target] for target in wanted if target in known] + [
            s for s in known.values() if s.is_retired
        ]
        self._ranks = []
        self.run_once()

    def _close_retired(self) -> None:
        """Closes retired servers that no batch needs any more."""
        doubted = {batch.doubted.server for batch, _ in self._retries if batch.doubted is not None}
        for server in list(self._servers):
            if server.is_retired and not server.inflight_count and server not in doubted:
                self._servers.remove(server)
                server.close()

    # Sending.

    def run_once(self) -> None:
        """Does what can be done now. Never raises: a bug here fails the events, so that no future stays open."""
        if self._is_running or self._is_closed:
            # What happens in here is seen before its end: sending and settling need no second run.
            return
        self._is_running = True
        try:
            self._accumulator.rearm_wakeup()
            now = self._loop.time()
            if self._servers:
                is_any = not all(server.is_down for server in (*self._servers, *self._owners.servers))
                self._settler.log.reachable(is_any=is_any, names=", ".join(self._settings.endpoints))
            self._owners.leave_unreachable(self._servers)
            self._end_overdue(now)
            self._send_again(now)
            self._send_new(now)
            self._set_timer(now)
            if self._deadline is not None and not self._accumulator.open_pages:
                self.drained.set()
        except Exception as error:  # noqa: BLE001 - a bug here must not leave futures open forever
            LOG.exception("the producer failed")
            self._abandon(InternalError(f"the producer failed because of a bug in it: {error!r}"))
        finally:
            self._is_running = False

    def _end_overdue(self, now: float) -> None:
        if self._deadline is not None and now >= self._deadline:
            self._abandon(_closed_error())
            return
        for channel in self._channels():
            due = channel.response_due()
            if due is not None and due <= now:
                channel.cancel_overdue()
        timed_before = now - self._config.delivery_timeout_seconds
        for batch, _ in self._retries:
            if batch.timed_from <= timed_before:
                self._retries.discard(batch)
                self._settler.fail(batch, batch.last_error or self._unsent_error(batch.channel))
        self._settler.fail_expired(timed_before, self._unsent_error)

    def _channels(self) -> list[ServerChannel]:
        return [channel for server in self._servers for channel in server.channels.values()]

    def _send_again(self, now: float) -> None:
        for batch in self._retries.due(now):
            channel = self._choose_again(batch, now)
            if channel is not None:
                self._retries.discard(batch)
                if batch.doubted is not None and channel is not batch.doubted:
                    batch.doubted.note_gap()
                channel.send(batch, now)

    def _choose_again(self, batch: Batch, now: float) -> ServerChannel | None:
        doubted = batch.doubted
        if doubted is not None:
            move_after_seconds = self._config.move_after_seconds
            if move_after_seconds is None or now < batch.doubted_at + move_after_seconds:
                return doubted if doubted.has_capacity(now) or doubted.can_be_asked(now) else None
        return self._choose(batch.channel, batch.buckets[0].index if batch.buckets else -1, now)

    def _send_new(self, now: float) -> None:
        has_sent = True
        while has_sent:
            # One batch of each channel at a time, so that no channel waits for all batches of another.
            has_sent = False
            for buffer in list(self._accumulator.buffers.values()):
                if buffer.waiting and self._send_next(buffer, now):
                    has_sent = True

    def _send_next(self, buffer: ChannelBuffer, now: float) -> bool:
        if self._routing is not Routing.BY_KEY:
            channel = self._choose(buffer.channel, -1, now)
            return channel is not None and self._send_to(channel, buffer, now, lambda _bucket: True)
        # Each bucket has its own server, and a batch holds buckets of one server.
        channels = {bucket.index: self._choose(buffer.channel, bucket.index, now) for bucket in list(buffer.waiting)}
        return any(
            self._send_to(channel, buffer, now, partial(_is_bucket_of, channels, channel))
            for channel in dict.fromkeys(channels.values())
            if channel is not None
        )

    def _send_to(
        self, channel: ServerChannel, buffer: ChannelBuffer, now: float, accepts: Callable[[OrderingBucket], bool]
    ) -> bool:
        pages, buckets = self._accumulator.take_batch(buffer, now, accepts)
        if not pages:
            return False
        stamp = channel.next_stamp(sum(len(page.bodies) for page in pages))
        # Before the events are encoded, since they may get its context. In none itself: this may run in the context of
        # any sender.
        spans = TRACING.spans
        span = None if spans is None else Context().run(batch_span, spans, channel, pages)
        batch = batching.seal(buffer, pages, buckets, stamp, self._config.attempts_kept_max, now)
        batch.span = span
        channel.send(batch, now)
        return True

    def _choose(self, channel: str, bucket_index: int, now: float) -> ServerChannel | None:
        channels = [self._channel_at(server, channel) for server in self._servers if not server.is_retired]
        order: Sequence[str] = ()
        if bucket_index >= 0 and self._routing is Routing.BY_KEY:
            if not self._ranks:
                addresses = [server.target.address for server in self._servers if not server.is_retired]
                self._ranks = [ranked(index, addresses) for index in range(BUCKETS)]
            order = self._ranks[bucket_index]
        chosen = self._router.choose(channels, order, now)
        if chosen is None and all(channel.server.is_down for channel in channels):
            # One that is stopping names the next owner of a replicated channel, which cannot be found later.
            chosen = next((channel for channel in channels if channel.can_be_asked(now)), None)
        return chosen

    def _channel_at(self, server: Server, name: str) -> ServerChannel:
        known = server.channels.get(name)
        if known is None:
            # Each server has numbers of its own, unless the producer's are resumable.
            numbering = self._numbering or Numbering()
            known = server.channels[name] = ServerChannel(server, name, self._policy, numbering, self)
        return known

    def _set_timer(self, now: float) -> None:
        times = [] if self._deadline is None else [self._deadline]
        if (due := self._accumulator.next_due()) is not None:
            times.append(due)
        if (timed_from := self._accumulator.oldest_timed_from()) is not None:
            times.append(timed_from + self._config.delivery_timeout_seconds)
        for batch, due in self._retries:
            times += [due, batch.timed_from + self._config.delivery_timeout_seconds]
            if batch.doubted is not None and self._config.move_after_seconds is not None:
                times.append(batch.doubted_at + self._config.move_after_seconds)
        for channel in self._channels():
            times.append(channel.paused_until)
            if (response_due := channel.response_due()) is not None:
                times.append(response_due)
        if self._timer is not None:
            self._timer.cancel()
        # What is due already waits for something other than time, which will call `run_once`.
        later = [moment for moment in times if moment > now]
        self._timer = self._loop.call_at(min(later), self.run_once) if later else None

    # Responses.

    def on_response(
        self, channel: ServerChannel, batch: Batch, response: pb.AppendStreamResponse, error: MillraceError | None
    ) -> None:
        """Settles a batch that the server has stored, and retries, splits or fails one that it refused."""
        if error is None:
            channel.note_success()
            channel.sends_singly = channel.sends_singly and bool(self._retries)
            self._settler.store(batch, channel.address, response)
        else:
            self._note_refusal(channel, batch, error)
        self.run_once()

    def on_stream_end(self, channel: ServerChannel, batches: Sequence[Batch], error: MillraceError) -> None:
        """Retries or fails the batches that an ended stream has not responded."""
        now = self._loop.time()
        is_too_large = error.reason == "MESSAGE_TOO_LARGE"
        if is_too_large and len(batches) > 1:
            # One of them is too large; sent one by one, it will be the only one in the stream.
            channel.sends_singly = True
        is_sure = is_too_large and len(batches) == 1
        for batch in batches:
            if not is_sure and batch.doubted is not channel:
                # The doubt about an earlier server ends here: from now on this server gets the batch.
                batch.doubted, batch.doubted_at = channel, now
            attempt = batch.note_attempt(channel.address, error)
            if not is_sure:
                # Otherwise the server is healthy, and the batch is the cause.
                channel.note_failure(batch, error, now)
            if is_sure and batch.count > 1:
                self._split(batch, error)
            elif (channel.sends_singly and not is_sure) or self._policy.retries_in_flight(error, batch.attempt_count):
                self._retry(channel, batch, attempt, error)
            else:
                self._fail_after(batch, attempt, error)
        self.run_once()

    def _note_refusal(self, channel: ServerChannel, batch: Batch, error: MillraceError) -> None:
        now = self._loop.time()
        if isinstance(error, NotOwnerError) and (owner := self._owners.find(channel, error, self._servers)):
            # No attempt: the channel has not seen it.
            self._retries.add(batch, now + channel.follow(owner, batch, error, now))
            return
        attempt = batch.note_attempt(channel.address, error)
        if error.advice is RetryAdvice.SMALLER and batch.count > 1:
            self._split(batch, error)
            return
        if not error.is_outcome_known and batch.doubted is None:
            batch.doubted, batch.doubted_at = channel, now
        if self._policy.retries_refused(error, batch.attempt_count):
            channel.note_failure(batch, error, now)
            self._retry(channel, batch, attempt, error)
        else:
            self._fail_after(batch, attempt, error)

    def _fail_after(self, batch: Batch, attempt: SendAttempt, error: MillraceError) -> None:
        self._settler.note_failed_attempt(batch, attempt, None)
        self._settler.fail(batch, error)

    def _retry(self, channel: ServerChannel, batch: Batch, attempt: SendAttempt, error: MillraceError) -> None:
        now = self._loop.time()
        pause = self._policy.batch_pause_seconds(batch.attempt_count, error, is_shared=channel.is_shared)
        if now + pause > batch.timed_from + self._config.delivery_timeout_seconds:
            self._fail_after(batch, attempt, error)
            return
        self._settler.log.retrying(attempt.server, batch.channel, error, pause)
        self._settler.note_failed_attempt(batch, attempt, pause)
        self._retries.add(batch, now + pause)

    def _split(self, batch: Batch, error: MillraceError) -> None:
        self._settler.note_split(batch, error)
        buffer = batch.buffer
        if error.reason == "TXN_CAPACITY":
            buffer.events_max = min(buffer.events_max, max(batch.count // 2, 1))
            pieces = batching.split_in_halves(batch)
        elif error.reason == "MESSAGE_TOO_LARGE":
            buffer.bytes_max = min(buffer.bytes_max, len(batch.request) // 2)
            pieces = batching.split_by_size(batch, buffer.bytes_max)
        else:
            pieces = batching.split_around_largest(batch)
        self._retries.add(pieces[0], self._loop.time())

    def _unsent_error(self, channel: str) -> MillraceError:
        """Returns why events could not be sent within their delivery time."""
        for server in self._servers:
            known = server.channels.get(channel)
            if not (server if known is None else known.server).is_ready:
                return server.unreachable_error(channel)
            # An error whose outcome is unknown concerns other events than these.
            if known is not None and known.last_error is not None and known.last_error.is_outcome_known:
                return known.last_error
        if not self._servers and self._resolve_error is not None:
            message = f"cannot look up {', '.join(self._settings.endpoints)}: {self._resolve_error}"
            return UnavailableError(message, channel=channel)
        return UnavailableError("the servers accepted nothing within the event's delivery time", channel=channel)

    def _abandon(self, error: MillraceError) -> None:
        # Counted before they fail, since the thread that closes the producer looks as soon as the last one has.
        self._abandoned_count += self._accumulator.open_event_count()
        for channel in self._channels():
            for batch in channel.abort():
                batch.doubted = channel
                self._settler.fail_with_followers(batch, error)
        for batch, _ in self._retries:
            self._retries.discard(batch)
            self._settler.fail_with_followers(batch, error)
        self._settler.fail_expired(math.inf, lambda _channel: error)


def metrics_of(
    accumulator: Accumulator, counters: ProducerCounters, engine: Engine | None, callbacks: CallbackRunner, time: float
) -> ProducerMetrics:
    """Returns the metrics of a producer. For any thread."""
    servers = [] if engine is None else engine.server_metrics()
    return ProducerMetrics(
        time=time,
        open_events=accumulator.open_event_count(),
        buffer_bytes=accumulator.held_bytes,
        buffer_bytes_max=accumulator.bytes_max,
        inflight_batches=sum(server.inflight_batches for server in servers),
        retrying_batches=0 if engine is None else engine.retrying_count,
        waiting_callbacks=callbacks.waiting_count,
        events_stored=counters.events_stored,
        events_deduplicated=counters.events_deduplicated,
        events_failed=counters.events_failed,
        events_dropped=counters.events_dropped,
        bytes_stored=counters.bytes_stored,
        batches_stored=counters.batches_stored,
        attempts_failed=counters.attempts_failed,
        retries=counters.retries,
        callback_errors=counters.callback_errors,
        blocked_seconds=counters.blocked_seconds,
        latencies=Latencies(tuple(counters.latency_counts), counters.latency_seconds),
        servers=servers,
    )


def _closed_error() -> MillraceError:
    return ProducerClosedError("the producer was closed, and the time limit passed before the event was stored")


def _is_bucket_of(channels: Mapping[int, ServerChannel | None], channel: ServerChannel, bucket: OrderingBucket) -> bool:
    return channels.get(bucket.index) is channel
