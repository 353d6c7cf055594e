"""The commands of docs/operating.md, executed."""

import os
import subprocess
import sys
from pathlib import Path

from tests.fenced_blocks import blocks_of
from tests.millraced import Millraced

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"


def test_commands_of_the_page_work(shared_server: Millraced) -> None:
    """They list the producer of the page's own events."""
    [block] = blocks_of(PAGE, "look")
    script = "millrace channel create operated --type memory\n" + block.replace("orders", "operated")
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        capture_output=True,
        check=True,
        encoding="utf-8",
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "MILLRACE_SERVER": shared_server.grpc,
        },
        timeout=60,
    )
    assert ran.stdout.splitlines()[-1].startswith("put-")
