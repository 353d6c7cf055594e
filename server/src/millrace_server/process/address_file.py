"""The file that tells other programs where a server listens."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace_server.errors import StartError
from millrace_server.files import write_atomically

_MODE = 0o644


@contextmanager
def published_addresses(path: Path | None, addresses: dict[str, str]) -> Iterator[None]:
    """Keeps addresses in a file, as JSON, for as long as they hold.

    Whoever sees the file sees all of it. It is removed at the end, unless another server has taken it over.

    Args:
        path: The file; None to tell nobody.
        addresses: `host:port` by protocol.

    Raises:
        StartError: The file cannot be written.
    """
    if path is None:
        yield
        return
    content = (json.dumps(addresses) + "\n").encode()
    try:
        write_atomically(path, content, mode=_MODE)
    except OSError as error:
        raise StartError(f"cannot write {path} (--address-file): {error.strerror}") from None
    try:
        yield
    finally:
        _remove(path, content)


def _remove(path: Path, content: bytes) -> None:
    try:
        if path.read_bytes() == content:
            path.unlink()
    except OSError:
        # Removed already, or the disk is gone: stopping goes on.
        return
