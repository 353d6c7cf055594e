"""The main job as a program: brings a server and Spark up, runs the job, and takes both down whatever happens."""

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import FrameType

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from rich.console import Console

import millrace_client as millrace
from examples.access_log.job import Job, server_toml
from examples.access_log.local_server import ServerError, local_server
from examples.access_log.log_file import LogFileError, open_log_file
from examples.access_log.sending import RoundLimits
from examples.access_log.spark_session import local_spark
from millrace_spark import MillraceSparkError

EXIT_FAILED = 1
EXIT_BAD_LOG = 2
EXIT_STOPPED = 130

_SHORT_RUN_BYTES_MAX = 256 << 20
_OUTPUT = Path("build") / "access_log"
_SETUP_LOG = Path(sys.prefix) / "setup.log"


def main() -> int:
    """Runs the program; returns its exit code."""
    parser = argparse.ArgumentParser(description="Sends a log file through a channel into Spark and accounts for it.")
    parser.add_argument("log", nargs="?", type=Path, default=_SETUP_LOG, help="a log file; else the set-up's own log")
    path: Path = parser.parse_args().log
    console = Console(highlight=False)
    output = _OUTPUT / path.name
    try:
        with _stopped_by_sigterm():
            return _run(path, output, console)
    except LogFileError as error:
        return _fail(str(error), EXIT_BAD_LOG)
    except (ServerError, MillraceSparkError, millrace.MillraceError, OSError) as error:
        return _fail(str(error), EXIT_FAILED)
    except (PySparkException, Py4JError) as error:
        # The first line says what, the others are the JVM's stack.
        what = str(error).strip().splitlines()[0]
        return _fail(f"Spark failed: {what}; {output / 'spark.log'} tells more", EXIT_FAILED)
    except KeyboardInterrupt:
        return _fail("stopped; the server and Spark are stopped too", EXIT_STOPPED)


def _run(path: Path, output: Path, console: Console) -> int:
    log = open_log_file(path)
    output.mkdir(parents=True, exist_ok=True)
    limits = RoundLimits()
    is_short_run = log.size_bytes <= _SHORT_RUN_BYTES_MAX
    with ExitStack() as running:
        with _shown(console, "Starting a server and Spark ..."):
            endpoint = running.enter_context(local_server(server_toml(limits), output / "millraced.log"))
            spark = running.enter_context(local_spark(output / "spark.log", is_short_run=is_short_run))
        console.print(f"Millrace listens on {endpoint}, Spark {spark.version} runs in this machine's cores")
        job = Job(log=log, endpoint=endpoint, spark=spark, folder=output / "parquet", console=console, limits=limits)
        is_good = job.run()
    return 0 if is_good else EXIT_FAILED


def _shown(console: Console, what: str) -> AbstractContextManager[object]:
    """Shows on a terminal that something is going on, and elsewhere that it began."""
    if console.is_terminal:
        return console.status(what)
    console.print(what)
    return nullcontext()


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM and a closed terminal end the block as Ctrl-C does, so that nothing is left running."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _fail(sentence: str, code: int) -> int:
    print(f"run: {sentence}", file=sys.stderr)
    return code
