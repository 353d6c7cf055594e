"""Keys for encryption at rest, from files that only the server's user may read."""

import base64
import binascii
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from millrace_server.channels.config import shown

KEY_BYTES = 32

_FILE_BYTES_MAX = 1024
_HEX_DIGITS = 2 * KEY_BYTES
_FOREIGN_PERMISSIONS = 0o077
_HOW_TO_MAKE_ONE = "make a key with: openssl rand -hex 32 > FILE; chmod 600 FILE"


class KeyFileError(Exception):
    """Raised when a key file cannot be used; names the key's id and the file, and nothing of the key."""


def load_keys(paths: Mapping[str, Path]) -> dict[str, bytes]:
    """Returns the keys, 32 bytes each, by their ids. Blocks on the disk.

    A file holds the 32 bytes raw, or as 64 hexadecimal digits or base64, which white space may follow. A link to a file
    is followed; what counts is who may read the file.

    Raises:
        KeyFileError: A file cannot be read, may be read or written by others, or holds no key.
    """
    keys: dict[str, bytes] = {}
    for key_id, path in paths.items():
        try:
            content = _read(path)
        except OSError as error:
            raise _refusal(key_id, path, f"cannot be read: {error.strerror}") from None
        except _UnsafeFileError as error:
            raise _refusal(key_id, path, str(error)) from None
        key = _decode(content)
        if key is None:
            raise _refusal(
                key_id, path, f"does not hold {KEY_BYTES} bytes, {_HEX_DIGITS} hexadecimal digits, or as much in base64"
            )
        if not any(key):
            # A file that was created before a power cut, and whose content was never written, reads as zeros.
            raise _refusal(key_id, path, "holds zeros only")
        keys[key_id] = key
    return keys


class _UnsafeFileError(Exception):
    """A key in such a file would not be secret."""


def _read(path: Path) -> bytes:
    # Were it a pipe or a terminal, opening it must neither wait nor take it over.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        # Of the open file, not of its name, which may point elsewhere by now.
        _check(os.fstat(descriptor))
        return os.read(descriptor, _FILE_BYTES_MAX)
    finally:
        os.close(descriptor)


def _check(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _UnsafeFileError("is not a regular file")
    if status.st_uid not in (0, os.geteuid()):
        raise _UnsafeFileError("belongs to another user; it must be the server's user's, or root's")
    if status.st_mode & _FOREIGN_PERMISSIONS:
        raise _UnsafeFileError(
            f"has mode {stat.S_IMODE(status.st_mode):04o}; only its owner may read or write it: chmod 600 FILE"
        )


def _decode(content: bytes) -> bytes | None:
    if len(content) == KEY_BYTES:
        return content
    text = content.rstrip()
    try:
        key = binascii.unhexlify(text) if len(text) == _HEX_DIGITS else base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    return key if len(key) == KEY_BYTES else None


def _refusal(key_id: str, path: Path, what: str) -> KeyFileError:
    return KeyFileError(f"key {shown(key_id)}: {path} {what}; {_HOW_TO_MAKE_ONE}")
