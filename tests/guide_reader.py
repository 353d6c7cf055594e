"""A reader who follows a page of the documentation from its first block to its last, in a folder of their own."""

import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fenced_blocks import SYNTAX_ONLY, Block, all_blocks
from tests.millraced import Millraced
from tests.scripts import run_script

_ADDRESS = re.compile(r"\b(127\.0\.0\.1|localhost|0\.0\.0\.0):(\d+)")
_PLACE = re.compile(r"(?<![\w.])/(?:etc/millrace|var/lib/millrace|var/log|data)(?=/|\b)")
_DEFAULTS = {"--listen": "127.0.0.1:7070", "--http-listen": "127.0.0.1:7071"}
_SHOWN_SECONDS_MAX = 60.0
_LOOK_SECONDS = 0.2


class GuideReader:
    """Runs the blocks of a page in order, each by its kind, unchanged but for addresses and absolute paths.

    `serve` starts servers, or restarts them if they run; `kill` kills all; `shell` is run by bash, `python` by Python
    and `spark` in the session; `look` is run again until it prints all lines of the block `shown` behind it. Any other
    kind is the name of a file to write.

    Attributes:
        folder: Where the reader works.
    """

    def __init__(self, folder: Path, spark: Any = None) -> None:
        self.folder = folder
        self._spark = spark
        self._servers: dict[str, Millraced] = {}
        self._ports: dict[str, int] = {}
        self._printed = ""
        self._look: Callable[[], str] | None = None

    def follow(self, page: Path) -> None:
        """Runs all blocks; what a page promises and does not keep fails the test."""
        try:
            for block in all_blocks(page):
                if block.kind not in {None, SYNTAX_ONLY}:
                    self._run(block)
            for server in self._servers.values():
                assert server.stop() == 0, server.log
        finally:
            for server in self._servers.values():
                server.kill()

    def _run(self, block: Block) -> None:
        text = self._placed(block.text)
        match block.kind:
            case "serve":
                self._serve(text)
            case "kill":
                for server in self._servers.values():
                    server.kill()
            case "shell":
                self._printed = self._shell(text)
            case "look":
                self._look = lambda: self._shell(text)
                self._printed = self._look()
            case "python":
                program = [sys.executable, "-W", "error", "-c", text]
                self._printed = subprocess.run(
                    program, cwd=self.folder, check=True, stdout=subprocess.PIPE, text=True, timeout=60
                ).stdout
            case "spark":
                exec(text, {"spark": self._spark})  # noqa: S102 - the page's own program
            case "shown":
                self._expect(text)
            case _:
                path = self.folder / str(block.kind)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")

    def _placed(self, text: str) -> str:
        """A block whose servers listen on free ports, and whose files are in the reader's folder."""
        here = _ADDRESS.sub(lambda match: f"{match[1].replace('0.0.0.0', '127.0.0.1')}:{self._port(match[2])}", text)  # noqa: S104 - it is replaced
        return _PLACE.sub(lambda match: f"{self.folder}{match[0]}", here)

    def _port(self, documented: str) -> int:
        if documented not in self._ports:
            with socket.create_server(("127.0.0.1", 0)) as bound:
                self._ports[documented] = bound.getsockname()[1]
        return self._ports[documented]

    def _serve(self, commands: str) -> None:
        for command in filter(None, commands.splitlines()):
            program, verb, *arguments = shlex.split(command, comments=True)
            assert (program.rpartition("/")[2], verb) == ("millraced", "serve"), command
            if (former := self._servers.get(command)) is not None and former.process.poll() is None:
                assert former.stop() == 0, former.log
            config = next((self.folder / word for word in arguments if word.endswith(".toml")), None)
            configured = config.read_text() if config else ""
            free = [word for option, default in _DEFAULTS.items() for word in (option, self._placed(default))]
            # A page with several servers gives each its addresses.
            given = free if "listen =" not in configured else []
            self._servers[command] = Millraced((*arguments, *given), self.folder / "millrace-data", cwd=self.folder)

    def _shell(self, script: str) -> str:
        return run_script(script, self.folder, MILLRACE_SERVER=self._placed("127.0.0.1:7070"))

    def _expect(self, shown: str) -> None:
        wanted = [" ".join(line.split()) for line in shown.splitlines() if line.strip() not in {"", "..."}]
        give_up = time.monotonic() + _SHOWN_SECONDS_MAX
        while missing := [line for line in wanted if line not in _lines(self._printed)]:
            assert self._look is not None, (missing, self._printed)
            assert time.monotonic() < give_up, (missing, self._printed)
            time.sleep(_LOOK_SECONDS)
            self._printed = self._look()
        self._look = None


def _lines(printed: str) -> list[str]:
    return [" ".join(line.split()) for line in printed.splitlines()]
