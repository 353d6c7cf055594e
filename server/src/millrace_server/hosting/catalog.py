"""The channels that CreateChannel made, kept across restarts.

The catalog is one JSON file, written whole at each change:

    {"format": "millrace catalog", "version": 1, "crc32": "89abcdef", "channels": {"orders": {"type": "memory", ...}}}

`crc32` is that of `channels` as JSON with sorted keys and without spaces. A catalog that does not hold together is
never repaired nor overwritten: whoever runs the server decides.
"""

import json
import threading
import zlib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from millrace.setting_problems import describe_problems, shown_value
from millrace_server.channels.config import AnyChannelConfig
from millrace_server.configuration.settings import ChannelName
from millrace_server.errors import StartError
from millrace_server.files import write_atomically

_FORMAT = "millrace catalog"
_VERSION = 1


class CatalogError(StartError):
    """Returned when the catalog cannot be read or is damaged; it was left as it is."""


class _Channels(BaseModel, frozen=True, extra="forbid"):
    channels: dict[ChannelName, AnyChannelConfig]


class Catalog:
    """Names and limits of channels, in a file.

    Any thread may call: a lock keeps changes apart, since each writes the whole file and waits for the disk.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._channels: dict[str, AnyChannelConfig] | None = None

    def load(self) -> dict[str, AnyChannelConfig]:
        """The channels that the catalog holds; none where there is no file yet.

        Raises:
            CatalogError: The file cannot be read, is damaged, or another version wrote it.
        """
        with self._lock:
            return dict(self._loaded())

    def put(self, name: str, config: AnyChannelConfig) -> None:
        """Adds a channel, or replaces its limits. Once this returns, the change survives a crash.

        Raises:
            OSError: The file could not be written. After a crash the change may be there or not.
        """
        with self._lock:
            self._store({**self._loaded(), name: config})

    def replace(self, name: str, config: AnyChannelConfig) -> None:
        """Replaces a channel's limits. Does nothing where the catalog has none of that name.

        Raises:
            OSError: The file could not be written. After a crash the change may be there or not.
        """
        with self._lock:
            channels = self._loaded()
            if name in channels:
                self._store({**channels, name: config})

    def remove(self, name: str) -> None:
        """Drops a channel. Does nothing where the catalog has none of that name.

        Raises:
            OSError: The file could not be written. After a crash the change may be there or not.
        """
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
        catalog = {"format": _FORMAT, "version": _VERSION, "crc32": _checksum(described), "channels": described}
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
            raise self._damaged(f"it does not say that its format is {shown_value(_FORMAT)}")
        # The version comes first: another version may define everything else anew.
        if catalog.get("version") != _VERSION:
            raise CatalogError(
                f"cannot read the catalog {self._path}: its version is {shown_value(catalog.get('version'))}, and this "
                f"server knows version {_VERSION} only; start the server that wrote it"
            )
        channels = catalog.get("channels")
        if catalog.get("crc32") != _checksum(channels):
            raise self._damaged("its checksum does not match")
        try:
            return _Channels.model_validate({"channels": channels}, strict=True).channels
        except ValidationError as error:
            raise self._damaged("; ".join(describe_problems(error, _Channels))) from None

    def _damaged(self, why: str) -> CatalogError:
        return CatalogError(
            f"the catalog {self._path} is damaged: {why}; restore it from a backup, or move it away to start without "
            "the channels that CreateChannel made"
        )


def _checksum(channels: object) -> str:
    return format(zlib.crc32(json.dumps(channels, sort_keys=True, separators=(",", ":")).encode()), "08x")
