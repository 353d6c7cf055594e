"""The processes that run the tests of `make test`."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.repository.checkout import ROOT
from tests.workers import uses_shared_spark

CONFTEST = """
import atexit, os, pytest

def note(line):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{os.getpid()} {line}\\n")

@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    atexit.register(note, "exited")
    yield tmp_path_factory.mktemp("shared")
    note("ended")
    assert not os.environ.get("LEAK"), "something leaked"

@pytest.fixture(autouse=True)
def noted(request, shared):
    note(f"{shared} {request.node.nodeid}")
"""
PASSING = "def test_one(): pass\ndef test_two(): pass\ndef test_three(): pass\n"
WAIT = "import os, time\ndef wait(name):\n    while not os.path.exists(name): time.sleep(0.01)\n"
MEETING = WAIT + "def test_one():\n    os.mkdir('{0}')\n    wait('{1}')\ndef test_two(): pass\ndef test_three(): pass\n"
"""Tests that run at the same time as those of another file."""


class Project:
    """A few test files, and what became of them."""

    def __init__(self, folder: Path, **files: str) -> None:
        self.folder = folder
        self._notes = folder / "notes"
        for name, content in {"conftest": CONFTEST, **files}.items():
            (folder / f"{name}.py").write_text(content)
        (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Runs the tests with two workers."""
        alone = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "NOTES": str(self._notes)}
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "tests.workers", "--workers", "2", *arguments, self.folder],
            cwd=self.folder,
            env={**os.environ, **alone, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Returns the exit code and the output."""
        with self.start(*arguments, **environment) as running:
            output, _ = running.communicate()
        return running.returncode, output

    def ran(self) -> list[list[str]]:
        """Returns the process, directory and name of each test, in the order in which they started."""
        return [note for note in self._noted() if len(note) == 3]

    def ended(self) -> list[str]:
        """Returns the processes whose fixtures ended, and then all else."""
        notes = [note for note in self._noted() if len(note) == 2]
        return [process for process, noted in notes if noted == "ended" and [process, "exited"] in notes]

    def _noted(self) -> list[list[str]]:
        return [line.split() for line in self._notes.read_text().splitlines()]


@pytest.mark.parametrize(
    ("file", "is_sharing"),
    [
        ("tests/integration/test_spark_reader.py", True),
        ("tests/integration/test_main_job_rounds.py", True),
        ("tests/integration/test_rpc_consume.py", False),
        ("tests/unit/spark/test_options.py", False),
    ],
)
def test_uses_shared_spark_tells_files_with_the_fixture(file: str, *, is_sharing: bool) -> None:
    """With a missed file, a second worker would start another Spark."""
    assert uses_shared_spark(f"{file}::test_it[a]") is is_sharing


def test_run_of_several_files_runs_each_in_one_process(tmp_path: Path) -> None:
    """Each test runs once, those of a file in order in one process, and each process has its own fixtures."""
    project = Project(tmp_path, test_a=MEETING.format("a", "b"), test_b=MEETING.format("b", "a"), test_c=PASSING)
    exit_code, output = project.run()
    assert exit_code == 0, output
    assert "9 passed" in output
    ran = project.ran()
    for file in "abc":
        of_file = [(process, name) for process, _, name in ran if f"test_{file}.py" in name]
        assert [name.rpartition("_")[2] for _, name in of_file] == ["one", "two", "three"]
        assert len({process for process, _ in of_file}) == 1
    assert {Path(folder).parent.name for _, folder, _ in ran} == {"worker-0", "worker-1"}
    assert sorted(project.ended()) == sorted({process for process, _, _ in ran})


def test_run_with_failures_and_a_dead_process_reports_each_and_runs_the_rest(tmp_path: Path) -> None:
    """A test that ends its process fails, and those after it run in another; what a test printed is its own."""
    loud = f"{WAIT}def test_loud():\n    os.write(1, b'elsewhere')\n    os.mkdir('said')\n    wait('over')\n"
    failing = (
        f"{WAIT}def test_bad():\n    wait('said')\n    os.write(1, b'so it went\\n')\n    assert 1 == 2\n"
        "def test_after_bad(): os.mkdir('over')\n"
    )
    dying = "import os, signal\ndef test_dead(): os.kill(os.getpid(), signal.SIGKILL)\ndef test_after(): pass\n"
    project = Project(tmp_path, test_a=dying, test_b=failing, test_c=loud)
    exit_code, output = project.run()
    assert (exit_code, "2 failed, 3 passed" in output) == (1, True), output
    assert "The process that ran this test ended, with exit code -9." in output
    assert "assert 1 == 2" in output
    assert "\nso it went\n" in output
    assert "elsewhere" not in output
    assert [name.rpartition(":")[2] for _, _, name in project.ran()].count("test_after") == 1


def test_run_with_a_fixture_that_fails_at_the_end_fails(tmp_path: Path) -> None:
    """What a fixture of the session checks at the end of a process is reported."""
    project = Project(tmp_path, test_a=MEETING.format("a", "b"), test_b=MEETING.format("b", "a"))
    exit_code, output = project.run(LEAK="1")
    assert (exit_code, "6 passed, 2 errors" in output) == (1, True), output
    assert "something leaked" in output


def test_run_until_the_first_failure_starts_no_more_tests(tmp_path: Path) -> None:
    """The other process ends after the test that it runs, although its file has more."""
    failing = "import os\ndef test_bad():\n    os.symlink(str(os.getpid()), 'process')\n    assert 1 == 2\n"
    # A process is gone when its failure is known, and the other process has been told.
    waiting = (
        "import os, time\ndef test_wait():\n"
        "    while not os.path.lexists('process') or os.path.exists('/proc/' + os.readlink('process')):\n"
        "        time.sleep(0.01)\n"
    )
    exit_code, output = Project(tmp_path, test_a=waiting + PASSING, test_b=failing + PASSING).run("-x")
    assert (exit_code, "stopping after 1 failures" in output) == (1, True), output
    assert "1 failed, 1 passed" in output


def test_run_that_is_interrupted_ends_all_processes(tmp_path: Path) -> None:
    """After Ctrl-C, fixtures end, and no process is left."""
    waiting = "import os, time\ndef test_wait():\n    os.write(1, b'\\nbegun\\n')\n    time.sleep(60)\n"
    project = Project(tmp_path, test_a=waiting, test_b=waiting)
    with project.start("--capture=no") as running:
        assert running.stdout is not None
        begun = (line for line in running.stdout if line == "begun\n")
        assert [next(begun) for _ in range(2)]
        os.killpg(running.pid, signal.SIGINT)
        output = running.stdout.read()
    assert running.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "KeyboardInterrupt" in output
    assert len(project.ended()) == 2
    for process in project.ended():
        assert not Path("/proc", process).exists()
