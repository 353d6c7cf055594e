"""The engine that the tests of a module share."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_WAIT_SECONDS = 30


@pytest.fixture(scope="module")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A single nats-server with JetStream."""
    directory = tmp_path_factory.mktemp("nats")
    program = Path(sys.executable).with_name("nats-server")
    arguments = ["-js", "-sd", str(directory), "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", str(directory)]
    with subprocess.Popen([program, *arguments], stderr=subprocess.DEVNULL) as process:
        give_up_at = time.monotonic() + _WAIT_SECONDS
        while not (found := list(directory.glob("*.ports"))):
            assert time.monotonic() < give_up_at
            time.sleep(0.01)
        yield json.loads(found[0].read_text())["nats"][0]
        process.kill()
