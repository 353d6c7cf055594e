"""Sends log records to a channel in the background: the program never waits for them and sees no errors."""

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
    """A `Producer`, or any object with such a `send`."""

    def send(
        self,
        event: Event,
        key: str | None = None,
        channel: str = "",
        callback: Callable[[Any], object] | None = None,
    ) -> object:
        """Sends an event. May wait or raise; otherwise calls back once, with a result that has a bool `stored`."""


ProducerSource: TypeAlias = "SendsEvents | Callable[[], SendsEvents]"
"""A producer, or a function that creates one; see `MillraceHandler`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippingConfig:
    """The limits of waiting records, and how long flushing takes.

    Raises:
        BadArgumentError: A value is not allowed.
    """

    buffer_records_max: int = 10_000
    """The most waiting records; further records are dropped, counted and reported."""
    buffer_bytes_max: int = 8 << 20
    """The maximum number of bytes of waiting records."""
    flush_seconds: float = 5.0
    """How long `flush`, `close` and the program's exit wait."""

    def __post_init__(self) -> None:
        for name in ("buffer_records_max", "buffer_bytes_max", "flush_seconds"):
            if not getattr(self, name) > 0:
                raise BadArgumentError(f"{name}: is {getattr(self, name)}; it must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippingMetrics:
    """Counts of this process's log records."""

    waiting: int
    """Records that wait to be sent, or for their result."""
    stored: int
    dropped: int
    """Records that found no space, or could not be sent."""
    failed: int
    """Records that were sent but not stored."""


class _Outcomes(NamedTuple):
    """How to count an event, by its outcome."""

    stored: Callable[[], None]
    dropped: Callable[[], None]
    failed: Callable[[], None]


class LogSender:
    """Sends events from its own thread, in order. For any thread.

    `ship` takes no lock that anybody holds while waiting, so that signal handlers and finalizers may log.
    """

    def __init__(self, producer: ProducerSource, channel: str, key: str | None, config: ShippingConfig) -> None:
        self._source = producer
        self._channel = channel
        self._key = key
        self._config = config
        self._reset()
        _SENDERS.add(self)
        atexit.register(_close_at_exit, weakref.ref(self))

    def _reset(self) -> None:
        """Starts without records, as in a forked process: the parent sends its own records."""
        # Re-entrant: a signal handler may log while this thread counts. Held only to count.
        self._changed = threading.Condition(threading.RLock())
        self._queue: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._producer: SendsEvents | None = None
        self._is_closed = False
        self._closes_before_producer = False
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
        """The counts so far."""
        with self._changed:
            return ShippingMetrics(
                waiting=self._queued_count + self._sent_count,
                stored=self._stored_count,
                dropped=self._dropped_count,
                failed=self._failed_count,
            )

    def send(self, event: Event) -> None:
        """Queues an event to be sent, or drops and counts it. Never waits, never raises."""
        with self._changed:
            if self._is_adding:
                # A signal handler has interrupted this thread here; its event is queued right afterwards.
                self._interrupting.put(event)
                return
            self._is_adding = True
            try:
                self._enqueue(event)
                while not self._interrupting.empty():
                    self._enqueue(self._interrupting.get())
            finally:
                self._is_adding = False

    def _enqueue(self, event: Event) -> None:
        byte_count = _byte_count(event)
        has_space = (
            not self._is_closed
            and self._queued_count < self._config.buffer_records_max
            and self._queued_bytes + byte_count <= self._config.buffer_bytes_max
        )
        if has_space and self._has_thread():
            self._queued_count += 1
            self._queued_bytes += byte_count
            self._queue.put(event)
        else:
            self._dropped_count += 1

    def count_dropped(self) -> None:
        """Counts a record that could not be encoded."""
        with self._changed:
            self._dropped_count += 1

    def _has_thread(self) -> bool:
        """Starts the thread with the first event; returns False if the program is exiting and cannot start one."""
        if self._thread is None:
            # A daemon: only the bounded flush may delay the program's exit.
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
            self._send(event, _Outcomes(self._note_stored, self._note_dropped, self._note_failed))
            if not self._queued_count:
                # There is space again.
                self._report()

    def _send(self, event: Event, outcomes: "_Outcomes") -> None:
        """Sends an event that is counted as sent; counts its outcome, perhaps later."""

        def end(result: Any) -> None:
            # Runs in one of the producer's threads, or at once.
            self._end(outcomes.stored if result.stored else outcomes.failed)

        try:
            self._the_producer().send(event, self._key, self._channel, end)
            self._close_before_producer()
        except Exception:  # noqa: BLE001 - whatever the error, the program must continue
            self._end(outcomes.dropped)

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

    def _close_before_producer(self) -> None:
        """Registers to close before the producer, which has started by now and registered its own exit handler."""
        if not self._closes_before_producer:
            self._closes_before_producer = True
            # The exit handler that is registered last runs first.
            atexit.register(_close_at_exit, weakref.ref(self))

    def _report(self) -> None:
        """Sends a record with the number of records that were lost since the last report."""
        with self._changed:
            lost_count = self._dropped_count + self._failed_count
            new_count = lost_count - self._reported_count
            if not new_count:
                return
            self._reported_count = lost_count
            self._sent_count += 1

        def undo() -> None:
            self._reported_count -= new_count

        fields = {
            "message": f"{new_count} log records were lost",
            "lost_count": new_count,
            "lost_count_in_all": lost_count,
        }
        self._send(
            event_of("millrace_client.logging", "WARNING", time.time(), fields), _Outcomes(lambda: None, undo, undo)
        )

    def flush(self, seconds: float) -> bool:
        """Waits until all records so far are stored or have failed; returns False after the timeout."""
        if threading.current_thread() is self._thread:
            return False
        with self._changed:
            return self._changed.wait_for(lambda: not (self._queued_count or self._sent_count), seconds)

    def close(self, seconds: float) -> None:
        """Sends waiting records, within the timeout, and accepts no more. May be repeated."""
        deadline = time.monotonic() + seconds
        with self._changed:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        self.flush(seconds)
        if self._thread is not None:
            self._queue.put(None)
            if self._thread is not threading.current_thread():
                # Its own report may be in progress; if that fails, the one below is the last.
                self._thread.join(max(deadline - time.monotonic(), 0.0))
            self._report()
            self.flush(max(deadline - time.monotonic(), 0.0))
        if callable(self._source) and (close := getattr(self._producer, "close", None)) is not None:
            with contextlib.suppress(Exception):
                close(max(deadline - time.monotonic(), 0.0))
        self._print_loss()

    def _print_loss(self) -> None:
        """Prints to standard error how many records were lost since the last report."""
        with self._changed:
            waiting = self._queued_count + self._sent_count
            lost_count = self._dropped_count + self._failed_count - self._reported_count + waiting
        if lost_count and sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                print(f"millrace: {lost_count} log records were lost", file=sys.stderr)  # noqa: T201 - nothing else is left

    def begin_in_child(self) -> None:
        """Runs after a fork: the thread does not exist here, and the locks may be held forever."""
        self._reset()


def is_own(logger_name: str) -> bool:
    """Whether this package or gRPC logged a record: sending it would create further records without end."""
    if threading.current_thread().name.startswith(_OWN_THREADS):
        return True
    return any(logger_name == own or logger_name.startswith(f"{own}.") for own in _OWN_LOGGERS)


def event_of(logger: str, level: str, created: float, body: Mapping[str, Any] | str) -> Event:
    """Returns the event of one record: fields as JSON, or text."""
    moment = datetime.fromtimestamp(created, UTC).isoformat(timespec="microseconds")
    if isinstance(body, str):
        encoded = body.encode(errors="backslashreplace")
    else:
        fields = {"time": moment, "level": level, "logger": logger, **body}
        # Only ASCII is written, so that no character can fail to encode.
        encoded = json.dumps(fields, default=repr, separators=(",", ":"), skipkeys=True).encode()
    headers = {"logger": logger, "level": level, "time": moment, "host": _host(), "pid": str(os.getpid())}
    return Event(encoded, {name: value.encode(errors="backslashreplace").decode() for name, value in headers.items()})


def _host() -> str:
    global _host_name  # noqa: PLW0603 - it does not change, and reading it is a system call
    if _host_name is None:
        _host_name = socket.gethostname()
    return _host_name


def _byte_count(event: Event) -> int:
    return len(event.body) + _HEADER_BYTES * len(event.headers)


def _close_at_exit(reference: "weakref.ref[LogSender]") -> None:
    if (sender := reference()) is not None:
        sender.close(sender._config.flush_seconds)  # noqa: SLF001 - of this module


def _begin_in_child() -> None:
    for sender in _SENDERS:
        sender.begin_in_child()


_host_name: str | None = None
_SENDERS: "weakref.WeakSet[LogSender]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_begin_in_child)
