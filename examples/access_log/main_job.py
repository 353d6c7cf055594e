"""The main job as a program: brings two agents and Spark up, runs the job, and takes them down whatever happens."""

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import FrameType

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from rich.console import Console

import millrace_client as millrace
from examples.access_log.agents import RoundLimits, two_agents
from examples.access_log.job import Job, StoppedError
from examples.access_log.local_server import ServerError
from examples.access_log.log_file import LogFile, LogFileError, open_log_file
from examples.access_log.spark_session import end_java, local_spark
from millrace_spark import MillraceSparkError

EXIT_FAILED = 1
EXIT_BAD_LOG = 2
EXIT_STOPPED = 130

_SHORT_RUN_BYTES_MAX = 256 << 20
_END_JAVA_SECONDS = 0.1
_OUTPUT = Path("build") / "access_log"
_SETUP_LOG = Path(sys.prefix) / "setup.log"


def main() -> int:
    """Runs the program; returns its exit code."""
    parser = argparse.ArgumentParser(
        description="Follows a log through two agents into Spark and accounts for each line."
    )
    parser.add_argument("log", nargs="?", type=Path, default=_SETUP_LOG, help="a log file; else the set-up's own log")
    path: Path = parser.parse_args().log
    console = Console(highlight=False)
    output = _OUTPUT / path.name
    try:
        with _stopped_by_signals():
            return _run(open_log_file(path), output, console)
    except LogFileError as error:
        return _fail(str(error), EXIT_BAD_LOG)
    except (ServerError, MillraceSparkError, millrace.MillraceError, OSError) as error:
        return _fail(str(error), EXIT_FAILED)
    except (PySparkException, Py4JError) as error:
        # The first line says what, the others are the JVM's stack.
        what = str(error).strip().splitlines()[0]
        return _fail(f"Spark failed: {what}; {output / 'spark.log'} tells more", EXIT_FAILED)
    except KeyboardInterrupt:
        return _fail("stopped; the agents and Spark are stopped too", EXIT_STOPPED)


def _run(log: LogFile, output: Path, console: Console) -> int:
    """Does all in a thread, so that Ctrl-C strikes here, where nothing is done but to wait."""
    is_stopping = threading.Event()
    outcome: Future[int] = Future()

    def work() -> None:
        try:
            outcome.set_result(_run_job(log, output, console, is_stopping))
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            outcome.set_exception(error)

    thread = threading.Thread(target=work, name="main-job")
    try:
        thread.start()
        return outcome.result()
    except KeyboardInterrupt:
        is_stopping.set()
        # Again and again, since Java may just be starting. Whatever the thread says now, it was told to stop.
        while thread.is_alive():
            end_java()
            thread.join(_END_JAVA_SECONDS)
        raise


def _run_job(log: LogFile, output: Path, console: Console, is_stopping: threading.Event) -> int:
    output.mkdir(parents=True, exist_ok=True)
    limits = RoundLimits()
    is_short_run = log.size_bytes <= _SHORT_RUN_BYTES_MAX
    with ExitStack() as running:
        with _shown(console, "Starting two agents and Spark ..."):
            agents = running.enter_context(two_agents(output, limits))
            if is_stopping.is_set():
                raise StoppedError
            spark = running.enter_context(local_spark(output / "spark.log", is_short_run=is_short_run))
        console.print(
            f"The edge listens on {agents.edge.endpoint}, the collector on {agents.collector.endpoint}; Spark "
            f"{spark.version} runs in this machine's cores",
            soft_wrap=True,
        )
        job = Job(
            log=log,
            agents=agents,
            spark=spark,
            folder=output / "parquet",
            console=console,
            limits=limits,
            is_stopping=is_stopping,
        )
        is_good = job.run()
    return 0 if is_good else EXIT_FAILED


def _shown(console: Console, what: str) -> AbstractContextManager[object]:
    """Shows on a terminal that something is going on, and elsewhere that it began."""
    if console.is_terminal:
        return console.status(what)
    console.print(what)
    return nullcontext()


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Lets Ctrl-C, SIGTERM and a closed terminal end the block, once; what is being taken down is not interrupted."""
    # What whoever started the program chose to ignore stays ignored, as with nohup.
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    heeded = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}

    def stop(_number: int, _frame: FrameType | None) -> None:
        for number in heeded:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in heeded:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in heeded.items():
            signal.signal(number, handler)


def _fail(sentence: str, code: int) -> int:
    print(f"run: {sentence}", file=sys.stderr)
    return code
