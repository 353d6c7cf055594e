"""What the README tells newcomers to type, typed."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

import millrace_client as millrace
from tests.conftest import StartMillraced
from tests.millraced import Millraced, run_millraced

_README = Path(__file__).parents[2] / "README.md"
_BLOCK = re.compile(r"<!-- run: (?P<kind>\w+) -->\n```\w+\n(?P<text>.*?)```", re.DOTALL)
_DOCUMENTED_ADDRESS = "127.0.0.1:7070"
_COMMAND_SECONDS_MAX = 60


class Block(NamedTuple):
    """A fenced block of the README that is to be run."""

    kind: str
    text: str


def blocks(kind: str) -> list[str]:
    """The blocks of one kind, in the README's order."""
    found = [Block(match["kind"], match["text"]) for match in _BLOCK.finditer(_README.read_text(encoding="utf-8"))]
    return [block.text for block in found if block.kind == kind]


def run(command: list[str], server: Millraced) -> str:
    """Runs a command as a newcomer would, but against the test's server; returns what it printed."""
    environment = {
        **os.environ,
        "MILLRACE_SERVER": server.grpc,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    finished = subprocess.run(
        command,
        capture_output=True,
        check=False,
        encoding="utf-8",
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=_COMMAND_SECONDS_MAX,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_blocks_of_each_kind_are_found() -> None:
    """A README whose marks were lost would pass all other tests here."""
    assert [len(blocks(kind)) for kind in ("server", "shell", "python", "spark", "check")] == [1, 1, 2, 2, 1]


def test_server_block_starts_the_command_that_is_there() -> None:
    """The command that starts a server exists; the fixture starts it with other ports."""
    (block,) = blocks("server")
    assert block.split() == ["millraced", "serve"]
    assert "serve" in run_millraced("--help").stdout


def test_shell_block_does_what_it_says(millraced: Millraced) -> None:
    """The shell's commands run as they stand, and show what went in."""
    (block,) = blocks("shell")
    printed = run(["bash", "-euo", "pipefail", "-c", block], millraced)
    assert printed.splitlines().count("first") == 2, "once peeked, once taken"
    assert "orders" in printed


@pytest.mark.parametrize("index", [0, 1])
def test_python_block_does_what_it_says(millraced: Millraced, index: int) -> None:
    """The programs run as they stand, and print the events that they put."""
    with millrace.connect(millraced.grpc) as client:
        client.admin.create_channel("orders", millrace.ChannelConfig(type=millrace.ChannelType.MEMORY))
    program = blocks("python")[index].replace(_DOCUMENTED_ADDRESS, millraced.grpc)
    printed = run([sys.executable, "-W", "error", "-c", program], millraced)
    assert ("a book", "one")[index] in printed


@pytest.mark.spark
def test_spark_blocks_show_the_events_and_consume_them(
    millraced: Millraced,
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The Spark programs run as they stand: the first one looks, the second one consumes."""
    with millrace.connect(millraced.grpc) as client:
        client.admin.create_channel("orders", millrace.ChannelConfig(type=millrace.ChannelType.MEMORY))
        client.channel("orders").append([millrace.Event(b"a book", {"customer": "17"})])
        look, consume = (block.replace(_DOCUMENTED_ADDRESS, millraced.grpc) for block in blocks("spark"))
        exec(look, {"spark": spark})  # noqa: S102 - the README's own program
        printed = capsys.readouterr().out
        assert "a book" in printed
        assert "17" in printed
        for claimed in client.admin.list_channels():
            assert claimed.claim is not None
            client.channel("orders").release(claimed.claim.reader_id)
        # Spark takes relative paths from where its JVM was started, which is not this test's folder.
        landed = str(tmp_path / "orders")
        exec(consume.replace("build/orders", landed), {"spark": spark})  # noqa: S102 - the README's own program
        assert spark.read.parquet(landed).count() == 1
        assert client.admin.get_channel("orders").gauges.queued_events == 0


def test_configuration_block_is_a_good_one(tmp_path: Path, start_millraced: StartMillraced) -> None:
    """The configuration passes the check, and a server serves the channel in it."""
    (block,) = blocks("check")
    config = tmp_path / "millrace.toml"
    config.write_text(block, encoding="utf-8")
    assert run_millraced("check", config).returncode == 0
    with millrace.connect(start_millraced(block).grpc) as client:
        assert [channel.name for channel in client.admin.list_channels()] == ["orders"]
