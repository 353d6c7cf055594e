"""The commands of docs/operating.md, executed."""

import json
from pathlib import Path

from tests.conftest import StartMillraced
from tests.fenced_blocks import blocks_of
from tests.scripts import run_script

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"


def test_commands_of_the_page_work(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """They list the producer of the page's own events, show these over HTTP, and report on several servers."""
    # The report of a shared one would leave this channel out, since others are deeper.
    server = start_millraced()
    [look], [events], [report] = (blocks_of(PAGE, kind) for kind in ("look", "events", "report"))
    create = "millrace channel create operated --type memory\n"
    shown = run_script(create + look.replace("orders", "operated"), tmp_path, MILLRACE_SERVER=server.grpc)
    assert shown.splitlines()[-1].startswith("put-")
    here = events.replace("127.0.0.1:7071", server.http).replace("orders", "operated")
    assert [json.loads(line)["body"] for line in run_script(here, tmp_path).splitlines()] == ["1", "2", "3"]
    contexts = "".join(f"millrace context add prod-{one} --server {server.grpc}\n" for one in (1, 2))
    script = contexts + report.replace("127.0.0.1:7070", server.grpc).replace("--interval 10", "--interval 0.1")
    assert "operated" in run_script(script, tmp_path)
