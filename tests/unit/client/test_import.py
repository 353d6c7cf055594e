"""The time of importing the client, and the modules that it imports."""

import subprocess
import sys

import pytest

import millrace_client

_ATTEMPTS = 5

_MEASURE = """
import time
began = time.process_time()
import grpc
before = time.process_time()
from millrace_client import connect
print((time.process_time() - before) / (before - began))
"""

_FOREIGN = """
import sys
import grpc, google.protobuf.message
before = set(sys.modules)
import millrace_client, millrace_client.aio
from millrace_client import *
brought = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(brought - set(sys.stdlib_module_names)))
"""


def run(code: str) -> str:
    """The output of a new Python process."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.strip()


def test_import_takes_about_as_long_as_grpc() -> None:
    """A command line that uses the client must start quickly. The limit is a ratio, since machines differ in speed."""
    assert min(float(run(_MEASURE)) for _ in range(_ATTEMPTS)) < 1.5


def test_import_brings_only_grpc_and_protobuf() -> None:
    """The base installation suffices. `google` is protobuf's, or googleapis-common-protos' if that is installed."""
    assert set(run(_FOREIGN).split()) <= {"millrace", "millrace_client", "google", "grpc"}


def test_names_of_modules_are_attributes_of_the_package() -> None:
    """They need no import of their own: `import millrace_client as millrace` gives `millrace.errors`."""
    assert run("import millrace_client; print(millrace_client.errors.MillraceError.__name__)") == "MillraceError"


def test_every_public_name_is_found() -> None:
    """Each is imported from its module; another name is an AttributeError, as of any module."""
    assert {getattr(millrace_client, name).__name__ for name in millrace_client.__all__} == set(millrace_client.__all__)
    with pytest.raises(AttributeError, match="'millrace_client' has no attribute 'nothing'"):
        _ = millrace_client.nothing
