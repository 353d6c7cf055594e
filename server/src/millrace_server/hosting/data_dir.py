"""The data directory: its lock, and the catalog of the channels that CreateChannel created."""

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from millrace.setting_problems import describe_problems, shown_value
from millrace_server.agent.setting_types import ChannelName
from millrace_server.channels.config import AnyChannelConfig, DiskChannelConfig
from millrace_server.errors import StartError
from millrace_server.files import checksum_of, lock_owner, make_directories, write_atomically, write_lock_owner
from millrace_server.replication.engine_settings import EngineSettings

CATALOG_FILE = "catalog.json"
"""The name of the catalog's file."""

CHANNELS_DIRECTORY = "channels"
"""The parent of the channels' directories, unless their configuration names others."""

_LOCK_FILE = "lock"


def data_dirs_of(channel: str, config: DiskChannelConfig, data_dir: Path) -> list[Path]:
    """Returns the directories of a channel's segments, where `data_dir` is the server's."""
    return [directory / channel for directory in config.data_dirs or [data_dir / CHANNELS_DIRECTORY]]


@contextmanager
def locked_data_dir(path: Path) -> Iterator[None]:
    """Locks a data directory against other servers; creates it if it is missing.

    The kernel releases the lock when the process ends, however it ends. Raises StartError if another server uses the
    directory, or it cannot be created or written.
    """
    try:
        make_directories(path)
        descriptor = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StartError(f"cannot use {path} (server.data_dir): {error.strerror}") from None
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StartError(
            f"cannot use {path} (server.data_dir): another server{lock_owner(descriptor)} uses it; "
            "stop that one, or give this one a directory of its own"
        ) from None
    except OSError as error:
        raise StartError(f"cannot lock {path} (server.data_dir): {error.strerror}") from None
    write_lock_owner(descriptor)


_FORMAT = "millrace catalog"
_VERSION = 1


class CatalogError(StartError):
    """Raised when the catalog cannot be read or is damaged; the file is unchanged."""


class _Channels(BaseModel, frozen=True, extra="forbid", defer_build=True):
    channels: dict[ChannelName, AnyChannelConfig]


class Catalog:
    """The names and limits of the channels that CreateChannel created, in a file. Thread-safe.

    A change survives a crash once its method returns. If it raises OSError, the change may be there or not after a
    crash. The file is JSON, rewritten at each change; `crc32` is the checksum of `channels` as JSON with sorted keys
    and without spaces:

        {"format": "millrace catalog", "version": 1, "crc32": "89abcdef", "channels": {"orders": {...}}}

    A damaged catalog is never repaired or overwritten: the operator decides.
    """

    def __init__(self, path: Path, engine: EngineSettings | None = None) -> None:
        """`engine`: the current engine of replicated channels, which replaces the one stored with each of them."""
        self._path = path
        self._engine = engine
        self._lock = threading.Lock()
        self._channels: dict[str, AnyChannelConfig] | None = None

    def load(self) -> dict[str, AnyChannelConfig]:
        """Returns the channels of the catalog, none without a file; raises CatalogError if it cannot be used."""
        with self._lock:
            return {
                name: config.replicated.at(self._engine) if self._engine and config.replicated else config
                for name, config in self._loaded().items()
            }

    def put(self, name: str, config: AnyChannelConfig) -> None:
        """Adds a channel, or replaces its limits."""
        with self._lock:
            self._store({**self._loaded(), name: config})

    def replace(self, name: str, config: AnyChannelConfig) -> None:
        """Replaces a channel's limits. Does nothing if the catalog has none of that name."""
        with self._lock:
            channels = self._loaded()
            if name in channels:
                self._store({**channels, name: config})

    def remove(self, name: str) -> None:
        """Removes a channel. Does nothing if the catalog has none of that name."""
        with self._lock:
            channels = self._loaded()
            if name in channels:
                self._store({other: config for other, config in channels.items() if other != name})

    def _loaded(self) -> dict[str, AnyChannelConfig]:
        if self._channels is None:
            self._channels = self._read()
        return self._channels

    def _store(self, channels: dict[str, AnyChannelConfig]) -> None:
        described = {name: config.model_dump(mode="json") for name, config in sorted(channels.items())}
        catalog = {"format": _FORMAT, "version": _VERSION, "crc32": checksum_of(described), "channels": described}
        write_atomically(self._path, (json.dumps(catalog, indent=2) + "\n").encode())
        self._channels = channels

    def _read(self) -> dict[str, AnyChannelConfig]:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise CatalogError(f"cannot read the catalog {self._path}: {error.strerror}") from None
        try:
            catalog = json.loads(content)
        except (ValueError, RecursionError):
            raise self._damaged("it is not JSON") from None
        return self._check(catalog)

    def _check(self, catalog: Any) -> dict[str, AnyChannelConfig]:
        if not isinstance(catalog, dict) or catalog.get("format") != _FORMAT:
            raise self._damaged(f"its format is not {shown_value(_FORMAT)}")
        # The version comes first: another version may define everything else differently.
        if catalog.get("version") != _VERSION:
            raise CatalogError(
                f"cannot read the catalog {self._path}: its version is {shown_value(catalog.get('version'))}, and this "
                f"server knows version {_VERSION} only; use the version that wrote it"
            )
        channels = catalog.get("channels")
        if catalog.get("crc32") != checksum_of(channels):
            raise self._damaged("its checksum does not match")
        try:
            return _Channels.model_validate({"channels": channels}, strict=True).channels
        except ValidationError as error:
            # Its checksum matches, so another version wrote it, or more libraries were installed then.
            raise CatalogError(
                f"cannot use the catalog {self._path}: {'; '.join(map(str, describe_problems(error, _Channels)))}"
            ) from None

    def _damaged(self, why: str) -> CatalogError:
        return CatalogError(
            f"the catalog {self._path} is damaged: {why}; restore it from a backup, or move it away to start without "
            "the channels that CreateChannel created"
        )
