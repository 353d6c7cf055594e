"""Log records that are sent to a channel, by producers that fail in different ways."""

import json
import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from millrace_client import BadArgumentError, Event
from millrace_client._log_sender import ShippingConfig
from millrace_client.logging_handler import MillraceHandler
from millrace_client.structlog_processor import MillraceProcessor

WAIT_SECONDS = 60.0


class FakeProducer:
    """A producer that stores at once, unless a test has it wait or fail.

    Attributes:
        sent: The events received: event, key, channel.
        may_send: Sends wait for it, as in a producer with a full buffer.
        error: The exception of each send.
        failure: The reason why nothing is stored.
    """

    def __init__(self) -> None:
        self.sent: list[tuple[Event, str | None, str]] = []
        self.may_send = threading.Event()
        self.may_send.set()
        self.entered = threading.Event()
        self.error: Exception | None = None
        self.failure: Exception | None = None
        self.is_closed = False
        self.before_send: Callable[[], None] = lambda: None

    def send(
        self,
        event: Event,
        key: str | None = None,
        channel: str = "",
        callback: Callable[[Any], object] | None = None,
    ) -> None:
        self.entered.set()
        assert self.may_send.wait(WAIT_SECONDS)
        self.before_send()
        if self.error is not None:
            raise self.error
        self.sent.append((event, key, channel))
        assert callback is not None
        callback(SimpleNamespace(stored=self.failure is None))

    def close(self, _timeout_seconds: float) -> None:
        self.is_closed = True

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(event.body) for event, _, _ in self.sent]

    def messages(self) -> list[str]:
        return [body["message"] for body in self.bodies()]


def fail() -> None:
    raise ZeroDivisionError("mine")


@pytest.fixture
def producer() -> Iterator[FakeProducer]:
    fake = FakeProducer()
    yield fake
    fake.may_send.set()


@pytest.fixture
def attach(request: pytest.FixtureRequest) -> Iterator[Callable[..., tuple[logging.Logger, MillraceHandler]]]:
    """Creates a handler and attaches it to a logger of the test's own."""
    handlers: list[tuple[logging.Logger, MillraceHandler]] = []

    def attach(producer: Any, **options: Any) -> tuple[logging.Logger, MillraceHandler]:
        handler = MillraceHandler(producer, "logs", **options)
        logger = logging.getLogger(f"test.{request.node.name}")
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.addHandler(handler)
        handlers.append((logger, handler))
        return logger, handler

    yield attach
    for logger, handler in handlers:
        logger.removeHandler(handler)
        handler.close()


def test_record_becomes_an_event(producer: FakeProducer, attach: Any) -> None:
    """The body is JSON with all fields of the record, and headers contain those by which readers select."""
    logger, handler = attach(producer, key="one")
    logger.warning("%s of %d", "one", 2, extra={"order": {"id": 7}})
    handler.flush()
    [(event, key, channel)] = producer.sent
    assert (key, channel) == ("one", "logs")
    body = json.loads(event.body)
    assert (body["message"], body["level"], body["logger"]) == ("one of 2", "WARNING", logger.name)
    assert (body["order"], body["module"], body["function"]) == (
        {"id": 7},
        "test_logging_handler",
        "test_record_becomes_an_event",
    )
    assert event.headers["logger"] == logger.name
    assert event.headers["level"] == "WARNING"
    assert event.headers["pid"] == str(os.getpid())
    assert event.headers["time"] == body["time"]
    assert event.headers["time"].endswith("+00:00")
    assert set(event.headers) == {"logger", "level", "time", "host", "pid"}
    assert handler.metrics.stored == 1


def test_record_with_an_error_holds_its_traceback(producer: FakeProducer, attach: Any) -> None:
    """Error and stack are fields of their own."""
    logger, handler = attach(producer)
    try:
        fail()
    except ZeroDivisionError:
        logger.exception("failed", stack_info=True)
    handler.flush()
    [body] = producer.bodies()
    assert body["exception"].endswith("ZeroDivisionError: mine")
    assert body["stack"].startswith("Stack (most recent call last)")


