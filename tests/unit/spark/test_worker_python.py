import sys
from pathlib import Path

import pytest

from millrace_spark import MillraceSparkError
from millrace_spark.worker_python import _check


def fake_python(folder: Path, answer: str) -> str:
    """A program that says what the question to a Python gets."""
    program = folder / "python-of-workers"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ("echo 3.8 True", "which is Python 3.8, while this is "),
        (f"echo {sys.version_info[0]}.{sys.version_info[1]} False", "which has no millrace_spark; set"),
        ("exit 1", "which cannot be run"),
    ],
)
def test_check_of_a_python_that_cannot_work_says_why(tmp_path: Path, answer: str, what: str) -> None:
    """One sentence with the variable to set, and to what."""
    with pytest.raises(MillraceSparkError) as refused:
        _check(fake_python(tmp_path, answer))
    assert what in str(refused.value)
    assert f"set the environment variable PYSPARK_PYTHON to {sys.executable} before" in str(refused.value)


def test_check_of_a_python_that_is_not_there_says_so() -> None:
    """As it would be on a machine that has no python3."""
    with pytest.raises(MillraceSparkError, match="workers run 'no-such-python', which cannot be run"):
        _check("no-such-python")


def test_check_of_a_python_that_works_is_silent(tmp_path: Path) -> None:
    """This one, and another that has the same version and this package."""
    _check(sys.executable)
    _check(fake_python(tmp_path, f"echo {sys.version_info[0]}.{sys.version_info[1]} True"))
