"""The program that `make run` starts."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console

import millrace_client as millrace
from examples.access_log.agents import CHANNEL, RoundLimits, collector_toml, two_agents
from examples.access_log.job import Job
from examples.access_log.landing import LandingError, local_landing, replaced
from examples.access_log.local_server import ServerError, local_server
from examples.access_log.log_file import open_log_file
from examples.access_log.main_job import EXIT_BAD_LOG, EXIT_STOPPED, main
from tests.landing_plan import landing_plan

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("forked_local_servers")]

RUN = Path(__file__).resolve().parents[2] / "examples" / "access_log" / "run.py"
ACCESS_LINE = '192.0.2.{0} - - [17/May/2015:{1:02}:05:03 +0000] "GET /page/{2}?q={0} HTTP/1.1" {3} 100 "-" "curl"\n'


def write_access_log(path: Path, count: int) -> Path:
    """Writes a log of `count` lines: every tenth has status 404, and the last one is not a line of an access log."""
    lines = (ACCESS_LINE.format(n % 250, n % 24, n % 3, 404 if n % 10 == 0 else 200) for n in range(count - 1))
    path.write_text("".join(lines) + "what is this?")
    return path


def path_without_java(folder: Path) -> str:
    """Returns a PATH with all programs except java."""
    for directory in os.environ["PATH"].split(os.pathsep):
        for program in Path(directory).iterdir() if Path(directory).is_dir() else ():
            link = folder / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


def events_of(log: Path) -> list[str]:
    """Returns the events that the servers logged, in order."""
    return [json.loads(line)["event"] for line in log.read_text().splitlines()]


def processes_below(folder: Path) -> list[str]:
    """Returns the command lines of processes that work in a folder, or name it as an argument."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if (process / "cwd").resolve().is_relative_to(folder) or str(folder) in command:
                    found.append(command)
    return found


@pytest.mark.timeout(600)
def test_run_with_an_access_log_accounts_for_each_line_without_java(tmp_path: Path) -> None:
    """Without Java, the program uses its own. It kills its agents, all counts are equal, and no process is left."""
    log = write_access_log(tmp_path / "access.log", 2_500)
    (tmp_path / "bin").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = path_without_java(tmp_path / "bin")
    assert shutil.which("java", path=environment["PATH"]) is None
    ran = subprocess.run(
        [sys.executable, RUN, log], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    for reported in ("2,500 lines of a web server's access log", "404", "/page/1", "23:00", "other lines"):
        assert reported in ran.stdout
    for counted in ("lines in the file", "events committed", "rows landed"):
        assert f"{counted:<17}   2,500" in ran.stdout
    assert "Killed the edge (SIGKILL) while the log was growing: after " in ran.stdout
    assert "Killed the collector (SIGKILL) while the edge was forwarding to it: after " in ran.stdout
    killed = re.search(r"Killed the landing \(SIGKILL\) when ([\d,]+) lines were acknowledged", ran.stdout)
    assert killed
    assert 0 < int(killed[1].replace(",", "")) < 2_500
    assert "Every line was landed once and acknowledged; both channels are empty." in ran.stdout
    output = tmp_path / "build" / "access_log" / "access.log"
    assert sorted(path.name for path in output.iterdir()) == ["collector.log", "edge.log", "landed"]
    for name, start_count in (("edge", 2), ("collector", 2)):
        events = events_of(output / f"{name}.log")
        assert (events.count("serving"), events.count("channel opened")) == (start_count, start_count)
        assert (events[-1], events.count("stopped")) == ("stopped", 1), "the others were killed"
    assert processes_below(tmp_path) == []


@pytest.mark.torture
@pytest.mark.parametrize(
    "moment",
    ["The edge listens", "lines of a web server's access log", "growing", "Killed the landing", "Status"],
)
def test_run_when_it_is_interrupted_takes_everything_down(tmp_path: Path, moment: str) -> None:
    """Ctrl-C at any time stops Spark, its JVM and the agents, and prints one sentence."""
    log = write_access_log(tmp_path / "access.log", 2_500)
    reported = stop_at(tmp_path, log, moment, signal.SIGINT)
    assert reported == "run: stopped; the agents and Spark are stopped too\n"
    output = tmp_path / "build" / "access_log" / "access.log"
    assert [events_of(output / f"{name}.log")[-1] for name in ("edge", "collector")] == ["stopped", "stopped"]
    assert {path.name for path in output.iterdir()} <= {"collector.log", "edge.log"}
    assert [command for command in processes_below(tmp_path) if "java" in command or "millraced" in command] == []


def test_run_when_it_is_terminated_at_once_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM while the agents start stops those that have started."""
    log = write_access_log(tmp_path / "access.log", 100)
    reported = stop_at(tmp_path, log, "Starting two agents", signal.SIGTERM)
    assert reported == "run: stopped; the agents and Spark are stopped too\n"
    assert [command for command in processes_below(tmp_path) if "java" in command or "millraced" in command] == []


@pytest.mark.parametrize("moment", ["Starting three nodes", pytest.param("Killed the node", marks=pytest.mark.torture)])
def test_run_on_a_cluster_when_it_is_interrupted_stops_the_nodes(tmp_path: Path, moment: str) -> None:
    """Ctrl-C also ends the nodes of the engine, and removes what they stored."""
    log = write_access_log(tmp_path / "access.log", 2_500)
    reported = stop_at(tmp_path, log, moment, signal.SIGINT, "--engine", "jetstream")
    assert reported == "run: stopped; the agents, the nodes and Spark are stopped too\n"
    assert processes_below(tmp_path) == []
    output = tmp_path / "build" / "access_log" / "access.log"
    assert {path.name for path in output.iterdir()} <= {"collector-1.log", "collector-2.log", "edge.log"}


def stop_at(folder: Path, log: Path, moment: str, number: signal.Signals, *options: str) -> str:
    """Runs the program and sends it a signal when it has printed something; returns its standard error."""
    with subprocess.Popen(
        [sys.executable, "-u", RUN, *options, log],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        moments = (line for line in process.stdout if moment in line)
        next(moments)
        os.killpg(process.pid, number)
        # Read to the end, so that a full pipe does not block the program.
        for _ in moments:
            pass
        reported = process.stderr.read()
    assert process.returncode == EXIT_STOPPED
    return reported


def test_main_when_it_is_interrupted_stops_the_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during the job stops both agents."""
    log = write_access_log(tmp_path / "access.log", 100)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["run.py", str(log)])

    def interrupted(_job: Job) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "run", interrupted)
    assert main() == EXIT_STOPPED
    output = tmp_path / "build" / "access_log" / "access.log"
    assert [events_of(output / f"{name}.log")[-1] for name in ("edge", "collector")] == ["stopped", "stopped"]