def test_record_as_text_is_the_formatters(producer: FakeProducer, attach: Any) -> None:
    """The handler's formatter makes the body; characters without a UTF-8 encoding are escaped."""
    logger, handler = attach(producer, body="text")
    handler.setFormatter(logging.Formatter("%(levelname)s|%(message)s"))
    logger.info("caf\u00e9 \udc80")
    handler.flush()
    assert producer.sent[0][0].body == "INFO|caf\u00e9 \\udc80".encode()


def test_record_that_json_does_not_know_is_written_out(producer: FakeProducer, attach: Any) -> None:
    """Any object may be an extra field, and any text a message."""
    logger, handler = attach(producer)
    logger.info("odd \udc80", extra={"thing": object(), ("no", "name"): 1, "number": float("nan")})
    handler.flush()
    [body] = producer.bodies()
    assert body["message"] == "odd \udc80"
    assert body["thing"].startswith("<object object")


def test_record_that_cannot_be_formatted_breaks_nothing(
    producer: FakeProducer, attach: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is reported as by Python's handlers and counted; the program continues."""
    logger, handler = attach(producer)
    logger.info("%d", "no number")
    logger.info("next")
    handler.flush()
    assert producer.messages()[0] == "next"
    assert "no number" in capsys.readouterr().err
    assert handler.metrics.dropped == 1


def test_producer_that_waits_blocks_no_caller(producer: FakeProducer, attach: Any) -> None:
    """Only the sending thread waits; the program continues, and records beyond the buffer are dropped and reported."""
    producer.may_send.clear()
    logger, handler = attach(producer, config=ShippingConfig(buffer_records_max=3))
    logger.info("first")
    assert producer.entered.wait(WAIT_SECONDS)
    for number in range(10):
        logger.info("%d", number)
    assert (handler.metrics.waiting, handler.metrics.dropped) == (4, 7)
    producer.may_send.set()
    handler.flush()
    handler.close()
    assert producer.messages() == ["first", "0", "1", "2", "7 log records were lost"]
    report = producer.bodies()[-1]
    assert (report["level"], report["lost_count"], report["lost_count_in_all"]) == ("WARNING", 7, 7)


def test_buffer_is_bounded_in_bytes(producer: FakeProducer, attach: Any) -> None:
    """A few large records fill it as well as many small ones."""
    producer.may_send.clear()
    logger, handler = attach(producer, config=ShippingConfig(buffer_bytes_max=10_000))
    logger.info("first")
    assert producer.entered.wait(WAIT_SECONDS)
    for _ in range(10):
        logger.info("x" * 3_000)
    assert handler.metrics.dropped == 8
    logger.info("y" * 100_000)
    assert handler.metrics.dropped == 9
    producer.may_send.set()


@pytest.mark.parametrize("way", ["error", "failure"])
def test_record_that_is_not_stored_is_reported(producer: FakeProducer, attach: Any, way: str) -> None:
    """Failed sends and failed storing are counted, and a record reports them once sending works again."""
    logger, handler = attach(producer)
    setattr(producer, way, ConnectionError("away"))
    logger.info("one")
    handler.flush()
    producer.sent.clear()
    setattr(producer, way, None)
    logger.info("two")
    handler.flush()
    handler.close()
    metrics = handler.metrics
    assert (metrics.dropped, metrics.failed) == ((1, 0) if way == "error" else (0, 1))
    assert "two" in producer.messages()
    assert producer.messages()[-1] == "1 log records were lost"


def test_close_with_nothing_to_send_by_tells_on_standard_error(
    producer: FakeProducer, attach: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """If not even the report can be sent, it goes to standard error."""
    logger, handler = attach(producer)
    producer.error = ConnectionError("away")
    logger.info("one")
    logger.info("two")
    handler.close()
    assert capsys.readouterr().err == "millrace: 2 log records were lost\n"


def test_close_counts_what_the_sending_thread_is_just_reporting(
    producer: FakeProducer, attach: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That thread may have been held up between the last record and its report, which fails."""
    logger, handler = attach(producer)
    sender = handler._sender
    report, print_loss, is_printing = sender._report, sender._print_loss, threading.Event()

    def report_late() -> None:
        if threading.current_thread() is sender._thread:
            is_printing.wait(0.1)
        report()

    def print_while_reporting() -> None:
        producer.may_send.clear()
        producer.entered.clear()
        is_printing.set()
        producer.entered.wait(0.1)
        print_loss()
        producer.may_send.set()

    monkeypatch.setattr(sender, "_report", report_late)
    monkeypatch.setattr(sender, "_print_loss", print_while_reporting)
    producer.error = ConnectionError("away")
    logger.info("one")
    logger.info("two")
    handler.close()
    assert capsys.readouterr().err == "millrace: 2 log records were lost\n"


def test_close_does_not_wait_for_ever(producer: FakeProducer, attach: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The close ends in time and reports what is left; later records are dropped."""
    producer.may_send.clear()
    logger, handler = attach(producer, config=ShippingConfig(flush_seconds=0.05))
    logger.info("one")
    handler.close()
    handler.close()
    assert capsys.readouterr().err == "millrace: 1 log records were lost\n"
    logger.info("late")
    assert handler.metrics.dropped == 1


@pytest.mark.parametrize("name", ["millrace_client", "millrace_client.consumer", "grpc", "grpc._cython"])
def test_own_records_are_passed_over(producer: FakeProducer, attach: Any, name: str) -> None:
    """Records of the sending itself would never end."""
    _, handler = attach(producer)
    logging.getLogger(name).addHandler(handler)
    try:
        logging.getLogger(name).error("mine")
    finally:
        logging.getLogger(name).removeHandler(handler)
    handler.flush()
    assert producer.sent == []
    assert handler.metrics.dropped == 0


def test_records_of_the_sending_thread_are_passed_over(producer: FakeProducer, attach: Any) -> None:
    """Whatever the logger, records of the sending thread are not sent either."""
    logger, handler = attach(producer)
    producer.before_send = lambda: logger.error("while sending")
    logger.info("one")
    handler.flush()
    assert producer.messages() == ["one"]


def test_records_of_many_threads_all_arrive(producer: FakeProducer, attach: Any) -> None:
    """The records of each thread arrive in order."""
    logger, handler = attach(producer)

    def log(thread: int) -> None:
        for number in range(200):
            logger.info("%d %d", thread, number)

    threads = [threading.Thread(target=log, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handler.flush()
    messages = producer.messages()
    for thread_number in range(8):
        own = [message for message in messages if message.startswith(f"{thread_number} ")]
        assert own == [f"{thread_number} {number}" for number in range(200)]


def test_record_logged_by_an_interruption_is_taken_after(producer: FakeProducer) -> None:
    """A signal handler may log while its thread is inside the handler."""
    handler = MillraceHandler(producer, "logs")
    sender = handler._sender
    take_in = sender._enqueue

    def interrupted(event: Event) -> None:
        if not producer.entered.is_set():
            producer.entered.set()
            sender.send(Event(b'{"message": "interruption"}'))
        take_in(event)

    sender._enqueue = interrupted  # type: ignore[method-assign]  # stands for a signal at that very moment
    sender.send(Event(b'{"message": "record"}'))
    handler.flush()
    assert producer.messages() == ["record", "interruption"]
    handler.close()


def test_producer_that_is_made_is_closed_with_the_handler(producer: FakeProducer, attach: Any) -> None:
    """A producer passed in by the caller stays open."""
    made: list[FakeProducer] = []

    def make() -> FakeProducer:
        made.append(FakeProducer())
        return made[-1]

    logger, handler = attach(make)
    assert made == []
    logger.info("one")
    handler.close()
    assert [fake.is_closed for fake in made] == [True]
    assert made[0].messages() == ["one"]
    logger, handler = attach(producer)
    logger.info("two")
    handler.close()
    assert not producer.is_closed


@pytest.mark.parametrize("wrong", [{"buffer_records_max": 0}, {"buffer_bytes_max": -1}, {"flush_seconds": 0.0}])
def test_config_of_shipping_that_is_wrong_is_refused(wrong: dict[str, Any]) -> None:
    """A delivery is acknowledged when its handler returns, and comes again if it raises; handlers may stop the run."""
    with pytest.raises(BadArgumentError, match=next(iter(wrong))):
        ShippingConfig(**wrong)


def test_handler_with_another_body_is_refused(producer: FakeProducer) -> None:
    """There are two kinds of body."""
    with pytest.raises(BadArgumentError, match="body: is 'xml'"):
        MillraceHandler(producer, "logs", body="xml")  # type: ignore[arg-type]  # what is tested


def test_processor_ships_and_passes_on(producer: FakeProducer) -> None:
    """In a chain of structlog, the next processor gets the same entry."""
    processor = MillraceProcessor(producer, "logs")
    printed: list[Any] = []

    def keep(_logger: Any, _name: str, entry: Any) -> Any:
        printed.append(entry)
        raise structlog.DropEvent

    log = structlog.wrap_logger(None, processors=[structlog.processors.add_log_level, processor, keep])
    log.warning("paid", order=7, thing={1, 2})
    processor.flush()
    [(event, _, channel)] = producer.sent
    assert printed == [{"event": "paid", "order": 7, "thing": {1, 2}, "level": "warning"}]
    body = json.loads(event.body)
    assert channel == "logs"
    assert (body["event"], body["order"], body["level"], body["thing"]) == ("paid", 7, "warning", "{1, 2}")
    assert event.headers["level"] == "warning"
    processor.close()


@pytest.mark.parametrize("how", ["true", "error", "tuple"])
def test_processor_with_an_error_ships_its_traceback(producer: FakeProducer, how: str) -> None:
    """Every form that structlog accepts for `exc_info` works."""
    processor = MillraceProcessor(producer, "logs")
    try:
        fail()
    except ZeroDivisionError as error:
        given = {"true": True, "error": error, "tuple": sys.exc_info()}[how]
        entry = {"event": "failed", "exc_info": given}
        assert processor(None, "error", entry) is entry
    processor.close()
    assert producer.bodies()[0]["exception"].endswith("ZeroDivisionError: mine")


def test_processor_behind_a_renderer_ships_the_text(producer: FakeProducer) -> None:
    """Text and bytes are sent unchanged."""
    processor = MillraceProcessor(producer, "logs")
    assert processor(None, "info", "a line") == "a line"
    assert processor(None, "info", b"bytes") == b"bytes"
    processor.close()
    assert [event.body for event, _, _ in producer.sent] == [b"a line", b"bytes"]


def test_processor_with_an_odd_entry_breaks_nothing(producer: FakeProducer) -> None:
    """An entry that cannot be encoded is counted as dropped."""

    class Odd:
        def __repr__(self) -> str:
            raise ValueError("odd")

    processor = MillraceProcessor(producer, "logs")
    entry = {"event": Odd()}
    assert processor(None, "info", entry) is entry
    assert processor.metrics.dropped == 1
    processor.close()


_PROGRAM = """
import logging, os, sys
from types import SimpleNamespace
from millrace_client.logging_handler import MillraceHandler
from millrace_client._log_sender import ShippingConfig

class Printing:
    def send(self, event, key, channel, callback):
        os.write(1, event.body + b"\\n")
        callback(SimpleNamespace(stored=True))

logging.getLogger().addHandler(MillraceHandler(Printing, "logs", body="text"))
"""


def run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _PROGRAM + textwrap.dedent(code)],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )


def test_program_that_ends_flushes() -> None:
    """At the end of the program the last records are sent without a close, as is the report of lost records."""
    done = run("""
        for number in range(100):
            logging.warning("%d", number)
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(number) for number in range(100)]


def test_program_that_forks_ships_each_record_once() -> None:
    """The parent sends what it has buffered; the child starts empty, with a producer of its own."""
    done = run("""
        logging.warning("before")
        child = os.fork()
        if child == 0:
            logging.warning("child")
            sys.exit(0)
        os.waitpid(child, 0)
        logging.warning("parent")
    """)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["before", "child", "parent"]
