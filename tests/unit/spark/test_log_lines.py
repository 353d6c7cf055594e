import subprocess
import sys

_SCRIPT = """
import logging
{before}
from millrace_spark.log_lines import show_log_lines
show_log_lines()
show_log_lines()
logging.getLogger("millrace_spark").info("a line")
logging.getLogger("millrace_spark").debug("a detail")
"""


def told(before: str = "") -> str:
    """What a process writes to its standard error."""
    command = [sys.executable, "-c", _SCRIPT.format(before=before)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr


def test_show_log_lines_has_them_come_out_once() -> None:
    """With their time, in a process where nobody has set up logging."""
    [line] = told().splitlines()
    assert line.endswith(" INFO millrace_spark: a line")


def test_show_log_lines_leaves_logging_that_is_set_up() -> None:
    """Whoever has said where lines go is not overruled."""
    assert told("logging.basicConfig(level=logging.ERROR)") == ""