def test_job_whose_landing_fails_keeps_the_earlier_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of an earlier run is replaced only by a complete result."""
    (tmp_path / "landed").mkdir()
    (tmp_path / "landed" / "earlier").write_text("")
    log = tmp_path / "some.log"
    log.write_text("line\n")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with two_agents(tmp_path, RoundLimits()) as agents:
        console = Console(file=io.StringIO())
        failing_job = Job(log=open_log_file(log), agents=agents, output=tmp_path, console=console)
        with pytest.raises(LandingError, match="the landing ended with 1"):
            failing_job.run()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["collector.log", "edge.log", "landed", "some.log"]
    assert [path.name for path in (tmp_path / "landed").iterdir()] == ["earlier"]


def test_local_landing_that_fails_says_why(tmp_path: Path) -> None:
    """The error of the landing is raised as one sentence."""
    with (
        local_landing(landing_plan(tmp_path, "nonsense")) as landing,
        pytest.raises(LandingError, match=r'parse\.type: is "nonsense"'),
    ):
        landing.wait()
    assert list(tmp_path.iterdir()) == []


def test_replaced_after_a_run_that_was_killed_keeps_the_result_before_it(tmp_path: Path) -> None:
    """The result of a killed run is incomplete, so the result that it had renamed is restored."""
    folder, earlier = tmp_path / "landed", tmp_path / "landed.earlier"
    for kept in (folder, earlier):
        kept.mkdir()
        (kept / kept.name).write_text("")
    with pytest.raises(OSError, match="full"):
        land_badly(folder)
    assert [path.name for path in folder.iterdir()] == ["landed.earlier"]
    with replaced(folder):
        folder.mkdir()
    assert list(folder.iterdir()) == []
    assert list(tmp_path.iterdir()) == [folder]


def land_badly(folder: Path) -> None:
    """Replaces a folder, and fails."""
    with replaced(folder):
        assert not folder.exists()
        folder.mkdir()
        raise OSError("full")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "there is no file "),
        (b"", " is empty; there is nothing to send"),
        (b"\x7fELF\0", " is not text: byte 4 is NUL; name a text file"),
    ],
)
def test_main_with_a_bad_log_says_why_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes, sentence: str
) -> None:
    """One line on standard error, and its own exit code."""
    log = tmp_path / "bad.log"
    if content is not None:
        log.write_bytes(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["run.py", str(log)])
    assert main() == EXIT_BAD_LOG
    reported = capsys.readouterr()
    assert reported.err.startswith("run: ")
    assert sentence in reported.err
    assert reported.out == ""
    assert not (tmp_path / "build").exists()


def test_local_server_that_cannot_start_names_its_log(tmp_path: Path) -> None:
    """The error names the log with the reason, without waiting for the time limit."""
    with (
        pytest.raises(ServerError, match=r"the collector did not start; .*/collector.log tells why"),
        local_server("nonsense = 1", CHANNEL, tmp_path / "collector.log"),
    ):
        pytest.fail("it started")
    assert "nonsense" in (tmp_path / "collector.log").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["collector.log"]


def test_local_server_that_is_killed_recovers_its_channel(tmp_path: Path) -> None:
    """After a restart, committed events are available at the same address, and the restart reports their number."""
    log = tmp_path / "collector.log"
    with (
        local_server(collector_toml(RoundLimits()), CHANNEL, log) as server,
        millrace.connect(server.endpoint) as client,
    ):
        client.channel(CHANNEL).append([b"one", b"two"])
        restart = server.kill_and_restart()
        assert restart.event_count == 2
        assert 0 <= restart.replay_seconds < restart.seconds
        assert [batch.bodies() for batch in client.channel(CHANNEL).peek()] == [[b"one", b"two"]]
    assert events_of(log).count("serving") == 2


def test_local_server_that_does_not_restart_raises(tmp_path: Path) -> None:
    """A server that cannot start again raises an error."""
    with pytest.raises(ServerError, match=r"the collector did not start; .*/collector.log tells why"):
        kill_and_restart_badly(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["collector.log"]


def kill_and_restart_badly(folder: Path) -> None:
    """Restarts a server with an invalid configuration."""
    with local_server(collector_toml(RoundLimits()), CHANNEL, folder / "collector.log") as server:
        (config,) = folder.glob("collector-*/millrace.toml")
        config.write_text("nonsense = 1")
        server.kill_and_restart()
