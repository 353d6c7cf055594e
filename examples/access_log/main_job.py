"""The main job as a program: starts the agents, runs the job, and stops everything, even after an error."""

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

import millrace_client as millrace
from examples.access_log.agents import Agents, RoundLimits, two_agents
from examples.access_log.cluster import agents_on_a_cluster
from examples.access_log.interruptions import stopped_by_signals
from examples.access_log.job import Job
from examples.access_log.landing import LandingError
from examples.access_log.local_server import ServerError
from examples.access_log.log_file import LogFile, LogFileError, open_log_file
from examples.jetstream_cluster import ClusterError

EXIT_FAILED = 1
EXIT_BAD_LOG = 2
EXIT_STOPPED = 130

_OUTPUT = Path("build") / "access_log"
_SETUP_LOG = Path(sys.prefix) / "setup.log"


@dataclass(frozen=True)
class _Start:
    """How the agents are started."""

    agents: Callable[[Path, RoundLimits], AbstractContextManager[Agents]]
    what: str
    """In words."""
    stopped: str
    """What is stopped when the program is interrupted."""


_ALONE = _Start(two_agents, "two agents", "the agents")
_WITH_ENGINE = _Start(
    agents_on_a_cluster, "three nodes of NATS JetStream, two collectors and the edge", "the agents, the nodes"
)


def main() -> int:
    """Runs the program; returns its exit code."""
    parser = argparse.ArgumentParser(
        description="Follows a log through two agents into Spark and accounts for each line."
    )
    parser.add_argument("log", nargs="?", type=Path, default=_SETUP_LOG, help="a log file; else the set-up's own log")
    parser.add_argument(
        "--engine", choices=["jetstream"], help="replicate the collector's channel on three nodes of NATS JetStream"
    )
    arguments = parser.parse_args()
    path: Path = arguments.log
    console = Console(highlight=False)
    start = _WITH_ENGINE if arguments.engine else _ALONE
    try:
        with stopped_by_signals():
            return _run(start, open_log_file(path), _OUTPUT / path.name, console)
    except LogFileError as error:
        return _fail(str(error), EXIT_BAD_LOG)
    except (ServerError, ClusterError, LandingError, millrace.MillraceError, OSError) as error:
        return _fail(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        return _fail(f"stopped; {start.stopped} and Spark are stopped too", EXIT_STOPPED)


def _run(start: _Start, log: LogFile, output: Path, console: Console) -> int:
    output.mkdir(parents=True, exist_ok=True)
    limits = RoundLimits()
    with ExitStack() as running:
        with _shown(console, f"Starting {start.what} ..."):
            agents = running.enter_context(start.agents(output, limits))
        console.print(agents.description, soft_wrap=True)
        is_good = Job(log=log, agents=agents, output=output, console=console, limits=limits).run()
    return 0 if is_good else EXIT_FAILED


def _shown(console: Console, what: str) -> AbstractContextManager[object]:
    """Shows a spinner on a terminal, and elsewhere a line."""
    if console.is_terminal:
        return console.status(what)
    console.print(what)
    return nullcontext()


def _fail(sentence: str, code: int) -> int:
    print(f"run: {sentence}", file=sys.stderr)
    return code
