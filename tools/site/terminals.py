"""Takes the pictures of terminals in `docs/images`, of commands that really run, on a server under real load.

`make docs PICTURES=1` runs it. It takes some minutes, most of them for `make run`.
"""

import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.text import Text

from tools.site.console_screenshots import loaded_server

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
_COLUMNS, _ROWS = 104, 40
_LOAD_SECONDS = 30.0
_RUN_SECONDS_MAX = 900.0
_TOP_SECONDS = 6.0
_READ_BYTES = 65_536
_CONTROL = re.compile(r"\x1b\[(?P<count>\d*)(?P<act>[AHJK])|\x1b\[\?\d+[hl]|(?P<end>\r?\n)|\r")
_FONT_FACE = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def output_on_terminal(command: Sequence[str | Path], keys_after_seconds: float | None = None, **variables: str) -> str:
    """Runs a command on a terminal of its own; returns everything that it writes.

    Args:
        command: The program and its arguments.
        keys_after_seconds: When `q` is pressed; None for a command that ends by itself.
        variables: Its environment, in addition to this process's.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **variables}
    with subprocess.Popen(list(command), cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as run:
        os.close(theirs)
        started, written = time.monotonic(), b""
        # Reading fails when the last program that has the terminal ends.
        with suppress(OSError):
            while time.monotonic() < started + _RUN_SECONDS_MAX:
                if keys_after_seconds is not None and time.monotonic() > started + keys_after_seconds:
                    os.write(ours, b"q")
                    keys_after_seconds = None
                if select.select([ours], [], [], 0.1)[0]:
                    written += os.read(ours, _READ_BYTES)
        run.kill()
    os.close(ours)
    return written.decode()


def screen_of(written: str) -> str:
    """What a terminal shows in the end, with its colours: the lines that were neither erased nor written over."""
    lines, row, position = [""], 0, 0
    for control in _CONTROL.finditer(written):
        lines[row] += written[position : control.start()]
        position = control.end()
        if control["end"]:
            row += 1
            lines += [""] * (row == len(lines))
        elif control["act"] == "A":
            row = max(0, row - int(control["count"] or 1))
        elif control["act"] == "H":
            lines, row = [""], 0
        elif control["act"] == "K":
            lines[row] = ""
    lines[row] += written[position:]
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def picture(title: str, shown: str) -> str:
    """A picture of a terminal with a command and what it shows."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(shown))
    # Fonts of the reader's system: nothing is fetched from elsewhere.
    return _FONT_FACE.sub("", console.export_svg(title=title, unique_id=title.rsplit(maxsplit=1)[-1]))


def main() -> None:
    """Writes all pictures."""
    millrace = Path(sys.executable).with_name("millrace")
    with loaded_server(_LOAD_SECONDS) as addresses:
        for command in ("channels", "components", "top"):
            seconds = _TOP_SECONDS if command == "top" else None
            written = output_on_terminal([millrace, command], seconds, MILLRACE_SERVER=addresses["grpc"])
            # A program in the alternate screen restores the former one when it ends.
            shown = screen_of(written.partition("\x1b[?1049l")[0])
            (IMAGES / f"terminal-{command}.svg").write_text(picture(f"millrace {command}", shown), encoding="utf-8")
    with TemporaryDirectory() as folder:
        log = Path(folder) / "access.log"
        lines = (
            f"192.0.2.{number % 200} - - [26/Nov/2026:10:{number // 60 % 60:02d}:{number % 60:02d} +0000] "
            f'"GET /page/{number % 7} HTTP/1.1" {200 if number % 9 else 404} {number % 4_000}\n'
            for number in range(10_000)
        )
        log.write_text("".join(lines), encoding="utf-8")
        shown = screen_of(output_on_terminal([sys.executable, "examples/access_log/run.py", log]))
        (IMAGES / "terminal-run.svg").write_text(
            picture("make run", shown.replace(folder, "/var/log")), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
