"""The file in which a source keeps which files it knows, and how far it has read them.

Channels that last know that better, each for itself; this file is for those that do not, and for knowing a file again:

    {"format": "millrace taildir positions", "version": 1, "crc32": "89abcdef", "files": [{"producer_id": ...}, ...]}

`crc32` is that of `files` as JSON without spaces. What is not UTF-8 in a path stands there as Python's surrogates.
"""

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import structlog
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from millrace_server.agent.sources.taildir.fingerprints import FileKey, Fingerprint
from millrace_server.agent.supervision import ComponentFailedError
from millrace_server.files import make_directories, write_atomically

POSITIONS_FILE = "positions.json"
DAMAGED_SUFFIX = ".damaged"

_FORMAT = "millrace taildir positions"
_VERSION = 1

_log = structlog.stdlib.get_logger(__name__)

_Number = Annotated[int, Field(ge=0)]


class FilePosition(BaseModel, frozen=True, extra="forbid"):
    """What is kept of one file."""

    producer_id: str
    """What channels know it by."""
    path: str
    """The path under which it was first seen."""
    pattern: str
    """The pattern that has found it."""
    place: str
    """Where it was last, links resolved."""
    device: int
    inode: _Number
    position: _Number
    """One past the last byte that all channels have stored."""
    head: Fingerprint
    """What it begins with."""
    tail: Fingerprint
    """What lay before the place where it was read last."""
    is_resting: bool = False
    """Whether it was rotated and read to its end: it need not be looked for."""

    @property
    def key(self) -> FileKey:
        """Which file it was when this was written."""
        return FileKey(self.device, self.inode)


_FILES = TypeAdapter(list[FilePosition])


class PositionsFile:
    """Reads and writes the file of one source.

    Args:
        directory: The source's; made where it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / POSITIONS_FILE

    @property
    def path(self) -> str:
        """Where it is."""
        return str(self._path)

    def load(self) -> list[FilePosition] | None:
        """What was saved last; None where nothing was, or where it is damaged: then it is set aside.

        Raises:
            ComponentFailedError: Another version wrote it.
            OSError: It cannot be read.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return self._decoded(json.loads(content))
        except (ValueError, RecursionError) as error:
            aside = self._path.with_name(POSITIONS_FILE + DAMAGED_SUFFIX)
            self._path.replace(aside)
            _log.warning("positions are damaged, and begun anew", set_aside_as=str(aside), reason=str(error))
            return None

    def save(self, files: Iterable[FilePosition]) -> None:
        """Puts these in the place of what was saved. Once this returns, they survive a power cut.

        Raises:
            OSError: What was saved before is still there.
        """
        described = [file.model_dump() for file in files]
        content = {"format": _FORMAT, "version": _VERSION, "crc32": _checksum(described), "files": described}
        make_directories(self._path.parent)
        write_atomically(self._path, json.dumps(content, separators=(",", ":")).encode() + b"\n")

    def _decoded(self, content: Any) -> list[FilePosition]:
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f'it does not say that its format is "{_FORMAT}"')
        # The version comes first: another version may define everything else anew.
        if (version := content.get("version")) != _VERSION:
            raise ComponentFailedError(
                f"{self._path} has version {version!a}, and this server knows version {_VERSION} only; start the "
                "server that wrote it, or move the file away"
            )
        described = content.get("files")
        if content.get("crc32") != _checksum(described):
            raise ValueError("its checksum does not match")
        try:
            return _FILES.validate_python(described)
        except ValidationError as error:
            raise ValueError(f"its files are not described as they must be: {error.errors()[0]['loc']}") from None


def _checksum(files: object) -> str:
    return format(zlib.crc32(json.dumps(files, separators=(",", ":")).encode()), "08x")
