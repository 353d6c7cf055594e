import signal
import subprocess
import sys

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from millrace_spark.reading import stream
from millrace_spark.reading.options import StreamOptions, parse_stream_options
from millrace_spark.reading.stream_reader import MillraceStreamReader
from millrace_spark.source import EVENT_SCHEMA


class RecordingStream:
    """Records its calls."""

    def __init__(self, _options: StreamOptions, calls: list[str]) -> None:
        self._calls = calls
        calls.append("opened")

    def fix_end(self) -> None:
        self._calls.append("end fixed")

    def initial_offset(self) -> dict[str, object]:
        self._calls.append("asked where it begins")
        return {}

    def next_offset(self, start: dict[str, object], *, is_limited: bool) -> dict[str, object]:
        self._calls.append("asked how far, with limits" if is_limited else "asked how far")
        return start

    def close(self) -> None:
        self._calls.append("closed")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the calls of opened streams."""
    noted: list[str] = []
    monkeypatch.setattr(stream, "Stream", lambda options: RecordingStream(options, noted))
    monkeypatch.setattr(MillraceStreamReader, "_release_on_sigterm", lambda _reader: None)
    return noted


def test_prepare_for_available_now_claims_nothing_yet(calls: list[str]) -> None:
    """Spark does not stop sources of a query that fails here, so the end is fixed with the first offset."""
    options = parse_stream_options({"endpoints": "a:1", "channels": "orders"})
    reader = MillraceStreamReader(options, EVENT_SCHEMA)
    reader.prepareForTriggerAvailableNow()
    assert calls == []
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    reader.stop()
    assert calls == ["opened", "end fixed", "asked where it begins", "asked how far", "closed"]


_INTERRUPTED = """
import signal, threading
from millrace_spark.reading import stream_reader
stream_reader._RELEASE_SECONDS_MAX = {seconds_max}
needed = threading.Lock()
class Stream:
    def close(self):
        with needed:
            print("released", flush=True)
reader = stream_reader.MillraceStreamReader(None, None)
reader._stream = Stream()
reader._release_on_sigterm()
with needed:
    signal.raise_signal(signal.SIGTERM)
    {then}
threading.Event().wait()
"""


@pytest.mark.parametrize(
    ("seconds_max", "then", "exit_code", "printed"),
    [
        pytest.param(60.0, "signal.raise_signal(signal.SIGTERM)", 128 + signal.SIGTERM, "released\n", id="briefly"),
        pytest.param(0.1, "threading.Event().wait()", -signal.SIGALRM, "", id="forever"),
    ],
)
def test_sigterm_while_the_main_thread_holds_a_lock_ends_the_process(
    seconds_max: float, then: str, exit_code: int, printed: str
) -> None:
    """The claims are released once the lock is free. If it never is, nothing renews them any longer."""
    program = _INTERRUPTED.format(seconds_max=seconds_max, then=then)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (exit_code, printed, "")


_SCRIPT = """
import logging
{before}
from millrace_spark.reading.stream_reader import show_log_lines
show_log_lines()
show_log_lines()
logging.getLogger("millrace_spark").info("a line")
logging.getLogger("millrace_spark").debug("a detail")
"""


def reported(before: str = "") -> str:
    """Returns the standard error of a process."""
    command = [sys.executable, "-c", _SCRIPT.format(before=before)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr


def test_show_log_lines_has_them_come_out_once() -> None:
    """Lines have a time, in a process without a logging configuration."""
    [line] = reported().splitlines()
    assert line.endswith(" INFO millrace_spark: a line")


def test_show_log_lines_leaves_logging_that_is_set_up() -> None:
    """An existing logging configuration is kept."""
    assert reported("logging.basicConfig(level=logging.ERROR)") == ""
