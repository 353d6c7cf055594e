import io
import json
import logging
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from millrace_server.logs import (
    ITEMS_MAX,
    REPEAT_SECONDS,
    TEXT_LENGTH_MAX,
    TRACEBACK_LENGTH_MAX,
    also_to_file,
    configure_logging,
    log_to_standard_library,
    safe_text,
    safe_value,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class BrokenPipe(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.fixture(autouse=True)
def _keep_logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raises = root.handlers[:], root.level, logging.raiseExceptions
    # Pytest has handlers of its own, which configure_logging would remove for good.
    root.handlers = []
    yield
    root.handlers, logging.raiseExceptions = handlers, raises
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def logged(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def fail(message: str) -> None:
    raise ValueError(message)


def test_log_elsewhere_writes_a_json_object_a_line() -> None:
    """Entries for programs have UTC times and begin with the most important fields."""
    configure_logging(stream := io.StringIO())
    structlog.stdlib.get_logger("mill").info("serving", port=7070, ratio=float("nan"), names={"a": [1, None]})
    [entry] = logged(stream)
    assert list(entry)[:3] == ["timestamp", "level", "event"]
    assert entry["timestamp"].endswith("Z")
    assert abs((datetime.now(UTC) - datetime.fromisoformat(entry["timestamp"])).total_seconds()) < 60
    del entry["timestamp"]
    assert entry == {
        "level": "info",
        "event": "serving",
        "logger": "mill",
        "port": 7070,
        "ratio": "nan",
        "names": {"a": [1, None]},
    }


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_log_on_a_terminal_is_coloured_text(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    """The text is coloured unless NO_COLOR is set, or the terminal knows no colours."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    configure_logging(coloured := Terminal())
    structlog.stdlib.get_logger("mill").info("serving", port=7070)
    monkeypatch.setenv(variable, value)
    configure_logging(plain := Terminal())
    structlog.stdlib.get_logger("mill").info("serving", port=7070)
    assert "\x1b[" in coloured.getvalue()
    assert "\x1b[" not in plain.getvalue()
    assert "serving" in plain.getvalue()
    assert "port=7070" in plain.getvalue()


@pytest.mark.parametrize("stream_kind", [io.StringIO, Terminal])
@pytest.mark.parametrize("by_standard_library", [True, False])
def test_log_of_hostile_text_stays_one_harmless_line(
    monkeypatch: pytest.MonkeyPatch, stream_kind: type[io.StringIO], *, by_standard_library: bool
) -> None:
    """Line breaks cannot forge entries, and escape sequences cannot control a terminal, in any field."""
    monkeypatch.setenv("NO_COLOR", "1")
    hostile = "x\n2026-01-01 [info] forged\r\x1b[2J\x9b31m\u2028\u202e\0"
    configure_logging(stream := stream_kind())
    if by_standard_library:
        logging.getLogger("grpc").warning("said %s", hostile)
    else:
        structlog.stdlib.get_logger().warning(
            hostile, key=hostile, inside=[{hostile: hostile}], raw=hostile.encode(), **{hostile: 1}
        )
    assert len(stream.getvalue().splitlines()) == 1
    assert stream.getvalue().removesuffix("\n").isprintable()
    assert "forged" in stream.getvalue()


def test_log_of_an_exception_holds_its_traceback() -> None:
    """Tracebacks are kept, indented so that a message in them cannot look like an entry."""
    configure_logging(stream := io.StringIO())
    try:
        fail("boom\nforged \x1b[2J")
    except ValueError as error:
        structlog.stdlib.get_logger().exception("failed")
        logging.getLogger("asyncio").exception("failed too")
        structlog.stdlib.get_logger().error("given", exc_info=error)
    for entry in logged(stream):
        assert entry["exception"].endswith("    ValueError: boom\n    forged \\x1b[2J")
    assert [entry["event"] for entry in logged(stream)] == ["failed", "failed too", "given"]


def test_log_of_a_long_traceback_keeps_its_end() -> None:
    """The entry of a long error is bounded."""
    configure_logging(stream := io.StringIO())
    structlog.stdlib.get_logger().error("failed", exc_info=ValueError("\n".join(["x" * 99] * 10_000) + "\nthe end"))
    [entry] = logged(stream)
    assert entry["exception"].endswith("the end")
    assert len(entry["exception"]) < 2 * TRACEBACK_LENGTH_MAX


def test_log_of_python_warnings_joins_the_log() -> None:
    """Warnings do not bypass the log on standard error."""
    configure_logging(stream := io.StringIO())
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)
        logging.captureWarnings(capture=True)
        warnings.warn("old", UserWarning, stacklevel=1)
    assert [entry["logger"] for entry in logged(stream)] == ["py.warnings"]


def test_log_of_libraries_leaves_out_their_chatter() -> None:
    """Messages of uvicorn about its start are dropped; its errors are logged."""
    configure_logging(stream := io.StringIO())
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("uvicorn.error").error("broken")
    assert [entry["event"] for entry in logged(stream)] == ["broken"]


def test_log_to_a_broken_pipe_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    """The server continues when the reader of its log is gone."""
    configure_logging(BrokenPipe())
    structlog.stdlib.get_logger().info("serving")
    assert capsys.readouterr() == ("", "")


@given(st.text(max_size=2 * TEXT_LENGTH_MAX))
def test_safe_text_is_printable_and_bounded(text: str) -> None:
    """No text leaves its line or grows beyond its escapes."""
    safe = safe_text(text)
    assert safe.isprintable()
    assert len(safe) <= 10 * TEXT_LENGTH_MAX + 30
    if text.isprintable() and len(text) <= TEXT_LENGTH_MAX:
        assert safe == text


def test_safe_text_beyond_its_length_says_how_long_it_was() -> None:
    """A cut text says so."""
    assert safe_text("x" * 2_000) == "x" * TEXT_LENGTH_MAX + "... (2000 characters)"


@given(
    st.recursive(st.none() | st.binary() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.sets(st.text()))
)
def test_safe_value_always_has_json(value: object) -> None:
    """Every value has a representation in JSON."""
    json.dumps(safe_value(value), allow_nan=False)


def test_safe_value_of_many_items_is_bounded() -> None:
    """Long lists are cut."""
    assert safe_value(list(range(1_000))) == list(range(ITEMS_MAX))
    assert len(safe_value({str(number): number for number in range(1_000)})) == ITEMS_MAX


def test_log_to_standard_library_makes_records_that_anybody_can_read(caplog: pytest.LogCaptureFixture) -> None:
    """The records belong to the module's logger; values cannot forge lines, and tracebacks are complete."""
    log_to_standard_library()
    log = structlog.stdlib.get_logger("millrace_server.some")
    with caplog.at_level(logging.INFO, "millrace_server"):
        log.debug("not asked for")
        log.warning("backs off 100 %", sink="collector", reason="two\nlines")
        try:
            fail("oops")
        except ValueError:
            log.exception("failed")
    warning, failed = caplog.records
    assert (warning.name, warning.levelname) == ("millrace_server.some", "WARNING")
    assert warning.getMessage() == "backs off 100 % (sink=collector, reason=two\\nlines)"
    assert failed.getMessage() == "failed"
    assert failed.exc_info is not None


def test_log_of_a_higher_level_leaves_out_entries_but_not_those_of_a_file(tmp_path: Path) -> None:
    """The audit file is complete although the log shows only what is wrong."""
    configure_logging(stream := io.StringIO(), logging.WARNING)
    with also_to_file("audit", tmp_path / "audit.log"):
        structlog.stdlib.get_logger("audit").info("created")
        structlog.stdlib.get_logger("audit").warning("denied")
        structlog.stdlib.get_logger("mill").info("serving")
    assert [entry["event"] for entry in logged(stream)] == ["denied"]
    written = [json.loads(line)["event"] for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert written == ["created", "denied"]


def test_log_repeats_messages_of_opentelemetry_after_minutes() -> None:
    """While no collector responds, its exporter's messages do not fill the log, whatever their arguments."""
    configure_logging(stream := io.StringIO())

    def log(logger: str, message: str, argument: float, created: float) -> None:
        record = logging.makeLogRecord(
            {"name": logger, "msg": message, "args": (argument,), "created": created, "levelno": logging.WARNING}
        )
        logging.getLogger(logger).handle(record)

    for attempt, created in enumerate((0.0, 1.0, REPEAT_SECONDS - 1, REPEAT_SECONDS)):
        log("opentelemetry.exporter.otlp", "retrying in %ss", attempt, created)
    log("opentelemetry.exporter.otlp", "dropped %s spans", 5, REPEAT_SECONDS)
    log("mill", "hot: %s", 1, 0.0)
    log("mill", "hot: %s", 2, 0.0)
    assert [entry["event"] for entry in logged(stream)] == [
        "retrying in 0s",
        "retrying in 3s",
        "dropped 5 spans",
        "hot: 1",
        "hot: 2",
    ]
