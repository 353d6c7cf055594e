"""The producer: sends events in the background, in batches, each exactly once."""

import os
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from millrace_client._forks import forked_error
from millrace_client._settings import check_endpoints, new_txn_id
from millrace_client.errors import BadArgumentError
from millrace_client.events import Event, Events
from millrace_client.producing.config import Overflow, ProducerConfig, Routing
from millrace_client.producing.engine import EngineSettings
from millrace_client.producing.intake import Intake
from millrace_client.producing.lanes import Gathering
from millrace_client.producing.metrics import (
    Latencies,
    ProducerHooks,
    ProducerMetrics,
    ProducerRates,
    ServerMetrics,
    Tally,
)
from millrace_client.producing.pages import SendFuture
from millrace_client.producing.results import Callback, SendAttempt, SendResult
from millrace_client.producing.send_many import SendFutures, SendSummary, put_many
from millrace_client.producing.sending import parts_of, refuse_body, refuse_key
from millrace_client.producing.servers import Credentials
from millrace_client.producing.threaded import ProducerCloseReport, ThreadedEngine

CLOSE_SECONDS = 60.0
"""How long `close` waits, unless it is told otherwise."""


class Producer:
    """Sends events to one or several servers. `send` returns at once; the rest happens in the background.

        with Producer("127.0.0.1:7070", channel="orders") as producer:
            future = producer.send(b"one", key="customer-1")
            print(future.result().sequence)

    All methods may be called by any thread, and from callbacks too.

    **Exactly once.** A batch is numbered and encoded once, and every further attempt sends the same bytes. So whatever
    breaks (a reply, a connection, a server that starts anew), the channel of one server holds one copy of an event
    whose future tells that it is stored. An event whose future fails is not stored where `is_outcome_known` says so;
    otherwise it may be, once. A batch of which it is not known whether its server has it stays with that server. Where
    `move_after_seconds` lets it go to another, it may be stored on both, and on the first one as late as that comes
    back: at least once across servers then, and still at most once on each.

    **Order.** Events of one key stand in each channel in the order in which `send` was called, whatever has to be sent
    again: nothing of a key is sent before all that was sent before it under that key is settled or in the same batch.
    To keep the pipe full, other keys go on meanwhile; keys are spread over 32 lanes for that. Events without a key
    stand in the order of `send` as long as nothing has to be sent again. An event that fails for good leaves a gap, and
    those behind it go on. On several servers, each server's channel by itself has this order.

    **Resuming.** A producer whose configuration has a `producer_id` can be followed by another one of the same id, in
    another process too: what both send is stored once. For that, events are numbered in the order of `send`, in each
    channel from `first_number`, and stand in it in that order, whatever their keys. There is one endpoint, which stands
    for one server. The first event that fails for good stops the producer: nothing behind it is stored, their futures
    fail and `send` raises with ProducerClosedError. (What `send` itself refuses has no number.) So what is stored has
    no gap, and whoever goes on gives `first_number` and sends again from there: any event not known to be stored, or
    one before it. The delivery time of an event counts only from when those before it are stored, for one batch
    of a channel is under way at a time. At most one producer of an id may be at work.

    **Memory** is bounded by `buffer_bytes_max`, and what happens then is the `overflow` policy's choice.

    **Callbacks** run on two threads of their own, one for what was stored and one for what was not, in the order in
    which batches were settled. One that raises is logged and counted. One that blocks holds up those behind it, but no
    event: only what callbacks themselves take of the buffer waits for them.

    A process that is forked cannot use its parent's producer (ClientForkedError).

    Args:
        endpoints: `host:port`, or several. Each address that a name resolves to is a server of its own.
        channel: Where events go when `send` does not say.
        config: The limits; see `ProducerConfig`.
        credentials: For TLS. None: plain text.
        options: Options of the gRPC channels, which win over the client's own.
        hooks: Is told what happens while the producer works.

    Raises:
        BadArgumentError: There is no endpoint, or there are several and a `producer_id`.
    """

    def __init__(  # noqa: PLR0913 - all but the first have defaults
        self,
        endpoints: str | Sequence[str],
        channel: str = "",
        *,
        config: ProducerConfig | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        options: tuple[tuple[str, str | int], ...] = (),
        hooks: ProducerHooks | None = None,
    ) -> None:
        self._config = config or ProducerConfig()
        self._channel = channel
        self._producer_id = self._config.producer_id or new_txn_id()
        self._endpoints = check_endpoints(endpoints)
        tally = Tally()
        self._intake = Intake(self._config, self._producer_id, tally)
        settings = EngineSettings(
            endpoints=self._endpoints,
            how=Credentials(credentials=credentials, options=tuple(options)),
            config=self._config,
            hooks=hooks,
        )
        self._threaded = ThreadedEngine(settings, self._intake, tally)
        self._put = self._intake.put
        self._gatherings: dict[str, Gathering] = {}
        self._process_id = os.getpid()
        self._is_foreign = False
        _PRODUCERS.add(self)
        self._finalizer = weakref.finalize(self, self._threaded.abandon)
        # At a program's end the engine closes itself, and waits.
        self._finalizer.atexit = False

    @property
    def producer_id(self) -> str:
        """Names this producer in the headers of the context, and in its stamps where the configuration names it."""
        return self._producer_id

    @property
    def config(self) -> ProducerConfig:
        """The limits."""
        return self._config

    def send(
        self,
        event: Event | bytes | str,
        key: str | bytes | None = None,
        channel: str = "",
        callback: Callback | None = None,
    ) -> SendFuture:
        """Takes an event to be stored, and returns what will tell of it. Waits only where the buffer is full.

        Args:
            event: An event, or a body alone; text becomes UTF-8. What is in it now is sent, whatever becomes of the
                caller's objects.
            key: Events of one key keep their order; with by-key routing it also chooses the server. It is not stored.
            channel: Where it goes. Empty: to the producer's channel.
            callback: Is called once with the event's result, whatever that is.

        Raises:
            BufferFullError: The buffer is full, and was for as long as the policy lets this wait.
            EventTooLargeError: The event alone is larger than events may be.
            BadArgumentError, TypeError: It is no event, or there is no channel.
            ProducerClosedError: The producer is closed.
            ClientForkedError: It belongs to another process.
        """
        headers: Mapping[str, str]
        if isinstance(event, Event):
            body, headers = event.body, event.headers
            if body.__class__ is not bytes:
                refuse_body(body)
        elif isinstance(event, bytes):
            body, headers = event, _NO_HEADERS
        else:
            body, headers = parts_of(event)
        if key is not None and key.__class__ is not str and key.__class__ is not bytes:
            refuse_key(key)
        gathering = self._gatherings.get(channel) or self._open_gathering(channel)
        page, index = self._put(gathering, key, body, headers, callback, True)
        return SendFuture(page, index)

    def send_many(self, events: Events, key: str | bytes | None = None, channel: str = "") -> SendFutures:
        """Takes many events, each as `send` does, and returns what will tell of them.

        Events that are alike (the same header names, values in ASCII) cost a fraction of as many calls of `send`. One
        that cannot be taken has failed when this returns, and harms none of the others.

        Args:
            events: Events or bodies, in the order in which they are to stand.
            key: The same for all of them.
            channel: Where they go. Empty: to the producer's channel.

        Raises:
            BadArgumentError, TypeError: There is no channel, or the key or something among the events is none; those
                before it are on their way.
            ProducerClosedError: The producer is closed.
            ClientForkedError: It belongs to another process.
        """
        if isinstance(events, (str, bytes, bytearray)):
            raise TypeError(f"events: is one {type(events).__name__}; give several, or use send")
        if key is not None:
            refuse_key(key)
        gathering = self._gatherings.get(channel) or self._open_gathering(channel)
        if self._intake.refusal is not None:
            raise self._intake.refusal
        return put_many(self._intake, gathering, key, events)

    def _open_gathering(self, channel: str) -> Gathering:
        if self._is_foreign:
            raise forked_error(self._process_id)
        name = channel or self._channel
        if not name:
            raise BadArgumentError("channel: is empty; name one here, or when making the producer")
        self._threaded.open()
        gathering = self._gatherings[channel] = self._intake.gathering(name)
        return gathering

    def flush(self, timeout_seconds: float | None = None) -> int:
        """Sends what has gathered at once, and waits until all that was sent before is settled.

        Returns:
            How many of these events are not settled after that time; 0 where all are.
        """
        if self._is_foreign:
            raise forked_error(self._process_id)
        return self._intake.wait_settled(self._intake.close_pages(), timeout_seconds)

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> ProducerCloseReport:
        """Sends and settles all that was sent, runs the callbacks, and ends the threads.

        May be called often, from many threads, and from callbacks. What is not settled when the time has run out fails
        with ProducerClosedError; with several calls the latest time counts. Where it is called from a callback, it
        does not wait for the end of that callback, nor for those behind it.

        Returns:
            What was left after that time.
        """
        if self._is_foreign:
            return ProducerCloseReport(0, 0)
        return self._threaded.close(timeout_seconds)

    def metrics(self) -> ProducerMetrics:
        """How the producer stands, and what it has done."""
        return self._threaded.metrics()

    def _note_fork(self) -> None:
        """Runs in a process that was forked: locks may be held for ever by threads that are not there."""
        self._is_foreign = True
        self._gatherings = {}
        self._finalizer.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Producer of {', '.join(self._endpoints)}>"


_NO_HEADERS: Mapping[str, str] = {}
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
