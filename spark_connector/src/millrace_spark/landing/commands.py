"""The commands `land` and `compact`: signals, reports and exit codes."""

import json
import os
import signal
import threading
import time
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Self

import typer
from rich.console import Console

from millrace.command_line.notes import write_note
from millrace.command_line.program import EXIT_BROKEN_PIPE
from millrace.command_line.tables import show
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
    """The exit code of a command. The numbers never change, since scripts rely on them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    BAD_LINES = 4
    LATER = 5
    INTERRUPTED = 130
    BROKEN_PIPE = EXIT_BROKEN_PIPE
    TERMINATED = 143


MEANINGS = {
    ExitCode.OK: "done; with --follow also after Ctrl-C or SIGTERM",
    ExitCode.FAILED: "refused or failed, as the message says; the next run resumes without loss or duplicates",
    ExitCode.USAGE: "the command line or the configuration is wrong",
    ExitCode.BAD_LINES: "done, but there were bad lines (with --strict only)",
    ExitCode.LATER: "another millrace-spark is using this folder; try again later",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C before everything was landed; the next run resumes",
    ExitCode.BROKEN_PIPE: "the reader closed the output pipe",
    ExitCode.TERMINATED: "terminated by SIGTERM before everything was landed; the next run resumes",
}
"""The meaning of each code, as `millrace-spark --help` shows it."""


def note(text: str) -> None:
    """Writes each line of a text to standard error."""
    for line in text.splitlines():
        write_note("millrace-spark", line)


_STANDARD_ERROR = 2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BY_SIGNAL = 128
_AT_ONCE = "millrace-spark: stopped immediately by Ctrl-C; nothing is lost, and the next run resumes from here\n"
_BEFORE = "\r\x1b[K"
_AFTER = "\x1b[?25h"
"""Terminal sequences that clear the progress line, and show the cursor, which that line had hidden."""


class ShutdownSignals:
    """Handlers of SIGINT and SIGTERM: the first signal asks the program to stop, a second Ctrl-C ends it at once."""

    def __init__(self) -> None:
        self.is_stopping = threading.Event()
        self.number: signal.Signals | None = None
        # The terminal, even while Spark's start redirects file descriptor 2 to a file.
        self._errors = os.dup(_STANDARD_ERROR)
        self._former = {number: signal.getsignal(number) for number in _SIGNALS}

    def install(self) -> None:
        """Installs the handlers. Call it again after Spark's start, which installs its own."""
        for number in _SIGNALS:
            signal.signal(number, self._stop)

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(self, *_error: object) -> None:
        """Restores the former handlers; these cannot be installed again."""
        for number, former in self._former.items():
            signal.signal(number, former)
        os.close(self._errors)

    @property
    def exit_code(self) -> int:
        """The exit code that shells expect of a process ended by a signal."""
        assert self.number is not None, "no signal came"
        return _BY_SIGNAL + self.number

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        if self.is_stopping.is_set() and number == signal.SIGINT:
            message = f"{_BEFORE}{_AT_ONCE}{_AFTER}" if os.isatty(self._errors) else _AT_ONCE
            with suppress(OSError):
                # Not through Python's file object, which the signal may have interrupted in a write.
                os.write(self._errors, message.encode())
            # As abrupt as kill -9, from which the next start recovers.
            os._exit(_BY_SIGNAL + number)
        self.number = signal.Signals(number)
        self.is_stopping.set()


def land_channels(config: LandingConfig, *, as_json: bool, is_strict: bool) -> int:
    """Lands channels with a progress line, prints a report, even after a failure, and returns the exit code."""
    check_package(config)
    began_at = time.monotonic()
    failure: MillraceSparkError | None = None
    with (
        ShutdownSignals() as signals,
        folder_lock(config.work),
        ProgressDisplay(Console(stderr=True)) as display,
        spark_session(
            config.landing_name, config.spark, spark_log(config.work), with_delta=config.target.format == "delta"
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
    if failure is not None and not state.totals.batches:
        raise failure
    outcome = "failed" if failure else "stopped" if signals.number else "done"
    seconds = time.monotonic() - began_at
    if as_json:
        typer.echo(json.dumps(report_json(state, config, seconds, outcome)))
    else:
        show(report_table(state, config, seconds))
    if failure is not None:
        raise failure
    if signals.number and not config.run.follow:
        return signals.exit_code
    return ExitCode.BAD_LINES if is_strict and state.totals.bad_lines else ExitCode.OK


def compact_folder(
    path: str, work: WorkFolder, limits: CompactionConfig, compression: str, spark_config: SparkConfig
) -> tuple[CompactionTotals, int]:
    """Merges the small files of a folder; returns the counts of the compaction and the exit code."""
    # Without a shared work folder, two compactions would merge the same rows twice.
    missing = f"{work.path}: does not exist, but the landing into {path} must have a work folder; set --work-path"
    if is_local(work.path) and not Path(work.path).is_dir():
        raise MillraceSparkError(missing)
    try:
        with (
            ShutdownSignals() as signals,
            folder_lock(work),
            Console(stderr=True).status("merging files"),
            spark_session("millrace-compact", spark_config, spark_log(work)) as spark,
        ):
            signals.install()
            storage = storage_for(spark, path, work.path)
            if not storage.exists(work.path):
                raise MillraceSparkError(missing)
            if not storage.exists(path):
                raise MillraceSparkError(f"{path}: does not exist; name the folder of the landing")
            compactor = Compactor(storage, path, work, limits, spark_merger(spark, compression))
            compactor.recover()
            finish_all(storage, work)
            compactor.compact(signals.is_stopping.is_set)
    except StorageError as error:
        raise MillraceSparkError(str(error)) from error
    return compactor.totals, signals.exit_code if signals.number else 0
