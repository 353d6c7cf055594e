"""The producer: sends events in the background, in batches, each exactly once."""

import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Self

from millrace_client._endpoints import servers_of
from millrace_client._forks import Unpicklable, forked_error
from millrace_client._settings import check_endpoints, new_txn_id
from millrace_client.errors import BadArgumentError, SendAttempt, SendResult
from millrace_client.events import Event, Events, check_several
from millrace_client.producing.accumulator import Accumulator
from millrace_client.producing.channel_buffer import ChannelBuffer
from millrace_client.producing.config import Overflow, ProducerConfig, Routing
from millrace_client.producing.engine import EngineSettings
from millrace_client.producing.metrics import (
    Latencies,
    ProducerCounters,
    ProducerHooks,
    ProducerMetrics,
    ProducerRates,
    ServerMetrics,
)
from millrace_client.producing.pages import SendFuture
from millrace_client.producing.results import Callback
from millrace_client.producing.send_many import SendFutures, SendSummary, put_many
from millrace_client.producing.sending import NO_HEADERS, check_body, check_channel, check_key, parts_of
from millrace_client.producing.targets import ConnectionOptions
from millrace_client.producing.threaded import ProducerCloseReport, ThreadedEngine
from millrace_client.security import File, Tls, Token, check_encryption

CLOSE_SECONDS = 60.0
"""How long `close` waits by default."""


class BaseProducer(Unpicklable):
    """The part of a producer that does not depend on how its engine runs; base of both APIs' producers."""

    def __init__(  # noqa: PLR0913 - all but the first have defaults
        self,
        endpoints: str | Sequence[str],
        channel: str = "",
        *,
        config: ProducerConfig | None = None,
        tls: Tls | None = None,
        token: str | None = None,
        token_file: File | None = None,
        options: tuple[tuple[str, str | int], ...] = (),
        hooks: ProducerHooks | None = None,
    ) -> None:
        self._config = config or ProducerConfig()
        self._channel = channel
        if tls is not None:
            # What is wrong with its files now is raised here; later, the former ones stay in use.
            tls.credentials()
        checked = check_endpoints(endpoints)
        if (bearer := Token.given(token, token_file)) is not None:
            bearer.metadata()
            for server in (server for endpoint in checked for server in servers_of(endpoint)):
                check_encryption(bearer, server, is_encrypted=tls is not None)
        self._producer_id = self._config.producer_id or new_txn_id()
        self._counters = ProducerCounters()
        self._accumulator = Accumulator(self._config, self._producer_id, self._counters)
        self._settings = EngineSettings(
            endpoints=checked,
            connection=ConnectionOptions(tls=tls, token=bearer, options=tuple(options)),
            config=self._config,
            hooks=hooks,
        )
        self._buffers: dict[str, ChannelBuffer] = {}
        self._process_id = os.getpid()
        self._prepare_engine()

    def _prepare_engine(self) -> None:
        raise NotImplementedError

    @property
    def producer_id(self) -> str:
        """The producer's id, in context headers, and in its stamps if it was configured."""
        return self._producer_id

    @property
    def config(self) -> ProducerConfig:
        """The limits."""
        return self._config

    def _channel_name(self, channel: str) -> str:
        name = channel or self._channel
        if not name:
            raise BadArgumentError("channel: is empty; name one here, or when making the producer")
        # The server judges the rest. A name that cannot be sent would fail what is buffered for other channels.
        check_channel(name)
        return name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._settings.endpoints)}>"


