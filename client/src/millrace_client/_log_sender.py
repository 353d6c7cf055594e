"""Sending log records on, beside the program: it never waits for them, and never hears of their troubles."""

import atexit
import contextlib
import json
import os
import queue
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, TypeAlias

from millrace_client.errors import BadArgumentError
from millrace_client.events import Event

_OWN_LOGGERS = ("millrace_client", "grpc")
_OWN_THREADS = "millrace-"
_HEADER_BYTES = 64


class SendsEvents(Protocol):
    """What records are sent by: a `Producer`, or anything of this shape."""

    def send(
        self,
        event: Event,
        key: str | None = None,
        channel: str = "",
        callback: Callable[[Any], object] | None = None,
    ) -> object:
        """Sends an event. It may wait, and may raise; else it calls back once, with what has `stored` of type bool."""


ProducerSource: TypeAlias = "SendsEvents | Callable[[], SendsEvents]"
"""A producer, or a function that makes one; see `MillraceHandler`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippingConfig:
    """How much may wait to be sent, and for how long ends wait.

    Raises:
        BadArgumentError: A value is not allowed.
    """

    buffer_records_max: int = 10_000
    """Records that may wait; one that finds no room is dropped, counted and reported."""
    buffer_bytes_max: int = 8 << 20
    """Bytes of records that may wait."""
    flush_seconds: float = 5.0
    """How long `flush` and `close` wait, and the end of the program."""

    def __post_init__(self) -> None:
        for name in ("buffer_records_max", "buffer_bytes_max", "flush_seconds"):
            if not getattr(self, name) > 0:
                raise BadArgumentError(f"{name}: is {getattr(self, name)}; it must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippingMetrics:
    """What became of the records of this process so far."""

    waiting: int
    """Records that wait to be sent, or are on their way."""
    stored: int
    dropped: int
    """Records for which there was no room, or no way to send them."""
    failed: int
    """Records that were sent and not stored."""


class _Ends(NamedTuple):
    """What to count of an event, by what became of it."""

    stored: Callable[[], None]
    dropped: Callable[[], None]
    failed: Callable[[], None]


class LogSender:
    """Sends events by a thread of its own, in the order that they came. Any thread may give it some.

    `ship` takes no lock that anybody holds while waiting, so that signal handlers and finalizers may log.
    """

    def __init__(self, producer: ProducerSource, channel: str, key: str | None, config: ShippingConfig) -> None:
        self._source = producer
        self._channel = channel
        self._key = key
        self._config = config
        self._begin_anew()
        _SENDERS.add(self)
        atexit.register(_close_at_exit, weakref.ref(self))

    def _begin_anew(self) -> None:
        """Begins as a new process does: what a parent has gathered, the parent sends."""
        # Re-entrant: a signal handler may log while this thread counts. Held for counting alone.
        self._changed = threading.Condition(threading.RLock())
        self._queue: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._producer: SendsEvents | None = None
        self._is_closed = False
        self._is_behind_producer = False
        self._is_adding = False
        self._interrupting: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._queued_count = 0
        self._queued_bytes = 0
        self._sent_count = 0
        self._stored_count = 0
        self._dropped_count = 0
        self._failed_count = 0
        self._reported_count = 0

    @property
    def metrics(self) -> ShippingMetrics:
        """What became of the records so far."""
        with self._changed:
            return ShippingMetrics(
                waiting=self._queued_count + self._sent_count,
                stored=self._stored_count,
                dropped=self._dropped_count,
                failed=self._failed_count,
            )

    def send(self, event: Event) -> None:
        """Sends an event soon, or drops and counts it. Never waits, never raises."""
        with self._changed:
            if self._is_adding:
                # A signal handler has interrupted this very thread here; its event is taken right after.
                self._interrupting.put(event)
                return
            self._is_adding = True
            try:
                self._take_in(event)
                while not self._interrupting.empty():
                    self._take_in(self._interrupting.get())
            finally:
                self._is_adding = False

    def _take_in(self, event: Event) -> None:
        byte_count = _byte_count(event)
        has_room = (
            not self._is_closed
            and self._queued_count < self._config.buffer_records_max
            and self._queued_bytes + byte_count <= self._config.buffer_bytes_max
        )
        if has_room and self._has_thread():
            self._queued_count += 1
            self._queued_bytes += byte_count
            self._queue.put(event)
        else:
            self._dropped_count += 1

    def count_dropped(self) -> None:
        """Counts a record that could not even be made an event."""
        with self._changed:
            self._dropped_count += 1

    def _has_thread(self) -> bool:
        """Starts the thread with the first event; False where the program is so far at its end that it cannot."""
        if self._thread is None:
            # A daemon: flushing at the end of the program is bounded, and nothing else may hold it up.
            thread = threading.Thread(target=self._run, name="millrace-log-sender", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while (event := self._queue.get()) is not None:
            with self._changed:
                self._queued_count -= 1
                self._queued_bytes -= _byte_count(event)
                self._sent_count += 1
            self._send(event, _Ends(self._note_stored, self._note_dropped, self._note_failed))
            if not self._queued_count:
                # There is room again.
                self._report()

    def _send(self, event: Event, ends: "_Ends") -> None:
        """Sends an event that is counted as sent; one of the ends is called, perhaps later."""

        def end(result: Any) -> None:
            # Runs on one of the producer's threads, or at once.
            self._end(ends.stored if result.stored else ends.failed)

        try:
            self._the_producer().send(event, self._key, self._channel, end)
            self._follow_producer_at_exit()
        except Exception:  # noqa: BLE001 - whatever keeps a record from being sent, the program goes on
            self._end(ends.dropped)

    def _end(self, note: Callable[[], None]) -> None:
        with self._changed:
            self._sent_count -= 1
            note()
            self._changed.notify_all()

    def _note_stored(self) -> None:
        self._stored_count += 1

    def _note_dropped(self) -> None:
        self._dropped_count += 1

    def _note_failed(self) -> None:
        self._failed_count += 1

    def _the_producer(self) -> SendsEvents:
        if self._producer is None:
            self._producer = self._source() if callable(self._source) else self._source
        return self._producer

    def _follow_producer_at_exit(self) -> None:
        """Has this close before its producer, which has begun by now, and may have registered its own end then."""
        if not self._is_behind_producer:
            self._is_behind_producer = True
            # What is registered last runs first.
            atexit.register(_close_at_exit, weakref.ref(self))

    def _report(self) -> None:
        """Says in a record of its own how many were lost since the last report."""
        with self._changed:
            lost_count = self._dropped_count + self._failed_count
            news_count = lost_count - self._reported_count
            if not news_count:
                return
            self._reported_count = lost_count
            self._sent_count += 1

        def take_back() -> None:
            self._reported_count -= news_count

        fields = {
            "message": f"{news_count} log records were lost",
            "lost_count": news_count,
            "lost_count_in_all": lost_count,
        }
        self._send(
            event_of("millrace_client.logging", "WARNING", time.time(), fields), _Ends(_nothing, take_back, take_back)
        )

    def flush(self, seconds: float) -> bool:
        """Waits until all that was given so far is stored or failed; False where that took too long."""
        if threading.current_thread() is self._thread:
            return False
        with self._changed:
            return self._changed.wait_for(lambda: not (self._queued_count or self._sent_count), seconds)

    def close(self, seconds: float) -> None:
        """Sends what waits, within so long; takes nothing more. May be repeated."""
        give_up_at = time.monotonic() + seconds
        with self._changed:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        self.flush(seconds)
        if self._thread is not None:
            self._report()
            self.flush(max(give_up_at - time.monotonic(), 0.0))
            self._queue.put(None)
        if callable(self._source) and (close := getattr(self._producer, "close", None)) is not None:
            with contextlib.suppress(Exception):
                close(max(give_up_at - time.monotonic(), 0.0))
        self._tell_loss()

    def _tell_loss(self) -> None:
        """Says on standard error what no record could say any more."""
        with self._changed:
            waiting = self._queued_count + self._sent_count
            lost_count = self._dropped_count + self._failed_count - self._reported_count + waiting
        if lost_count and sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                print(f"millrace: {lost_count} log records were lost", file=sys.stderr)  # noqa: T201 - nothing else is left

    def begin_in_child(self) -> None:
        """Runs after a fork. The thread is not here, and the locks may be held for ever."""
        self._begin_anew()


def is_own(logger_name: str) -> bool:
    """Whether a record comes of the shipping itself: shipping it would never end."""
    if threading.current_thread().name.startswith(_OWN_THREADS):
        return True
    return any(logger_name == own or logger_name.startswith(f"{own}.") for own in _OWN_LOGGERS)


def event_of(logger: str, level: str, created: float, body: Mapping[str, Any] | str) -> Event:
    """The event of one record: fields as JSON, or a text."""
    moment = datetime.fromtimestamp(created, UTC).isoformat(timespec="microseconds")
    if isinstance(body, str):
        encoded = body.encode(errors="backslashreplace")
    else:
        fields = {"time": moment, "level": level, "logger": logger, **body}
        # Only ASCII is written, so that no odd character can fail.
        encoded = json.dumps(fields, default=repr, separators=(",", ":"), skipkeys=True).encode()
    headers = {"logger": logger, "level": level, "time": moment, "host": _host(), "pid": str(os.getpid())}
    return Event(encoded, {name: _text(value) for name, value in headers.items()})


def _host() -> str:
    global _host_name  # noqa: PLW0603 - it does not change, and asking for it is a system call
    if _host_name is None:
        _host_name = socket.gethostname()
    return _host_name


def _text(value: str) -> str:
    """The text, with what UTF-8 does not know written out."""
    return value.encode(errors="backslashreplace").decode()


def _byte_count(event: Event) -> int:
    return len(event.body) + _HEADER_BYTES * len(event.headers)


def _nothing() -> None:
    """What is counted for a report."""


def _close_at_exit(reference: "weakref.ref[LogSender]") -> None:
    if (sender := reference()) is not None:
        sender.close(sender._config.flush_seconds)  # noqa: SLF001 - of this module


def _begin_in_child() -> None:
    for sender in _SENDERS:
        sender.begin_in_child()


_host_name: str | None = None
_SENDERS: "weakref.WeakSet[LogSender]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_begin_in_child)
