"""The steps of docs/moving_from_flume.md; a peer of Avro RPC plays the old agent and the old collector."""

import os
import re
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import StartMillraced
from tests.fenced_blocks import blocks_of
from tests.flume_peer import FlumeClient, flume_server
from tests.free_ports import free_port
from tests.integration.daemon_queries import stored_bodies
from tests.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "moving_from_flume.md"


def block(kind: str) -> str:
    [text] = blocks_of(PAGE, kind)
    return text


WEB, COLLECTOR = block("web.conf"), block("collector.conf")
LINES = [f"line {number}" for number in range(200)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the page's two files, whose paths and addresses are those of this machine."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "lake").mkdir()
    web = WEB.replace("/var/log/app", f"{tmp_path}/logs").replace("/var/lib/flume", f"{tmp_path}/web")
    (tmp_path / "web.conf").write_text(web)
    collector = COLLECTOR.replace("hdfs://namenode/logs", f"file://{tmp_path}/lake").replace("= 300", "= 1")
    (tmp_path / "collector.conf").write_text(collector)
    return tmp_path


def run(commands: str, folder: Path) -> str:
    """Runs commands of the page; returns what they write to standard error."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    shell = ["bash", "-euo", "pipefail", "-c", commands]
    ran = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return ran.stderr


def write_lines(folder: Path) -> None:
    (folder / "logs" / "app.log").write_text("".join(f"{line}\n" for line in LINES))


def landed_lines(folder: Path) -> set[str]:
    """The lines in the collector's files so far."""
    files = (folder / "lake").rglob("*.txt")
    return {line for file in files if not file.name.startswith(".") for line in file.read_text().splitlines()}


def test_commands_of_the_page_convert_both_agents_and_report_as_it_shows(folder: Path) -> None:
    """The report of the web server's agent is the page's, to the letter, and both files pass the check."""
    (folder / "web.conf").write_text(WEB)
    reported = run(block("convert"), folder).replace("millraced: ", "").splitlines()
    assert [line for line in reported if "collector" not in line] == block("report").splitlines()
    run(block("start").splitlines()[0], folder)
    assert "# positionFile: Flume's positions are not read" in (folder / "web.toml").read_text()


def test_old_agents_send_to_the_new_collector(start_millraced: StartMillraced, folder: Path) -> None:
    """Step 1: what an old agent sends, as Flume's own sink does, ends in the collector's files."""
    run(block("convert"), folder)
    port = free_port()
    server = start_millraced((folder / "collector.toml").read_text().replace("4545", str(port)))
    server.wait_for("listening")
    with closing(FlumeClient(("127.0.0.1", port))) as old:
        for line in LINES:
            assert old.append(({"host": "web-1", "timestamp": "1700000000000"}, line.encode())) == "OK"
    wait_until(lambda: landed_lines(folder) == set(LINES))
    [directory] = {file.parent.relative_to(folder / "lake") for file in (folder / "lake").rglob("*.txt")}
    assert str(directory) == "web-1/2023-11-14"


def test_lines_for_old_agents_are_a_good_configuration_of_flume(folder: Path) -> None:
    """Step 1: together with the agent's own they make a group of two sinks."""
    (folder / "web.conf").write_text(WEB + block("both.conf"))
    run(block("convert"), folder)
    tables = tomllib.loads((folder / "web.toml").read_text())
    assert tables["sink_groups"]["collectors"]["sinks"] == ["forward", "forward-new"]
    assert tables["sinks"]["forward-new"]["endpoints"] == ["new-collector.example:4545"]


def test_new_agents_send_to_the_old_collector(start_millraced: StartMillraced, folder: Path) -> None:
    """Step 2: the converted agent sends each line to a collector that speaks only Flume's protocol."""
    run(block("convert"), folder)
    with flume_server() as old:
        toml = (folder / "web.toml").read_text().replace("collector.example:4545", old.endpoint)
        start_millraced(toml)
        write_lines(folder)
        old.wait_for(lambda: len(old.events) >= len(LINES))
        assert {body.decode() for _, body in old.events} == set(LINES)
        assert {tuple(headers) for headers, _ in old.events} == {("host",)}


def test_new_agents_send_to_the_new_collector_by_millraces_protocol(
    start_millraced: StartMillraced, folder: Path
) -> None:
    """Step 3: with the page's sink instead, the collector's channel has each line once."""
    run(block("convert"), folder)
    collector = (folder / "collector.toml").read_text().replace("4545", "0")
    server = start_millraced(re.sub(r"\[sinks\.lake\].*", "", collector, flags=re.DOTALL))
    web = re.sub(r"\[sinks\.forward\].*", "", (folder / "web.toml").read_text(), flags=re.DOTALL)
    start_millraced(web + block("web.toml").replace("collector.example:7070", server.grpc))
    write_lines(folder)
    wait_until(lambda: len(stored_bodies(server, "disk")) >= len(LINES))
    assert [body.decode() for body in stored_bodies(server, "disk")] == LINES
