"""The examples of docs/fan_out.md, executed."""

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import StartMillraced
from tests.fenced_blocks import blocks_of
from tests.integration.daemon_queries import stored_count

PAGE = Path(__file__).parents[2] / "docs" / "fan_out.md"
DOCUMENTED_ADDRESS = "127.0.0.1:7070"


def test_commands_and_program_of_the_page_do_what_they_say(start_millraced: StartMillraced) -> None:
    """Every group gets all events, from the command line and from Python."""
    [config], [put], [take], [client] = (blocks_of(PAGE, kind) for kind in ("server", "put", "take", "client"))
    server = start_millraced(config)
    server.wait_for("serving")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MILLRACE_SERVER": server.grpc,
    }

    def output_of(*command: str) -> list[str]:
        ran = subprocess.run(command, capture_output=True, check=True, encoding="utf-8", env=environment, timeout=60)
        return ran.stdout.splitlines()

    assert output_of("bash", "-euo", "pipefail", "-c", put) == ["orders: 1,000 lines read, 1,000 events committed"]
    assert output_of("bash", "-euo", "pipefail", "-c", take)[:4] == ["1", "2", "3", "1"]
    assert output_of(sys.executable, "-c", client.replace(DOCUMENTED_ADDRESS, server.grpc)) == ["True", "0"]
    counts = {name: stored_count(server, name) for name in ("billing", "search", "recent")}
    assert counts == {"billing": 999, "search": 1001, "recent": 1002}
    assert server.stop() == 0