class Producer(BaseProducer):
    """Sends events to one or several servers in the background. `send` returns at once.

        with Producer("127.0.0.1:7070", channel="orders") as producer:
            future = producer.send(b"one", key="customer-1")
            print(future.result().sequence)

    All methods may be called from any thread, and from callbacks, but not from signal handlers: the thread that a
    handler interrupts may hold a lock. Let the handler raise SystemExit, for example, and close the producer there.

    **Exactly once.** A batch is numbered and encoded once, and every further attempt sends the same bytes. So whatever
    fails (a reply, a connection, a server that restarts), the channel of one server holds one copy of an event whose
    future says that it is stored. An event whose future fails is not stored if `is_outcome_known` is true; otherwise it
    may be stored, once. A batch that its server may have stored stays with that server. If `move_after_seconds` lets it
    go to another server, it may be stored on both, and on the first one as late as that server returns: then delivery
    is at least once across servers, and still at most once on each.

    **Order.** Events of one key have the order of the `send` calls in each channel, also after retries: an event of a
    key is sent only when all earlier events of that key are settled or in the same batch. Other keys continue
    in the meantime; for that, keys are distributed over 32 buckets. Events without a key have the order of `send` as
    long as nothing must be sent again. An event that fails leaves a gap, and later events are stored all the same. With
    several servers, the order holds in each server's channel.

    **Resuming.** A producer with a `producer_id` can be followed by another one with the same id, also in another
    process: events that both send are stored once. For that, events are numbered in the order of `send`, in each
    channel from `first_number`, and stored in that order, regardless of their keys. There must be one endpoint, for one
    server. The first event that fails stops the producer: nothing after it is stored, the futures of later events fail
    and `send` raises ProducerClosedError. (An event that `send` refuses has no number.) So the stored events have no
    gap, and the next producer sets `first_number` and sends again from there: from the first event that is not known
    to be stored, or an earlier one. The delivery time of an event starts when all events before it are stored, since
    one batch of a channel is in progress at a time. At most one producer of an id may run at a time.

    **Memory** is bounded by `buffer_bytes_max`; the `overflow` policy decides what a send does when it is used up.

    **Callbacks** run on two threads of their own, one for stored events and one for failed events, in the order in
    which batches were settled. A callback that raises is logged and counted. A callback that blocks delays the
    callbacks after it, but no event: only the callbacks' own share of the buffer stays in use.

    A `send` that is interrupted by Ctrl-C, or by what another signal handler raises, has accepted its event or not. The
    producer can still be used, flushed and closed.

    A forked process cannot use its parent's producer (ClientForkedError).

    Args:
        endpoints: `host:port`, or several. Each address that a name resolves to is one server. Servers that share
            replicated channels can be one endpoint, with commas between them: of these, one gets the batches.
        channel: The default channel of `send`.
        config: The limits; see `ProducerConfig`.
        tls: How to connect over TLS. None: plain text.
        token: The client's bearer token. None: that of `token_file`, or none.
        token_file: File that holds the token; it is read again when it changes, for streams that start from then on.
        options: Options of the gRPC channels; they override the client's own.
        hooks: Called as the producer works.

    Raises:
        BadArgumentError: There is no endpoint, or several of them with a `producer_id`, or two tokens, or a file cannot
            be read.
    """

    def _prepare_engine(self) -> None:
        self._threaded = ThreadedEngine(self._settings, self._accumulator, self._counters)
        self._put = self._accumulator.put
        self._is_forked = False
        _PRODUCERS.add(self)
        self._finalizer = weakref.finalize(self, self._threaded.close_in_background)
        # When the program exits, the engine closes itself and waits.
        self._finalizer.atexit = False

    def send(
        self,
        event: Event | bytes | str,
        key: str | bytes | None = None,
        channel: str = "",
        callback: Callback | None = None,
    ) -> SendFuture:
        """Accepts an event to be stored and returns its future. Waits only if the buffer is full.

        Args:
            event: An event, or a body alone; text becomes UTF-8. Later changes of the object have no effect.
            key: Events of one key keep their order; with by-key routing it also decides the server. It is not stored.
            channel: The channel. Empty: the producer's default channel.
            callback: Called once with the event's result.

        Raises:
            BufferFullError: The buffer was full for as long as the overflow policy lets this wait.
            EventTooLargeError: The event is larger than the limit.
            BadArgumentError, TypeError: The event or the key is malformed, or there is no channel.
            ProducerClosedError: The producer is closed.
            ClientForkedError: The producer belongs to another process.
        """
        headers: Mapping[str, str]
        if isinstance(event, Event):
            body, headers = event.body, event.headers
            if body.__class__ is not bytes:
                check_body(body)
        elif isinstance(event, bytes):
            body, headers = event, NO_HEADERS
        else:
            body, headers = parts_of(event)
        if key is not None and key.__class__ is not str and key.__class__ is not bytes:
            check_key(key)
        buffer = self._buffers.get(channel) or self._open_buffer(channel)
        page, index = self._put(buffer, key, body, headers, callback, True)
        return SendFuture(page, index)

    def send_many(self, events: Events, key: str | bytes | None = None, channel: str = "") -> SendFutures:
        """Accepts many events, each as `send` does, and returns their futures.

        Events with the same header names and ASCII values cost a fraction of as many calls of `send`. An event that is
        not accepted has failed when this returns; the others are not affected.

        Args:
            events: Events or bodies, in order.
            key: The key of all of them.
            channel: The channel. Empty: the producer's default channel.

        Raises:
            BadArgumentError: There is no channel.
            TypeError: The key or an event is of another type. As with whatever `events` itself raises, the events
                before are accepted.
            ProducerClosedError: The producer is closed.
            ClientForkedError: The producer belongs to another process.
        """
        check_several(events)
        if key is not None:
            check_key(key)
        buffer = self._buffers.get(channel) or self._open_buffer(channel)
        if self._accumulator.refusal is not None:
            raise self._accumulator.refusal
        return put_many(self._accumulator, buffer, key, events)

    def _open_buffer(self, channel: str) -> ChannelBuffer:
        if self._is_forked:
            raise forked_error(self._process_id)
        name = self._channel_name(channel)
        self._threaded.open()
        buffer = self._buffers[channel] = self._accumulator.buffer(name)
        return buffer

    def flush(self, timeout_seconds: float | None = None) -> int:
        """Sends buffered events at once, and waits until all events sent before are settled.

        Returns:
            How many of these events are not settled after the timeout; 0 if all are.
        """
        if self._is_forked:
            raise forked_error(self._process_id)
        return self._accumulator.wait_settled(self._accumulator.close_pages(), timeout_seconds)

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> ProducerCloseReport:
        """Sends and settles all accepted events, runs the callbacks, and ends the threads.

        May be called several times, from many threads, and from callbacks. Events that are not settled after the
        timeout fail with ProducerClosedError; of several calls the latest deadline counts. A call from a callback does
        not wait for the end of that callback, nor for the callbacks after it.

        Returns:
            What was left after the timeout.
        """
        if self._is_forked:
            return ProducerCloseReport(0, 0)
        # If Ctrl-C ends this call, nothing closes the producer again, with a later deadline.
        self._finalizer.detach()
        return self._threaded.close(timeout_seconds)

    def metrics(self) -> ProducerMetrics:
        """Returns the producer's current metrics."""
        return self._threaded.metrics()

    def _note_fork(self) -> None:
        """Runs in a forked process, where threads that do not exist may hold locks forever."""
        self._is_forked = True
        self._buffers = {}
        self._finalizer.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


_PRODUCERS: "weakref.WeakSet[Any]" = weakref.WeakSet()


def _note_fork() -> None:
    for producer in list(_PRODUCERS):
        producer._note_fork()  # noqa: SLF001 - its own module


os.register_at_fork(after_in_child=_note_fork)

__all__ = [
    "Callback",
    "Latencies",
    "Overflow",
    "Producer",
    "ProducerCloseReport",
    "ProducerConfig",
    "ProducerHooks",
    "ProducerMetrics",
    "ProducerRates",
    "Routing",
    "SendAttempt",
    "SendFuture",
    "SendFutures",
    "SendResult",
    "SendSummary",
    "ServerMetrics",
]
