"""Fixtures for all tests."""

import gc
import itertools
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from examples.jetstream_cluster import JetStreamCluster
from tests.free_ports import free_port
from tests.millraced import Millraced
from tests.scheduling import SparkOnOneWorker, import_share, uses_shared_spark

# The duration of one example, or of its generation, says nothing on a busy machine; pytest's timeout bounds the test.
# `make torture` tries many more examples.
_DEFAULTS = settings.get_profile(settings.get_current_profile_name())
_SLOW = settings(parent=_DEFAULTS, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("millrace", parent=_SLOW, max_examples=25)
settings.register_profile("torture", parent=_SLOW, max_examples=1_000)
settings.load_profile("millrace")

# Tests start hundreds of processes; without kept bytecode each of them would compile all modules again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell without job control makes background processes ignore Ctrl-C, and their children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_of_the_running_loop(record: logging.LogRecord) -> bool:
    """Whether it is not gRPC's error for a call that ended after the event loop of a former test was closed.

    All loops of a process share gRPC's queue of ended calls, so any test with a loop may get it.
    """
    error = record.exc_info and record.exc_info[1]
    return not (str(error) == "Event loop is closed" and "PollerCompletionQueue" in record.getMessage())


logging.getLogger("asyncio").addFilter(_is_of_the_running_loop)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SparkOnOneWorker | None:
    """Schedules files in the order of their collection, in which the many small ones come last."""
    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return SparkOnOneWorker(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several workers, the longest tests come first: those of the shared Spark, then those that start one."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: (not uses_shared_spark(item.nodeid), item.get_closest_marker("spark") is None))


def pytest_collection(session: pytest.Session) -> None:
    """Searches for no garbage while tests are collected: there is none among a million objects."""
    gc.disable()
    if hasattr(session.config, "workerinput"):
        import_share(session.config)


def pytest_collection_finish() -> None:
    """Spares later searches for garbage all that was collected."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Leaves no test with a structlog that another one, or an agent in its process, has configured."""
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the nats-server with JetStream listens that all tests share; each uses channels of its own."""
    with JetStreamCluster(tmp_path_factory.mktemp("nats"), 1) as engine:
        yield engine.urls[0]


@pytest.fixture(scope="module")
def jetstream_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JetStreamCluster]:
    """Three nodes of the engine that the tests of a module share; a test leaves all of them running."""
    with JetStreamCluster(tmp_path_factory.mktemp("nats")) as cluster:
        yield cluster


StartMillraced = Callable[..., Millraced]
"""`start_millraced(config_toml="", data_dir=None, arguments=(), stdin=DEVNULL)`; see the fixture."""


@pytest.fixture
def start_millraced(tmp_path: Path) -> Iterator[StartMillraced]:
    """Starts servers, each with a data directory of its own unless one is given; ends them all.

    A test may start one again at the same address, which no other program gets meanwhile.
    """
    numbers = itertools.count()
    with ExitStack() as running:

        def start(
            config_toml: str = "",
            data_dir: Path | None = None,
            arguments: tuple[str, ...] = (),
            stdin: int = subprocess.DEVNULL,
        ) -> Millraced:
            number = next(numbers)
            config = tmp_path / f"millrace-{number}.toml"
            config.write_text(config_toml, encoding="utf-8")
            data_dir = data_dir or tmp_path / f"data-{number}"
            listen = ("--listen", f"127.0.0.1:{free_port()}", "--http-listen", "127.0.0.1:0")
            started = Millraced(
                ("--config", str(config), "--data-dir", str(data_dir), *listen, *arguments), data_dir, stdin
            )
            running.callback(started.kill)
            return started

        yield start


@pytest.fixture
def millraced(start_millraced: StartMillraced) -> Millraced:
    """A running server without channels."""
    return start_millraced()
