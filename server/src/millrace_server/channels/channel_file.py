"""The file in each directory of a file channel that says which channel it belongs to.

    {"format": "millrace channel", "version": 1, "crc32": "89abcdef", "channel": {"name": "orders", ...}}

`crc32` is that of `channel` as JSON with sorted keys and without spaces. The server never repairs
or overwrites a damaged file, just as it leaves a damaged catalog alone: the operator decides.
"""

import errno
import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from millrace_server.channels.config import CHANNEL_NAME_PATTERN, shown
from millrace_server.files import checksum_of, write_atomically

CHANNEL_FILE = "channel.json"
CHANNEL_FILE_TEMPORARY = CHANNEL_FILE + ".tmp"
"""A crash may leave it behind."""

CHECKPOINTS_ONLY = -1
"""The index of a directory that holds checkpoints and no segments."""

_FORMAT = "millrace channel"
_VERSION = 1
_ID_BYTES = 16
_FILE_BYTES_MAX = 1 << 16


class DirectoryError(Exception):
    """Raised when a channel's directory cannot be used; the message names the path for the operator."""


class ChannelMovedError(DirectoryError):
    """Raised when `millraced migrate` has moved the channel elsewhere."""


@dataclass(frozen=True, slots=True)
class ChannelIdentity:
    """The identity of a file channel: the same in all its directories."""

    name: str
    channel_id: bytes  # 16 bytes; changes when the channel is deleted and created again.
    log_id: bytes  # 16 bytes in its segments and checkpoints; equals the channel id unless restored from a backup.
    made_at_microseconds: int  # Unix time of its creation.

    @classmethod
    def make(cls, name: str) -> "ChannelIdentity":
        channel_id = secrets.token_bytes(_ID_BYTES)
        return cls(name, channel_id, channel_id, time.time_ns() // 1000)


@dataclass(frozen=True, slots=True)
class ChannelFile:
    """The channel file of one directory."""

    identity: ChannelIdentity
    index: int  # Index among the channel's data directories, or CHECKPOINTS_ONLY.
    count: int  # Data directories, from index 0 on, that had their file when this one was written.
    is_deleted: bool = False  # The channel is being deleted: nothing in its directories counts any more.
    repaired_from: int = 0  # The first segment of a log that a repair has written; see `finish_repair`. 0: none.
    has_memory: bool = False  # The log may lack events that were in memory only: a spillable channel wrote it.
    moved_to: str = ""  # Where `millraced migrate` has moved the channel, for the operator; empty: nowhere.

    def write(self, directory: Path) -> None:
        """Replaces the directory's channel file durably. The old file remains on an OSError, unless the sync failed."""
        described = {
            "name": self.identity.name,
            "channel_id": self.identity.channel_id.hex(),
            "log_id": self.identity.log_id.hex(),
            "made_at_microseconds": self.identity.made_at_microseconds,
            "index": self.index,
            "count": self.count,
            "is_deleted": self.is_deleted,
        }
        if self.repaired_from:
            described["repaired_from"] = self.repaired_from
        if self.has_memory:
            described["has_memory"] = True
        if self.moved_to:
            described["moved_to"] = self.moved_to
        content = {"format": _FORMAT, "version": _VERSION, "crc32": checksum_of(described), "channel": described}
        write_atomically(directory / CHANNEL_FILE, (json.dumps(content, indent=2) + "\n").encode())

    @classmethod
    def read(cls, directory: Path) -> "ChannelFile | None":
        """Returns the channel file of a directory; None where it has none.

        Raises DirectoryError if it cannot be read, is damaged, or another version wrote it.
        """
        path = directory / CHANNEL_FILE
        try:
            content = _read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DirectoryError(f"cannot read {path}: {why_refused(error)}") from error
        try:
            return _decode(json.loads(content), path)
        except (ValueError, RecursionError):
            raise _damaged(path, "it is not JSON") from None


class _Channel(BaseModel):
    """The types of `channel`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    name: Annotated[str, Field(pattern=f"^{CHANNEL_NAME_PATTERN}$")]
    channel_id: Annotated[str, Field(pattern=f"^[0-9a-f]{{{2 * _ID_BYTES}}}$")]
    log_id: Annotated[str, Field(pattern=f"^[0-9a-f]{{{2 * _ID_BYTES}}}$")]
    made_at_microseconds: Annotated[int, Field(ge=0)]
    index: Annotated[int, Field(ge=CHECKPOINTS_ONLY)]
    count: Annotated[int, Field(ge=0)]
    is_deleted: bool
    repaired_from: Annotated[int, Field(ge=0)] = 0
    has_memory: bool = False
    moved_to: str = ""


def why_refused(error: OSError) -> str:
    """Returns why the operating system did not open a file that must not be a link."""
    return "it is a link" if error.errno == errno.ELOOP else str(error.strerror)


def _read(path: Path) -> bytes:
    # Were it a pipe, opening it must not wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _FILE_BYTES_MAX)
    finally:
        os.close(descriptor)


def _decode(content: Any, path: Path) -> ChannelFile:
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise _damaged(path, f'it does not say that its format is "{_FORMAT}"')
    # The version comes first: another version may define everything else differently.
    if (version := content.get("version")) != _VERSION:
        raise DirectoryError(
            f"cannot read {path}: its version is {shown(json.dumps(version))}, and this server knows version "
            f"{_VERSION} only; start the server that wrote it"
        )
    described = content.get("channel")
    if content.get("crc32") != checksum_of(described):
        raise _damaged(path, "its checksum does not match")
    try:
        channel = _Channel.model_validate(described)
    except ValidationError as error:
        fields = sorted({str(part) for details in error.errors() for part in details["loc"]})
        raise _damaged(path, f"its channel is not described as it must be: {shown(', '.join(fields))}") from None
    ids = (bytes.fromhex(channel.channel_id), bytes.fromhex(channel.log_id))
    identity = ChannelIdentity(channel.name, *ids, channel.made_at_microseconds)
    return ChannelFile(
        identity,
        channel.index,
        channel.count,
        channel.is_deleted,
        channel.repaired_from,
        channel.has_memory,
        channel.moved_to,
    )


def _damaged(path: Path, why: str) -> DirectoryError:
    return DirectoryError(
        f"{path} is damaged: {why}; `millraced log repair` rebuilds it from the log, or move all of the channel's "
        "directories away to begin without what they hold"
    )
