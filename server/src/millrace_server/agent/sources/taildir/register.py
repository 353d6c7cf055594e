"""The register of the files that a source tails or has tailed."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from millrace_server.agent.sources.source import SourceContext
from millrace_server.agent.sources.stored_ranges import Ranges
from millrace_server.agent.sources.taildir.config import TaildirSourceConfig
from millrace_server.agent.sources.taildir.copies import CopyDetector, CopyOrigin, CopyOrigins, find_copy
from millrace_server.agent.sources.taildir.discovery import (
    DirectoryIndex,
    FileIdentifier,
    FoundFile,
    PathPatterns,
)
from millrace_server.agent.sources.taildir.positions import FileKey, FilePosition, PositionsFile, opened_file
from millrace_server.agent.sources.taildir.tailed_file import StartPosition, TailedFile

RESTING_MAX = 1_000
"""How many files that are no longer tailed are remembered; beyond this number, the oldest is forgotten."""

_SCANS_MAX = 4
"""How often a scan is repeated while new files appear."""

_LOGGED_MAX = 1_000
_LOG_AGAIN_SECONDS = 3600.0


class FileRegister:
    """Keeps track of the tailed files, discovers new ones, and follows those that were renamed."""

    def __init__(
        self, config: TaildirSourceConfig, context: SourceContext, stored_ranges: Callable[[str], Ranges]
    ) -> None:
        self._config = config
        self._stored_ranges = stored_ranges
        self._log = structlog.stdlib.get_logger(__name__).bind(source=context.name)
        self._logged_at: dict[tuple[str, str], float] = {}
        self._patterns = PathPatterns(config.paths, config.exclude, self._log_os_error)
        self._positions = PositionsFile(context.directory)
        self._identifier = FileIdentifier(config, context.name, stored_ranges)
        self._copies = CopyDetector()
        self._resting: dict[str, FilePosition] = {}
        self._saved: list[tuple[str, int, str, FileKey]] = []
        self._has_no_positions = False
        self.files: dict[FileKey, TailedFile] = {}

    def load(self) -> None:
        saved = self._positions.load()
        self._has_no_positions = saved is None
        for known in saved or ():
            if known.is_resting:
                self._resting[known.producer_id] = known
            else:
                self._track(known)

    def scan(self, now: float) -> None:
        found = self._find()
        met = self._update_known(found, now)
        for _ in range(_SCANS_MAX - 1):
            later = self._find() if met else found
            if _names(later) <= _names(found):
                break
            # Files were rotated after the directories were listed: a new file may be the continuation of a known one,
            # and must not be read before it.
            found, met = later, self._update_known(later, now)
        self._add_new(met, now)
        self._copies.retain(found.keys())
        missing = [file for key, file in self.files.items() if key not in found]
        directories = DirectoryIndex()
        for file in missing:
            self._handle_missing(file, directories, now)

    def continue_in_copy(self, file: TailedFile) -> bool:
        """Continues a truncated or replaced file in its copy; returns whether there is one with new data."""
        origin = _as_origin(file)
        copy = find_copy(origin, self.files)
        if copy is None:
            return False
        if origin.contains_all_of(copy.size):
            self._copies.mark_read(copy)
            return False
        self._move(file, copy.place, copy.key)
        return True

    def relocate(self, file: TailedFile) -> bool:
        """Searches for a file that has moved; returns whether it is still in the same directory."""
        place = DirectoryIndex().find(file.key, Path(file.place).parent)
        if place is not None:
            file.place = place
        return place is not None

    def untrack(self, file: TailedFile) -> None:
        """Stops tailing a file that is deleted, or was rotated and read to its end."""
        file.close()
        del self.files[file.key]
        self._resting[file.producer_id] = file.to_position().model_copy(update={"is_resting": True})
        if len(self._resting) > RESTING_MAX:
            del self._resting[next(iter(self._resting))]

    def save(self) -> None:
        state = [(file.producer_id, file.stored, file.place, file.key) for file in self.files.values()]
        # If this fails, the next call tries again; durable channels remember the positions anyway.
        if state != self._saved and self._save(()):
            self._saved = state

    def log_problem(self, path: str, reason: str) -> None:
        """Logs a problem with a file, but the same problem at most once an hour."""
        now = time.monotonic()
        told_at = self._logged_at.get((path, reason))
        if told_at is None or now - told_at >= _LOG_AGAIN_SECONDS:
            if len(self._logged_at) >= _LOGGED_MAX:
                self._logged_at.clear()
            self._logged_at[path, reason] = now
            self._log.warning("a file has a problem", file=printable_path(path), reason=reason)

    def _find(self) -> dict[FileKey, FoundFile]:
        found: dict[FileKey, FoundFile] = {}
        for each in self._patterns.find():
            # Hard links to the same file are one file.
            found.setdefault(FileKey.of(each.status), each)
        return found

    def _update_known(self, found: Mapping[FileKey, FoundFile], now: float) -> list[tuple[FilePosition, FoundFile]]:
        # An empty file cannot be identified yet.
        unknown = [key for key, each in found.items() if key not in self.files and each.status.st_size]
        if unknown:
            self._update_device_numbers(found)
        for key, file in self.files.items():
            if key in found:
                _update_found(file, found[key], now)
        return self._identify_all([found[key] for key in unknown if key not in self.files], now)

    def _log_os_error(self, path: str, error: OSError) -> None:
        self.log_problem(path, os_error_text(error))

    def _track(self, known: FilePosition) -> TailedFile:
        self._resting.pop(known.producer_id, None)
        start = StartPosition.of(self._stored_ranges(known.producer_id), known.position)
        file = self.files[known.key] = TailedFile(known, start, self._config)
        return file

    def _update_device_numbers(self, found: Mapping[FileKey, FoundFile]) -> None:
        """Recognizes files whose device number has changed because the system was restarted."""
        places = {(key.inode, os.path.realpath(each.path)): key for key, each in found.items()}
        for file in [file for key, file in self.files.items() if key not in found and not file.is_open]:
            key = places.get((file.key.inode, file.place))
            if key is not None and key not in self.files:
                self._move(file, file.place, key)

    def _identify_all(self, unknown: Sequence[FoundFile], now: float) -> list[tuple[FilePosition, FoundFile]]:
        """Identifies files that are not tailed yet; omits those that cannot be identified yet."""
        known_ids = self._resting.keys() | {file.producer_id for file in self.files.values()}
        resting: dict[FileKey, list[FilePosition]] = {}
        for rested in self._resting.values():
            resting.setdefault(rested.key, []).append(rested)
        origins, unclear = self._find_origins(unknown)
        met = []
        # If a file and its copy are both new, the file, which is longer or older, comes first.
        for each in sorted(unknown, key=_origins_first):
            if Path(os.path.realpath(each.path)).parent in unclear:
                continue
            try:
                candidates = resting.get(FileKey.of(each.status), ())
                same = next((candidate for candidate in candidates if _is_same(candidate, each)), None)
                if same is None and self._copies.is_held(each, origins, now):
                    continue
                known = same or self._identifier.identify(
                    each,
                    known_ids,
                    has_no_positions=self._has_no_positions,
                    read_bytes=self._copies.read_bytes(FileKey.of(each.status)),
                )
            except FileNotFoundError:
                # The next scan finds it under another name, if it still exists.
                continue
            except OSError as error:
                self._log_os_error(each.path, error)
                continue
            if known is not None:
                met.append((known, each))
                if not self._has_no_positions:
                    origins.add(CopyOrigin(known.place, known.head, [known.tail], each.status.st_size))
        # A rotated file was written before its successor, but the order of their names may be the opposite.
        return sorted(met, key=lambda pair: (pair[1].status.st_mtime_ns, pair[1].path))

    def _find_origins(self, unknown: Sequence[FoundFile]) -> tuple[CopyOrigins, set[Path]]:
        """Returns the tailed files that unknown ones may be copies of, and the directories in which this is unknown.

        It is unknown while a file was truncated or replaced, until that file is read again.
        """
        directories = {Path(os.path.realpath(each.path)).parent for each in unknown}
        origins = CopyOrigins()
        unclear = set()
        for file in self.files.values():
            directory = Path(file.place).parent
            if directory in directories:
                origins.add(_as_origin(file))
                if file.has_unread and not file.is_unchanged():
                    unclear.add(directory)
        return origins, unclear

    def _add_new(self, new: Sequence[tuple[FilePosition, FoundFile]], now: float) -> None:
        if not new and not self._has_no_positions:
            return
        # Saved before any of their data is stored, since they must have the same ids after a crash. If this fails, they
        # are identified again in the next scan, and known files are not affected.
        if self._save([known for known, _ in new]):
            self._has_no_positions = False
            for known, each in new:
                _update_found(self._track(known), each, now)

    def _save(self, new: Sequence[FilePosition]) -> bool:
        new_ids = {known.producer_id for known in new}
        resting = [known for known in self._resting.values() if known.producer_id not in new_ids]
        try:
            self._positions.save([*resting, *(file.to_position() for file in self.files.values()), *new])
        except OSError as error:
            self._log_os_error(self._positions.path, error)
            return False
        return True

    def _handle_missing(self, file: TailedFile, directories: DirectoryIndex, now: float) -> None:
        """Follows a file that no pattern matches any more, or stops tailing it."""
        file.found_path = None
        if file.is_open:
            return
        place = None if file.has_failed else directories.find(file.key, Path(file.place).parent)
        if place is None:
            if file.is_behind:
                self._log.warning("a file disappeared before it was read completely", file=printable_path(file.path))
            self.untrack(file)
            return
        file.place = place
        file.changed_at = now
        file.has_unread = True

    def _move(self, file: TailedFile, place: str, key: FileKey) -> None:
        del self.files[file.key]
        file.move_to(place, key)
        self.files[key] = file


def os_error_text(error: OSError) -> str:
    """Returns the reason for an operating system error."""
    return error.strerror or str(error)


def printable_path(path: str) -> str:
    """Returns a path as text, with escape sequences for bytes that are not UTF-8."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _as_origin(file: TailedFile) -> CopyOrigin:
    return CopyOrigin(file.place, file.head, file.read_fingerprints, file.size_max)


def _update_found(file: TailedFile, found: FoundFile, now: float) -> None:
    if file.found_path != found.path:
        file.found_path = found.path
        file.place = os.path.realpath(found.path)
    file.pattern = found.pattern
    file.update_status(found.status, now)


def _names(found: Mapping[FileKey, FoundFile]) -> set[tuple[FileKey, str]]:
    return {(key, each.path) for key, each in found.items()}


def _origins_first(found: FoundFile) -> tuple[int, int, str]:
    return -found.status.st_size, found.status.st_mtime_ns, found.path


def _is_same(known: FilePosition, found: FoundFile) -> bool:
    if found.status.st_size < known.position:
        return False
    with opened_file(os.path.realpath(found.path), known.key) as descriptor:
        return known.head.matches_file(descriptor) and known.tail.matches_file(descriptor)
