"""A reader who follows a page of the documentation from its first block to its last, in a folder of their own."""

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fenced_blocks import SYNTAX_ONLY, Block, all_blocks
from tests.free_ports import free_port
from tests.millraced import Millraced
from tests.scripts import run_script

_FOLDER = Path(__file__).resolve().parents[1] / "docs" / "how_to"


def _needs_only_a_server(page: Path) -> bool:
    kinds = {block.kind for block in all_blocks(page)}
    return "serve" in kinds and "spark" not in kinds


GUIDES = [page for page in sorted(_FOLDER.glob("*.md")) if _needs_only_a_server(page)]
"""The guides that a reader follows with nothing but the project's programs."""

_ADDRESS = re.compile(r"\b(127\.0\.0\.1|localhost|0\.0\.0\.0):(\d+)")
_PLACE = re.compile(r"(?<![\w.])/(?:etc/millrace|var/lib/millrace|var/log|data)(?=/|\b)")
_DEFAULTS = {"--listen": "127.0.0.1:7070", "--http-listen": "127.0.0.1:7071"}
_SHOWN_SECONDS_MAX = 60.0
_MORE = "..."
"""A line of a block `shown` in whose place others may be printed; without one, the block is the end of the output."""
_LOOK_SECONDS = 0.2


class GuideReader:
    """Runs the blocks of a page in order, each by its kind, unchanged but for addresses and absolute paths.

    `serve` starts servers, or restarts them if they run; `stop` and `kill` end all. `shell` is run by bash, `python` by
    Python and `spark` in the session; `look` is run again until its output ends with the block `shown` behind it, or
    has its lines, where one of them is `...`.
    `background` starts a program in place of the former one. Any other kind is the name of a file to write.

    Attributes:
        folder: Where the reader works.
    """

    def __init__(self, folder: Path, spark: Any = None) -> None:
        self.folder = folder
        self._spark = spark
        self._servers: dict[str, Millraced] = {}
        self._ports: dict[str, int] = {}
        self._background: subprocess.Popen[bytes] | None = None
        self._printed = ""
        self._look = "true"

    def follow(self, page: Path) -> None:
        """Runs all blocks; what a page promises and does not keep fails the test."""
        try:
            for block in all_blocks(page):
                if block.kind not in {None, SYNTAX_ONLY}:
                    self._run(block)
            self._stop()
        finally:
            self._end_background()
            self._kill()

    def _run(self, block: Block) -> None:
        acts: dict[str | None, Callable[[str], None]] = {
            "background": self._start_background,
            "kill": lambda _commands: self._kill(),
            "look": self._look_until_it_works,
            "python": self._run_python,
            "serve": self._serve,
            "shell": self._shell,
            "shown": self._expect,
            "spark": self._run_in_spark,
            "stop": lambda _commands: self._stop(),
        }
        text = self._placed(block.text)
        if (act := acts.get(block.kind)) is not None:
            act(text)
            return
        path = self.folder / str(block.kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _placed(self, text: str) -> str:
        """A block whose servers listen on free ports, and whose files are in the reader's folder."""
        here = _ADDRESS.sub(lambda match: f"{match[1].replace('0.0.0.0', '127.0.0.1')}:{self._port(match[2])}", text)  # noqa: S104 - it is replaced
        return _PLACE.sub(lambda match: f"{self.folder}{match[0]}", here)

    def _port(self, documented: str) -> int:
        if documented not in self._ports:
            self._ports[documented] = free_port()
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

    def _stop(self) -> None:
        for server in self._servers.values():
            if server.process.poll() is None:
                assert server.stop() == 0, server.log

    def _kill(self) -> None:
        for server in self._servers.values():
            server.kill()

    def _start_background(self, command: str) -> None:
        self._end_background()
        program = [sys.executable, *shlex.split(command)[1:]]
        self._background = subprocess.Popen(program, cwd=self.folder, stderr=subprocess.DEVNULL)

    def _end_background(self) -> None:
        if self._background is not None:
            self._background.kill()
            self._background.wait()

    def _shell(self, script: str) -> None:
        self._printed = run_script(script, self.folder, MILLRACE_SERVER=self._placed("127.0.0.1:7070"))

    def _run_python(self, program: str) -> None:
        self._shell(f"python -W error <<'END_OF_PROGRAM'\n{program}END_OF_PROGRAM\n")

    def _run_in_spark(self, program: str) -> None:
        # Spark resolves relative paths in the directory of its JVM.
        exec(program.replace('"landed', f'"{self.folder}/landed'), {"spark": self._spark})  # noqa: S102 - the page's own program

    def _look_until_it_works(self, script: str) -> None:
        self._look = script
        _retry(lambda: self._shell(script))

    def _expect(self, shown: str) -> None:
        lines = [_words(line) for line in shown.splitlines() if line.strip()]
        wanted = [line for line in lines if line != _MORE]

        def look_again() -> None:
            printed = [_words(line) for line in self._printed.splitlines() if line.strip()]
            missing = [line for line in wanted if line not in printed]
            if missing or (_MORE not in lines and printed[-len(wanted) :] != wanted):
                self._shell(self._look)
                raise AssertionError(missing, self._printed)

        _retry(look_again)


def _retry(step: Callable[[], None]) -> None:
    """Repeats a step until it raises no AssertionError."""
    give_up = time.monotonic() + _SHOWN_SECONDS_MAX
    while True:
        try:
            step()
        except AssertionError:
            if time.monotonic() > give_up:
                raise
            time.sleep(_LOOK_SECONDS)
        else:
            return


def _words(line: str) -> str:
    """A line, whatever the widths of its columns are."""
    return " ".join(line.split())
