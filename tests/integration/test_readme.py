"""The commands and programs of the README, executed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import millrace_client as millrace
from millrace_server.access.tokens import make_token
from millrace_server.cli import app
from tests.conftest import StartMillraced
from tests.daemon_queries import wait_until
from tests.fenced_blocks import blocks_of
from tests.millraced import Millraced, run_millraced

_README = Path(__file__).parents[2] / "README.md"
_DOCUMENTED_ADDRESS = "127.0.0.1:7070"
_COMMAND_SECONDS_MAX = 60
_ORDERS = 'channels.orders.type = "file"'


def blocks(kind: str) -> list[str]:
    """The README's blocks of one kind."""
    return blocks_of(_README, kind)


def configuration_with(text: str) -> str:
    """The only configuration that contains a text."""
    [found] = [block for block in blocks("check") if text in block]
    return found


def run(command: list[str], server: Millraced | None = None, cwd: Path | None = None) -> str:
    """Runs a command against the test's server; returns its output."""
    environment = {
        **os.environ,
        "MILLRACE_SERVER": server.grpc if server else "",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    finished = subprocess.run(
        command,
        capture_output=True,
        check=False,
        cwd=cwd,
        encoding="utf-8",
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=_COMMAND_SECONDS_MAX,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_blocks_of_each_kind_are_found() -> None:
    """A README whose markers are missing would pass all other tests here."""
    kinds = ("server", "shell", "python", "spark", "check", "graph", "key", "tools", "repair", "restore")
    assert [len(blocks(kind)) for kind in (*kinds, "certificates")] == [1, 2, 4, 2, 6, 1, 1, 1, 1, 1, 1]


def test_server_block_starts_the_command_that_is_there() -> None:
    """The command that starts a server exists; the fixture starts it with other ports."""
    (block,) = blocks("server")
    assert block.split() == ["millraced", "serve"]
    assert "serve" in run(["millraced", "--help"])


def test_shell_blocks_around_a_kill_show_the_same_events(start_millraced: StartMillraced) -> None:
    """The commands run unchanged; events put before the kill are taken after it."""
    put, take = (["bash", "-euo", "pipefail", "-c", block] for block in blocks("shell"))
    server = start_millraced()
    printed = run(put, server)
    assert printed.splitlines().count("first") == 1
    assert "orders" in printed
    server.kill()
    again = start_millraced(data_dir=server.data_dir)
    again.wait_for("channel opened")
    assert run(take, again) == "first\n"


@pytest.mark.parametrize(("index", "expected"), [*enumerate(("a book", "one", "a lamp", "1\n"))])
def test_python_block_does_what_it_says(millraced: Millraced, tmp_path: Path, index: int, expected: str) -> None:
    """The programs run unchanged, and print the events that they put, or their number."""
    with millrace.connect(millraced.grpc) as client:
        client.admin.create_channel("orders", millrace.ChannelConfig(type=millrace.ChannelType.FILE))
    program = blocks("python")[index].replace(_DOCUMENTED_ADDRESS, millraced.grpc)
    printed = run([sys.executable, "-W", "error", "-c", program], millraced, tmp_path)
    assert expected in printed


@pytest.mark.spark
def test_spark_blocks_show_the_events_and_consume_them(
    millraced: Millraced,
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The Spark programs run unchanged: the first one reads, the second one consumes."""
    with millrace.connect(millraced.grpc) as client:
        client.admin.create_channel("orders", millrace.ChannelConfig(type=millrace.ChannelType.FILE))
        client.channel("orders").append([millrace.Event(b"a book", {"customer": "17"})])
        look, consume = (block.replace(_DOCUMENTED_ADDRESS, millraced.grpc) for block in blocks("spark"))
        exec(look, {"spark": spark})  # noqa: S102 - the README's own program
        printed = capsys.readouterr().out
        assert "a book" in printed
        assert "17" in printed
        for claimed in client.admin.list_channels():
            assert claimed.claim is not None
            client.channel("orders").release(claimed.claim.reader_id)
        # Spark resolves relative paths in the directory of its JVM, which is not the test's.
        landed = str(tmp_path / "orders")
        exec(consume.replace("build/orders", landed), {"spark": spark})  # noqa: S102 - the README's own program
        assert spark.read.parquet(landed).count() == 1
        assert client.admin.get_channel("orders").gauges.queued_events == 0


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the README's commands have made certificates and a token."""
    folder = tmp_path_factory.mktemp("certified")
    (make,) = blocks("certificates")
    run(["bash", "-euo", "pipefail", "-c", moved(make, folder)])
    return folder


def test_configuration_blocks_checked_are_good(certified: Path) -> None:
    """Each configuration passes the check."""
    config = certified / "millrace.toml"
    for block in blocks("check"):
        config.write_text(moved(block, certified), encoding="utf-8")
        checked = CliRunner().invoke(app, ["check", str(config)])
        assert checked.exit_code == 0, checked.output


def moved(block: str, folder: Path) -> str:
    """A block whose files lie in a folder."""
    return re.sub("/(data|etc/millrace|var/log)(?=/)", str(folder), block)


def test_first_configuration_block_served_has_its_channels(start_millraced: StartMillraced) -> None:
    """A server with the configuration has its channels."""
    server = start_millraced(blocks("check")[0])
    server.wait_for("channel opened")
    with millrace.connect(server.grpc) as client:
        states = {channel.name: (channel.config.type, channel.state) for channel in client.admin.list_channels()}
    assert states == {
        "orders": (millrace.ChannelType.FILE, millrace.ChannelState.OPEN),
        "metrics": (millrace.ChannelType.MEMORY, millrace.ChannelState.OPEN),
    }


def test_blocks_for_disks_and_compression_keep_and_pack_events(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """Both disks have the channel's directory, and similar bodies take little space."""
    config = configuration_with("data_dirs").replace("/disk", f"{tmp_path}/disk")
    server = start_millraced(config)
    server.wait_for("channel opened")
    with millrace.connect(server.grpc) as client:
        client.channel("orders").append([b"a book" * 10_000])
    assert server.stop() == 0
    assert [(tmp_path / disk / "millrace" / "orders").is_dir() for disk in ("disk1", "disk2")] == [True, True]
    written = b"".join(path.read_bytes() for path in tmp_path.glob("disk?/millrace/orders/segment-*"))
    assert b"a book" * 10 not in written


def test_blocks_for_encryption_make_a_key_that_seals_what_is_written(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """The command creates a key that the server accepts, and no event is readable on the disk."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on this machine")
    (make_key,) = blocks("key")
    run(["bash", "-euo", "pipefail", "-c", make_key], cwd=tmp_path)
    server = start_millraced(configuration_with("active_key").replace("/etc/millrace", str(tmp_path)))
    server.wait_for("channel opened")
    with millrace.connect(server.grpc) as client:
        client.channel("orders").append([b"a book"])
        assert [batch.bodies() for batch in client.channel("orders").peek()] == [[b"a book"]]
    assert server.stop() == 0
    written = b"".join(path.read_bytes() for path in (server.data_dir / "channels" / "orders").iterdir())
    assert b"a book" not in written
    assert b"2026" in written


def test_graph_in_the_readme_is_what_the_command_draws(tmp_path: Path) -> None:
    """The graph is that of the configuration above it."""
    config = tmp_path / "millrace.toml"
    config.write_text(configuration_with('type = "taildir"'), encoding="utf-8")
    assert [run_millraced("graph", config).stdout] == blocks("graph")


def test_agents_of_the_readme_bring_lines_of_a_log_into_parquet(
    start_millraced: StartMillraced, certified: Path
) -> None:
    """Both configurations work together unchanged, except for paths."""
    for folder in ("nginx", "web"):
        (certified / folder).mkdir()
    lines = [f"GET /{'health' if number % 10 == 0 else number} HTTP/1.1" for number in range(200)]
    (certified / "nginx" / "access.log").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    tls, token = millrace.Tls(ca=certified / "tls" / "ca.pem"), make_token(certified / "tokens", "watcher")
    watcher = '[roles.watcher]\nallow = ["describe:*"]\n[identities.watcher]\nroles = ["watcher"]\n'
    archive = configuration_with('type = "files"').replace("0.0.0.0:7070", "127.0.0.1:0") + watcher
    collector = start_millraced(moved(archive, certified), certified / "collector")
    edge_toml = configuration_with('type = "taildir"').replace("collector-1:7070", collector.grpc)
    edge = start_millraced(moved(edge_toml, certified), certified / "edge")
    kept = [line for line in lines if "health" not in line]
    with millrace.connect(collector.grpc, tls=tls, token=token) as client:
        wait_until(lambda: client.admin.get_channel("web").gauges.taken_events == len(kept))
    assert edge.stop() == 0
    # The stop finishes its files.
    assert collector.stop() == 0
    rows = pq.ParquetDataset(certified / "web").read().to_pylist()
    assert [row["body"].decode() for row in sorted(rows, key=lambda row: row["sequence"])] == kept
    assert {dict(row["headers"])["file"] for row in rows} == {str(certified / "nginx" / "access.log")}


def test_blocks_for_damage_look_repair_and_restore(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """The commands run unchanged; a damaged channel opens again, or is restored from the backup."""
    look, repair, restore = (
        ["bash", "-euo", "pipefail", "-c", blocks(kind)[0]] for kind in ("tools", "repair", "restore")
    )
    data_dir = tmp_path / "millrace-data"
    server = start_millraced(_ORDERS, data_dir)
    server.wait_for("channel opened")
    with millrace.connect(server.grpc) as client:
        client.channel("orders").append([b"a book"])
        run(look, server, tmp_path)
    assert server.stop() == 0
    flip_a_byte(data_dir / "channels" / "orders" / "segment-000000000001.log", b"a book")
    run(repair, cwd=tmp_path)
    repaired = start_millraced(_ORDERS, data_dir)
    assert repaired.wait_for("channel opened")["events"] == 0
    assert repaired.stop() == 0
    run(restore, cwd=tmp_path)
    restored = start_millraced(_ORDERS, data_dir)
    restored.wait_for("channel opened")
    with millrace.connect(restored.grpc) as client:
        assert [batch.bodies() for batch in client.channel("orders").peek()] == [[b"a book"]]


def flip_a_byte(path: Path, body: bytes) -> None:
    """Damages a stored body."""
    content = bytearray(path.read_bytes())
    content[content.index(body)] ^= 1
    path.write_bytes(content)
