"""The examples of docs/agent.md, executed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import StartMillraced
from tests.fenced_blocks import blocks_of
from tests.free_ports import free_port
from tests.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "agent.md"
DOCUMENTED_ADDRESS = "127.0.0.1:8080"


def test_blocks_of_each_kind_on_the_page_are_found() -> None:
    """A page whose markers are missing would pass all other tests here."""
    assert [len(blocks_of(PAGE, kind)) for kind in ("own_parts.py", "own", "post")] == [1, 1, 1]


def test_parts_of_ones_own_on_the_page_do_what_they_say(
    start_millraced: StartMillraced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's module, configuration and request work unchanged except for the port, and store an event once."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not on this machine")
    [module], [config], [post] = (blocks_of(PAGE, kind) for kind in ("own_parts.py", "own", "post"))
    (tmp_path / "own_parts.py").write_text(module, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    address = f"127.0.0.1:{free_port()}"
    written = tmp_path / "payments.txt"
    server = start_millraced(config.replace(DOCUMENTED_ADDRESS, address).replace("payments.txt", str(written)))
    server.wait_for("listening")
    command = ["bash", "-euo", "pipefail", "-c", post.replace(DOCUMENTED_ADDRESS, address)]
    for _ in range(2):
        subprocess.run(command, check=True, capture_output=True, timeout=20)
    wait_until(written.exists)
    assert server.stop() == 0
    assert written.read_bytes() == b"card ************1111\n"
