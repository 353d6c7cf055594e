"""The start times of the programs, compared with importing the third-party modules that they need."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.findings import Line, Section
from tests.millraced import Millraced

_SERVING_SHARE_MAX = 1.5
_CHANNELS_SHARE_MAX = 1.3
_HELP_SHARE_MAX = 1.4

_MILLRACE = ("-c", "from millrace_client.cli import main; main()")
_OURS = ("millrace", "millrace_client", "millrace_server")
_OPTIONAL = "rich"
"""The module that structlog imports if it is installed, needed or not."""
_READY = "ready"


@dataclass(frozen=True)
class StartsPlan:
    """The extent of the measurements."""

    rounds: int = 11

    @property
    def step_count(self) -> int:
        """The number of progress reports."""
        return self.rounds


def measure_starts(scratch: Path, plan: StartsPlan, on_step: Callable[[], None]) -> list[Section]:
    """Starts each program, and an interpreter that only imports, in turns."""
    serve = ("-m", "millrace_server", "serve", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--data-dir")
    server = Millraced((*serve[3:], str(scratch / "server")), scratch / "server", python=sys.executable)
    environment = {**os.environ, "MILLRACE_SERVER": server.grpc}
    seconds: dict[str, list[float]] = {}

    def measured(name: str, arguments: Sequence[str], until: str = "") -> None:
        seconds.setdefault(name, []).append(_seconds(arguments, environment, until))

    try:
        serving = (*serve, str(scratch / "started"))
        server_needs = _import_of(_needed(serving, environment, '"serving"'))
        channels_needs = _import_of(_needed((*_MILLRACE, "channels"), environment))
        for _ in range(plan.rounds):
            measured("server's modules", server_needs, _READY)
            measured("millraced serve", serving, '"serving"')
            measured("command's modules", channels_needs)
            measured("millrace channels", (*_MILLRACE, "channels"))
            measured("millrace --help", (*_MILLRACE, "--help"))
            on_step()
    finally:
        server.kill()

    def share(name: str, least: str, most: float) -> Line:
        shares = [ours / imported for ours, imported in zip(seconds[name], seconds[least], strict=True)]
        return Line(what=f"{name}, of {least}", value=statistics.median(shares), unit="times", most=most)

    medians = [Line(what=name, value=statistics.median(each), unit="s") for name, each in seconds.items()]
    shares = [
        share("millraced serve", "server's modules", _SERVING_SHARE_MAX),
        share("millrace channels", "command's modules", _CHANNELS_SHARE_MAX),
        share("millrace --help", "command's modules", _HELP_SHARE_MAX),
    ]
    return [Section(f"Medians of {plan.rounds}", medians), Section("Shares", shares)]


@contextmanager
def _started(arguments: Sequence[str], environment: dict[str, str], until: str) -> Iterator[Iterator[str]]:
    """Starts Python; returns its lines up to the one with this text, or to the end without a text."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, *arguments], env=environment, stdout=pipe, stderr=subprocess.STDOUT, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        lines = process.stdout

        def read() -> Iterator[str]:
            for line in lines:
                yield line
                if until and until in line:
                    return
            assert (process.wait(), until) == (0, ""), f"{arguments} ended early"

        try:
            yield read()
        finally:
            process.kill()


def _seconds(arguments: Sequence[str], environment: dict[str, str], until: str) -> float:
    before = time.perf_counter()
    with _started(arguments, environment, until) as lines:
        for _ in lines:
            pass
        return time.perf_counter() - before


def _needed(arguments: Sequence[str], environment: dict[str, str], until: str = "") -> list[str]:
    """Returns the third-party modules that a program imports, in order."""
    with _started(("-X", "importtime", *arguments), environment, until) as lines:
        imported = [line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")]
    others = {*sys.stdlib_module_names, *_OURS, "imported package"}
    return [name for name in imported if name.partition(".")[0] not in others]


def _import_of(modules: Iterable[str]) -> tuple[str, str]:
    """Returns the arguments of a Python that imports only these modules."""
    code = f"""
import sys
from contextlib import suppress
from importlib import import_module
modules = {list(modules)!r}
if {_OPTIONAL!r} not in modules:
    sys.modules[{_OPTIONAL!r}] = None
for module in modules:
    # Some modules are found only with their package, such as parts of the standard library.
    with suppress(ImportError):
        import_module(module)
print({_READY!r}, flush=True)
"""
    return ("-c", code)
