"""Several processes that run the tests of `make test`, forked when all tests are collected.

Collecting ten thousand tests takes more than five seconds of processor time, and three times as much in a fresh clone,
which has no compiled tests yet. Processes that are started, as those of pytest-xdist are, each do it for themselves.
"""

import atexit
import multiprocessing
import os
import warnings
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_SPARK_PARAMETER = "spark: SparkSession"
_SPARK_GROUP = "tests with the shared Spark"
_END_SECONDS_MAX = 60.0
"""How long the workers may take to end after Ctrl-C or an internal error."""

_forks = multiprocessing.get_context("fork")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option for the number of processes."""
    parser.addoption("--workers", type=int, default=1, help="the number of processes that run test files in parallel")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several workers, the longest tests come first: those of the shared Spark, then those that start one."""
    if config.option.workers > 1:
        items.sort(key=lambda item: (not uses_shared_spark(item.nodeid), item.get_closest_marker("spark") is None))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Runs the tests in several processes, if so many are wanted; else pytest runs them."""
    options = session.config.option
    if options.workers < 2 or options.collectonly or session.testsfailed:
        return None
    _Workers(session, options.workers).run()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


def uses_shared_spark(node_id: str) -> bool:
    """Whether a test is in a file whose tests use the session's shared Spark as a fixture."""
    return _names_spark(_ROOT / node_id.partition("::")[0])


@cache
def _names_spark(path: Path) -> bool:
    return path.is_file() and _SPARK_PARAMETER in path.read_text(encoding="utf-8")


def _groups(items: Sequence[pytest.Item]) -> list[list[int]]:
    """Returns the indexes of tests that one worker runs together: those of a file, and all that share a Spark."""
    groups: dict[str, list[int]] = {}
    for index, item in enumerate(items):
        name = _SPARK_GROUP if uses_shared_spark(item.nodeid) else item.nodeid.partition("::")[0]
        groups.setdefault(name, []).append(index)
    return list(groups.values())


class _Worker:
    """A forked process that runs tests.

    Attributes:
        process: The process.
        connection: Sends it groups of tests, the empty one at the end, and receives what happens.
        pending: The indexes of the tests that it was given and has not finished; it runs the first.
    """

    def __init__(self, session: pytest.Session, number: int, others: Sequence[Connection]) -> None:
        self.connection, its = Pipe()
        self.pending: deque[int] = deque()
        inherited = (*others, self.connection)
        self.process = _forks.Process(target=_work, args=(session, number, its, inherited), name=f"worker {number}")
        with its, warnings.catch_warnings():
            # Newer Pythons warn of threads, which the memory allocator of pyarrow has.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()

    def give(self, group: Sequence[int]) -> None:
        """Sends it tests to run; none tells it to end when its test has ended."""
        self.pending.extend(group)
        # It may have died, which is found when it is read.
        with suppress(OSError):
            self.connection.send(list(group))


