"""A nats-server with JetStream, which tests kill and start again."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

_WAIT_SECONDS = 30


class JetStreamServer:
    """One nats-server on a free port of its own, running while the context lasts.

    Attributes:
        url: Where clients connect, also after a restart.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = -1
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        """Starts it, with what it had stored."""
        for old in self._directory.glob("*.ports"):
            old.unlink()
        config = self._directory / "server.conf"
        config.write_text(
            f"listen: 127.0.0.1:{self._port}\nports_file_dir: '{self._directory}'\n"
            f"jetstream: {{store_dir: '{self._directory}', sync_interval: always}}\n"
        )
        program = Path(sys.executable).with_name("nats-server")
        self._process = subprocess.Popen([program, "-c", config], stderr=subprocess.DEVNULL)
        give_up_at = time.monotonic() + _WAIT_SECONDS
        while not (found := list(self._directory.glob("*.ports"))) or not found[0].stat().st_size:
            assert time.monotonic() < give_up_at
            time.sleep(0.01)
        self.url = json.loads(found[0].read_text())["nats"][0]
        self._port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """Kills it with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
