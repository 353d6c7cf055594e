"""The commands `land` and `compact`: signals, reports and exit codes."""

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from types import FrameType

from rich.console import Console

from millrace_spark.errors import MillraceSparkError
from millrace_spark.landing.compaction import CompactionTotals, Compactor, spark_merger
from millrace_spark.landing.config import CompactionConfig, LandingConfig, SparkConfig
from millrace_spark.landing.display import ProgressDisplay, report_json, report_table
from millrace_spark.landing.hadoop_storage import storage_for
from millrace_spark.landing.landing_run import Landing, check_package
from millrace_spark.landing.local_storage import folder_lock
from millrace_spark.landing.paths import WorkFolder, is_local
from millrace_spark.landing.publication import finish_all
from millrace_spark.landing.spark_session import spark_log, spark_session
from millrace_spark.landing.storage import StorageError


class ExitCode(IntEnum):
    """How a command ended. Numbers never change: scripts decide by them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    BAD_LINES = 4
    LATER = 5
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    ExitCode.OK: "done; with --follow also where Ctrl-C or SIGTERM ended it",
    ExitCode.FAILED: "refused or failed, as the message says; the next start goes on, nothing lost or doubled",
    ExitCode.USAGE: "the command line or the configuration is wrong",
    ExitCode.BAD_LINES: "done, but there were bad lines (with --strict only)",
    ExitCode.LATER: "another millrace-spark works on this folder; try again when it has ended",
    ExitCode.INTERRUPTED: "ended by Ctrl-C before all was landed, or at once by a second one; the next start goes on",
    ExitCode.TERMINATED: "ended by SIGTERM before all was landed; the next start goes on",
}
"""For each code one phrase, as `millrace-spark --help` shows it."""


_STANDARD_ERROR = 2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BY_SIGNAL = 128
_AT_ONCE = "millrace-spark: ended at once by Ctrl-C; nothing is lost, and the next start goes on from here\n"
_BEFORE = "\r\x1b[K"
_AFTER = "\x1b[?25h"
"""Of a terminal: wipes the screen's line that changes, and shows the cursor, which that line had hidden."""


class ShutdownSignals:
    """What the process was asked.

    Attributes:
        is_stopping: Set where it was asked to end.
        number: By which signal; None where by none.
    """

    def __init__(self) -> None:
        self.is_stopping = threading.Event()
        self.number: signal.Signals | None = None
        # The terminal's, also while Spark's start writes its own talk to a file under the same number.
        self._errors = os.dup(_STANDARD_ERROR)
        self._former = {number: signal.getsignal(number) for number in _SIGNALS}

    def install(self) -> None:
        """From now on signals set `is_stopping`. Again after Spark's start, which puts its own handler there."""
        for number in _SIGNALS:
            signal.signal(number, self._stop)

    def uninstall(self) -> None:
        """Signals do again what they did before; they are not installed again."""
        for number, former in self._former.items():
            signal.signal(number, former)
        os.close(self._errors)

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal has ended."""
        assert self.number is not None, "no signal came"
        return _BY_SIGNAL + self.number

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        if self.is_stopping.is_set() and number == signal.SIGINT:
            told = f"{_BEFORE}{_AT_ONCE}{_AFTER}" if os.isatty(self._errors) else _AT_ONCE
            with suppress(OSError):
                # Not by way of Python's file, in which the signal may have come upon somebody who writes.
                os.write(self._errors, told.encode())
            # As abrupt as kill -9, which the next start bears.
            os._exit(_BY_SIGNAL + number)
        self.number = signal.Signals(number)
        self.is_stopping.set()


def land_channels(config: LandingConfig, *, as_json: bool, is_strict: bool) -> int:
    """Lands channels, shows how it stands, and reports in the end, also where it failed half-way.

    Returns:
        The exit code.

    Raises:
        MillraceSparkError: It could not begin, or not go on.
    """
    check_package(config)
    began_at = time.monotonic()
    signals = ShutdownSignals()
    signals.install()
    console = Console(stderr=True)
    failure: MillraceSparkError | None = None
    try:
        with (
            folder_lock(config.work),
            ProgressDisplay(console) as display,
            spark_session(
                config.landing_name,
                config.spark,
                spark_log(config.work),
                with_delta=config.target.format == "delta",
            ) as spark,
        ):
            signals.install()
            landing = Landing(config, spark, signals.is_stopping, display.refresh)
            state = landing.state
            display.show(state)
            try:
                landing.run()
            except MillraceSparkError as error:
                failure = error
            state.phase = "ending Spark"
    finally:
        signals.uninstall()
    if failure is not None and not state.totals.batches:
        raise failure
    outcome = "failed" if failure else "stopped" if signals.number else "done"
    seconds = time.monotonic() - began_at
    if as_json:
        sys.stdout.write(json.dumps(report_json(state, config, seconds, outcome)) + "\n")
    else:
        Console().print(report_table(state, config, seconds))
    if failure is not None:
        raise failure
    if signals.number and not config.run.follow:
        return signals.exit_code
    return ExitCode.BAD_LINES if is_strict and state.totals.bad_lines else ExitCode.OK


def compact_folder(
    path: str, work: WorkFolder, limits: CompactionConfig, compression: str, spark_config: SparkConfig
) -> tuple[CompactionTotals, int]:
    """Merges the small files of a folder.

    Returns:
        What was merged, and the exit code.

    Raises:
        MillraceSparkError: There is no such folder, another program works on it, or files cannot be read or written.
    """
    # Two compactions that knew nothing of each other would merge the same rows twice.
    told = f"{work.path}: is not there, and the landing into {path} must have its records somewhere; say --work-path"
    if is_local(work.path) and not Path(work.path).is_dir():
        raise MillraceSparkError(told)
    signals = ShutdownSignals()
    signals.install()
    console = Console(stderr=True)
    try:
        with (
            folder_lock(work),
            console.status("merging files"),
            spark_session("millrace-compact", spark_config, spark_log(work)) as spark,
        ):
            signals.install()
            storage = storage_for(spark, path, work.path)
            if not storage.exists(work.path):
                raise MillraceSparkError(told)
            if not storage.exists(path):
                raise MillraceSparkError(f"{path}: is not there; name the folder that was landed in")
            compactor = Compactor(storage, path, work, limits, spark_merger(spark, compression))
            compactor.recover()
            finish_all(storage, work)
            compactor.compact(signals.is_stopping.is_set)
    except StorageError as error:
        raise MillraceSparkError(str(error)) from error
    finally:
        signals.uninstall()
    return compactor.totals, signals.exit_code if signals.number else 0
