"""What importing the client costs and brings along."""

import subprocess
import sys

IMPORT_SECONDS_MAX = 0.15
_ATTEMPTS = 5

_MEASURE = """
import time
import grpc
before = time.process_time()
import millrace_client
print(time.process_time() - before)
"""

_FOREIGN = """
import sys
import grpc, google.protobuf.message
before = set(sys.modules)
import millrace_client, millrace_client.aio
brought = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(brought - set(sys.stdlib_module_names)))
"""


def run(code: str) -> str:
    """What a fresh Python prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.strip()


def test_import_takes_little_longer_than_grpc() -> None:
    """A command line that uses the client starts quickly. In seconds of the processor: machines are busy."""
    assert min(float(run(_MEASURE)) for _ in range(_ATTEMPTS)) < IMPORT_SECONDS_MAX


def test_import_brings_only_grpc_and_protobuf() -> None:
    """The base installation is enough. `google` is protobuf's, or googleapis-common-protos' where that is installed."""
    assert set(run(_FOREIGN).split()) <= {"millrace", "millrace_client", "google", "grpc"}
