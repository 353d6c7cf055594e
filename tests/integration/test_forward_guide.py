"""The edge and the collector of docs/how_to/forward_with_tls.md, executed."""

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import millrace_client as millrace
from tests.conftest import StartMillraced
from tests.fenced_blocks import CHECKED, block_with, blocks_of
from tests.millraced import run_millraced
from tests.scripts import run_script
from tests.unit.repository.checkout import ROOT
from tests.waiting import wait_until

PAGE = ROOT / "docs" / "how_to" / "forward_with_tls.md"


def moved(block: str, folder: Path) -> str:
    """A block whose files lie in a folder."""
    return re.sub("/(data|etc/millrace|var/log)(?=/)", str(folder), block)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's commands have made certificates and a token."""
    folder = tmp_path_factory.mktemp("certified")
    (make,) = blocks_of(PAGE, "certificates")
    run_script(moved(make, folder), folder)
    return folder


def test_graph_in_the_page_is_what_the_command_draws(tmp_path: Path) -> None:
    """The graph is that of the configuration above it."""
    config = tmp_path / "millrace.toml"
    config.write_text(block_with(PAGE, CHECKED, 'type = "taildir"'), encoding="utf-8")
    assert [run_millraced("graph", config).stdout] == blocks_of(PAGE, "graph")


def test_agents_of_the_page_bring_lines_of_a_log_into_parquet(start_millraced: StartMillraced, certified: Path) -> None:
    """Both configurations work together unchanged, except for paths."""
    for folder in ("nginx", "web"):
        (certified / folder).mkdir()
    lines = [f"GET /{'health' if number % 10 == 0 else number} HTTP/1.1" for number in range(200)]
    (certified / "nginx" / "access.log").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    tls = millrace.Tls(ca=certified / "tls" / "ca.pem")
    archive = block_with(PAGE, CHECKED, 'type = "files"').replace("0.0.0.0:7070", "127.0.0.1:0")
    collector = start_millraced(moved(archive, certified), certified / "collector")
    edge_toml = block_with(PAGE, CHECKED, 'type = "taildir"').replace("collector-1:7070", collector.grpc)
    edge = start_millraced(moved(edge_toml, certified), certified / "edge")
    kept = [line for line in lines if "health" not in line]
    with millrace.connect(collector.grpc, tls=tls, token_file=certified / "me.token") as client:
        wait_until(lambda: client.admin.get_channel("web").gauges.taken_events == len(kept))
    (look,) = blocks_of(PAGE, "components")
    printed = run_script(
        moved(look, certified).replace("collector-1:7070", collector.grpc), certified, MILLRACE_SERVER=edge.grpc
    )
    assert re.findall(r"^(sources|sinks)/(\w+) +running", printed, re.MULTILINE) == [
        ("sinks", "collector"),
        ("sources", "nginx"),
        ("sinks", "archive"),
    ]
    assert edge.stop() == 0
    # The stop finishes its files.
    assert collector.stop() == 0
    rows = pq.ParquetDataset(certified / "web").read().to_pylist()
    assert [row["body"].decode() for row in sorted(rows, key=lambda row: row["sequence"])] == kept
    assert {dict(row["headers"])["file"] for row in rows} == {str(certified / "nginx" / "access.log")}
