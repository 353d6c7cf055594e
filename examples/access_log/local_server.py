"""A server of its own for the job: a process on a free port."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MILLRACED = Path(sys.executable).with_name("millraced")
_START_SECONDS_MAX = 30.0
_STOP_SECONDS_MAX = 15.0
_POLL_SECONDS = 0.02


class ServerError(Exception):
    """Returned when the server does not start or does not stop cleanly; its message is for the user."""


@contextmanager
def local_server(config_toml: str, log: Path) -> Iterator[str]:
    """Runs a server for as long as the block runs.

    Args:
        config_toml: Its configuration, but where it listens and keeps its data.
        log: Where its log is written.

    Yields:
        Where it listens for gRPC, `host:port`.

    Raises:
        ServerError: It did not start, or did not stop by itself.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-") as scratch, log.open("wb") as log_file:
        config = Path(scratch) / "millrace.toml"
        config.write_text(config_toml)
        address_file = Path(scratch) / "address.json"
        paths = ["--config", str(config), "--address-file", str(address_file), "--data-dir", scratch]
        free_ports = ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
        # In a session of its own, so that Ctrl-C reaches this program alone, which then stops the server.
        with subprocess.Popen(
            [str(_MILLRACED), "serve", *paths, *free_ports],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        ) as process:
            try:
                yield _address(process, address_file, log)
            finally:
                _stop(process, log)


def _address(process: "subprocess.Popen[bytes]", address_file: Path, log: Path) -> str:
    give_up = time.monotonic() + _START_SECONDS_MAX
    while not address_file.exists():
        if process.poll() is not None:
            raise ServerError(f"the server did not start; {log} tells why")
        if time.monotonic() > give_up:
            raise ServerError(f"the server did not listen within {_START_SECONDS_MAX:.0f} s; {log} tells more")
        time.sleep(_POLL_SECONDS)
    address: str = json.loads(address_file.read_text())["grpc"]
    return address


def _stop(process: "subprocess.Popen[bytes]", log: Path) -> None:
    process.terminate()
    try:
        code = process.wait(_STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        raise ServerError(f"the server did not stop within {_STOP_SECONDS_MAX:.0f} s; {log} tells more") from None
    # An error that ends the block says more than that the server, too, ended with one.
    if code and sys.exception() is None:
        raise ServerError(f"the server ended with code {code}; {log} tells why")