class _Workers:
    """All processes, the tests that none has been given yet, and the reports of those that ran."""

    def __init__(self, session: pytest.Session, count: int) -> None:
        self._session = session
        self._groups = deque(_groups(session.items))
        self._count = min(count, len(self._groups))
        self._started_count = 0
        self._is_stopped = False
        self._running: dict[Connection, _Worker] = {}

    def run(self) -> None:
        """Runs all tests, or those until the first failures if pytest was called so."""
        if reporter := self._session.config.pluginmanager.getplugin("terminalreporter"):
            # Tests of several files end in turns.
            reporter.showfspath = False
        try:
            for _ in range(self._count):
                self._start_one()
            while self._running:
                for connection in wait(list(self._running)):
                    assert isinstance(connection, Connection)
                    self._receive(self._running[connection])
                if self._is_stopping() and not self._is_stopped:
                    self._stop()
        finally:
            self._end()

    def _start_one(self) -> None:
        worker = _Worker(self._session, self._started_count, list(self._running))
        self._started_count += 1
        self._running[worker.connection] = worker

    def _receive(self, worker: _Worker) -> None:
        """Handles what a worker says, or its end."""
        hook = self._session.config.hook
        try:
            event, value = worker.connection.recv()
        except (EOFError, OSError):
            self._remove(worker)
            return
        if event == "next":
            worker.give(self._groups.popleft() if self._groups else ())
        elif event == "report":
            report = hook.pytest_report_from_serializable(config=self._session.config, data=value)
            hook.pytest_runtest_logreport(report=report)
        else:
            item = self._session.items[value]
            logged = hook.pytest_runtest_logstart if event == "start" else hook.pytest_runtest_logfinish
            logged(nodeid=item.nodeid, location=item.location)
            if event == "finish":
                worker.pending.popleft()

    def _remove(self, worker: _Worker) -> None:
        """Forgets a worker that has ended; if it died in a test, that one fails and another worker runs the rest."""
        del self._running[worker.connection]
        worker.connection.close()
        worker.process.join()
        if not worker.pending or self._is_stopping():
            return
        item = self._session.items[worker.pending.popleft()]
        died = f"The process that ran this test ended, with exit code {worker.process.exitcode}."
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", died, "call")
        self._session.config.hook.pytest_runtest_logreport(report=report)
        if worker.pending:
            self._groups.appendleft(list(worker.pending))
        if self._groups:
            self._start_one()

    def _is_stopping(self) -> bool:
        return bool(self._session.shouldfail or self._session.shouldstop)

    def _stop(self) -> None:
        self._is_stopped = True
        self._groups.clear()
        for worker in self._running.values():
            worker.give(())

    def _end(self) -> None:
        """Ends the workers that still run, which is so after Ctrl-C, of which they know, and internal errors."""
        for worker in self._running.values():
            worker.connection.close()
        for worker in self._running.values():
            worker.process.join(_END_SECONDS_MAX)
            worker.process.kill()


# A worker itself.


class _Teller:
    """The plugin that tells what happens in this process to the one that shows it.

    Attributes:
        last_item: The test that ran last.
    """

    def __init__(self, connection: Connection, config: pytest.Config) -> None:
        self._connection = connection
        self._config = config
        self.last_item: pytest.Item | None = None

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.last_item = item

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        serialized = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", serialized))


def _work(session: pytest.Session, number: int, connection: Connection, inherited: Sequence[Connection]) -> None:
    """Runs groups of tests until there are no more, and ends what their fixtures started."""
    # Other workers would not see the end of their connections.
    for other in inherited:
        other.close()
    # Those of the process that started this one.
    atexit._clear()
    _separate(session.config, number)
    teller = _Teller(connection, session.config)
    session.config.pluginmanager.register(teller)
    try:
        with suppress(KeyboardInterrupt, EOFError, BrokenPipeError):
            _run_groups(session, connection)
        with suppress(BrokenPipeError):
            _end_fixtures(session, teller.last_item)
    finally:
        atexit._run_exitfuncs()


def _separate(config: pytest.Config, number: int) -> None:
    """Gives this process what it must not share with the others: the place of captured output and of temporary files.

    The process that started it shows the results.
    """
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    config.get_terminal_writer()._file = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until its end
    temporary: Any = config._tmp_path_factory  # type: ignore[attr-defined]  # what its fixture returns
    temporary._basetemp = temporary.mktemp(f"worker-{number}", numbered=False)


def _run_groups(session: pytest.Session, connection: Connection) -> None:
    """Runs groups of tests until there are no more; between groups, only the session's fixtures are kept."""
    while True:
        connection.send(("next", None))
        group = connection.recv()
        if not group:
            return
        for index, following in zip(group, [*group[1:], None], strict=True):
            if connection.poll() or session.shouldfail or session.shouldstop:
                return
            connection.send(("start", index))
            next_item = session if following is None else session.items[following]
            session.config.hook.pytest_runtest_protocol(item=session.items[index], nextitem=next_item)
            connection.send(("finish", index))


def _end_fixtures(session: pytest.Session, last_item: pytest.Item | None) -> None:
    """Ends what is left of fixtures; reports a failure with the test that ran last."""
    call = pytest.CallInfo.from_call(lambda: session._setupstate.teardown_exact(None), "teardown")
    if call.excinfo and last_item:
        report = session.config.hook.pytest_runtest_makereport(item=last_item, call=call)
        session.config.hook.pytest_runtest_logreport(report=report)
