"""`millrace-spark land`: a landing with a screen, a report and an exit code."""

import json
import sys
import time

from rich.console import Console

from millrace_spark.errors import MillraceSparkError
from millrace_spark.landing.config import LandingConfig
from millrace_spark.landing.exit_codes import ExitCode
from millrace_spark.landing.folder_lock import folder_lock
from millrace_spark.landing.landing_run import Landing, check_package
from millrace_spark.landing.report import report_json, report_table
from millrace_spark.landing.screen import Screen
from millrace_spark.landing.sessions import spark_log, spark_session
from millrace_spark.landing.stopping import StopSignals


def land_channels(config: LandingConfig, *, as_json: bool, is_strict: bool) -> int:
    """Lands channels, shows how it stands, and reports in the end, also where it failed half-way.

    Returns:
        The exit code.

    Raises:
        MillraceSparkError: It could not begin, or not go on.
    """
    check_package(config)
    began_at = time.monotonic()
    signals = StopSignals()
    signals.install()
    console = Console(stderr=True)
    failure: MillraceSparkError | None = None
    try:
        with (
            folder_lock(config.work),
            Screen(console) as screen,
            spark_session(
                config.landing_name,
                config.spark,
                spark_log(config.work),
                with_delta=config.target.format == "delta",
            ) as spark,
        ):
            signals.install()
            landing = Landing(config, spark, signals.is_stopping, screen.look)
            state = landing.state
            screen.watch(state)
            try:
                landing.run()
            except MillraceSparkError as error:
                failure = error
            state.phase = "ending Spark"
    finally:
        signals.uninstall()
    if failure is not None and not state.account.batches:
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
    return ExitCode.BAD_LINES if is_strict and state.account.bad_lines else ExitCode.OK
