"""Which files a source tails, and which it has tailed."""

import os
import time
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path

import structlog

from millrace_server.agent.sources.source import SourceContext
from millrace_server.agent.sources.taildir.config import TaildirSourceConfig
from millrace_server.agent.sources.taildir.copies import CopyWatch, Original, Originals, find_copy
from millrace_server.agent.sources.taildir.discovery import (
    AcceptedRanges,
    Directories,
    FirstSight,
    FoundFile,
    PathPatterns,
)
from millrace_server.agent.sources.taildir.positions import FileKey, FilePosition, PositionsFile, open_file
from millrace_server.agent.sources.taildir.tailed_file import Start, TailedFile

RESTING_MAX = 1_000
"""So many files are remembered that are not tailed any more; beyond it, the one that went first is forgotten."""

_LOOKS_MAX = 4
"""So often a scan looks into the directories where files come up meanwhile."""

_TOLD_MAX = 1_000
_TELL_AGAIN_SECONDS = 3600.0


class FileRegister:
    """Knows the files that are tailed, finds new ones, and finds again those that were renamed.

    Args:
        config: The source's.
        place: The source's.
        accepted: What the channels have stored of a producer.

    Attributes:
        files: The files that are tailed.
    """

    def __init__(
        self, config: TaildirSourceConfig, place: SourceContext, accepted: Callable[[str], AcceptedRanges]
    ) -> None:
        self._config = config
        self._accepted = accepted
        self._log = structlog.stdlib.get_logger(__name__).bind(source=place.name)
        self._told: dict[tuple[str, str], float] = {}
        self._patterns = PathPatterns(config.paths, config.exclude, self._tell_refused)
        self._positions = PositionsFile(place.directory)
        self._first_sight = FirstSight(config, place.name, accepted)
        self._copies = CopyWatch()
        self._resting: dict[str, FilePosition] = {}
        self._saved: list[tuple[str, int, str, FileKey]] = []
        self._is_all_unknown = False
        self.files: dict[FileKey, TailedFile] = {}

    def begin(self) -> None:
        """Remembers what was saved.

        Raises:
            ComponentFailedError: Another version of the server has saved it.
            OSError: It cannot be read.
        """
        saved = self._positions.load()
        self._is_all_unknown = saved is None
        for known in saved or ():
            if known.is_resting:
                self._resting[known.producer_id] = known
            else:
                self._track(known)

    def scan(self, now: float) -> None:
        """Looks at all files that are there."""
        found = self._find()
        met = self._look_at(found, now)
        for _ in range(_LOOKS_MAX - 1):
            later = self._find() if met else found
            if _names(later) <= _names(found):
                break
            # Something was rotated since the look into the directories: what is new may go on where it ended, and must
            # not be read before it.
            found, met = later, self._look_at(later, now)
        self._take_in(met, now)
        self._copies.forget_all_but(found.keys())
        missing = [file for key, file in self.files.items() if key not in found]
        directories = Directories()
        for file in missing:
            self._look_for(file, directories, now)

    def goes_on_in_copy(self, file: TailedFile) -> bool:
        """For a file that was cut short or replaced: whether there is a copy to be read on instead of it."""
        original = _as_original(file)
        copy = find_copy(original, self.files)
        if copy is None:
            return False
        if original.holds_all_of(copy.size):
            self._copies.note_read(copy)
            return False
        self._move(file, copy.place, copy.key)
        return True

    def finds_again(self, file: TailedFile) -> bool:
        """Looks for a file that is not where it was last; tells whether it is in the same directory."""
        place = Directories().place_of(file.key, Path(file.place).parent)
        if place is not None:
            file.place = place
        return place is not None

    def untrack(self, file: TailedFile) -> None:
        """Tails a file no more that is gone, or was rotated and read to its end."""
        file.close()
        del self.files[file.key]
        self._rest(file.described().model_copy(update={"is_resting": True}))

    def save(self) -> None:
        """Saves how far each file was read, where that has changed.

        Where that cannot be, the next call tries again: channels that last know it all the same.
        """
        state = [(file.producer_id, file.stored, file.place, file.key) for file in self.files.values()]
        if state != self._saved and self._save(()):
            self._saved = state

    def tell(self, path: str, reason: str) -> None:
        """Logs what is wrong with a file: the same once an hour at most."""
        now = time.monotonic()
        told_at = self._told.get((path, reason))
        if told_at is None or now - told_at >= _TELL_AGAIN_SECONDS:
            if len(self._told) >= _TOLD_MAX:
                self._told.clear()
            self._told[path, reason] = now
            self._log.warning("a file has trouble", file=shown_path(path), reason=reason)

    def _find(self) -> dict[FileKey, FoundFile]:
        found: dict[FileKey, FoundFile] = {}
        for each in self._patterns.find():
            # A file with several names is one file.
            found.setdefault(FileKey.of(each.status), each)
        return found

    def _look_at(self, found: Mapping[FileKey, FoundFile], now: float) -> list[tuple[FilePosition, FoundFile]]:
        """Takes note of what files are like that are tailed; tells what others are."""
        # Of an empty file nothing can be told yet.
        strange = [key for key, each in found.items() if key not in self.files and each.status.st_size]
        if strange:
            self._know_renumbered(found)
        for key, file in self.files.items():
            if key in found:
                _note_found(file, found[key], now)
        return self._met([found[key] for key in strange if key not in self.files], now)

    def _tell_refused(self, path: str, error: OSError) -> None:
        self.tell(path, why_refused(error))

    def _track(self, known: FilePosition) -> TailedFile:
        self._resting.pop(known.producer_id, None)
        start = Start.of(self._accepted(known.producer_id), known.position)
        file = self.files[known.key] = TailedFile(known, start, self._config)
        return file

    def _rest(self, known: FilePosition) -> None:
        self._resting[known.producer_id] = known
        if len(self._resting) > RESTING_MAX:
            del self._resting[next(iter(self._resting))]

    def _know_renumbered(self, found: Mapping[FileKey, FoundFile]) -> None:
        """Finds files again whose device has another number since the system was started anew."""
        places = {(key.inode, os.path.realpath(each.path)): key for key, each in found.items()}
        for file in [file for key, file in self.files.items() if key not in found and not file.is_open]:
            key = places.get((file.key.inode, file.place))
            if key is not None and key not in self.files:
                self._move(file, file.place, key)

    def _met(self, strange: Sequence[FoundFile], now: float) -> list[tuple[FilePosition, FoundFile]]:
        """What files are that are not tailed yet; those are left out of which that cannot be told yet."""
        known_ids = self._resting.keys() | {file.producer_id for file in self.files.values()}
        resting: dict[FileKey, list[FilePosition]] = {}
        for rested in self._resting.values():
            resting.setdefault(rested.key, []).append(rested)
        originals, unclear = self._neighbours(strange)
        met = []
        # Where a file and its copy are both new, the file comes first: it is longer, or has the earlier time.
        for each in sorted(strange, key=_originals_first):
            if Path(os.path.realpath(each.path)).parent in unclear:
                continue
            try:
                candidates = resting.get(FileKey.of(each.status), ())
                same = next((candidate for candidate in candidates if _is_same(candidate, each)), None)
                if same is None and self._copies.holds(each, originals, now):
                    continue
                known = same or self._identified(each, known_ids)
            except FileNotFoundError:
                # It will be found under another name, or not any more.
                continue
            except OSError as error:
                self._tell_refused(each.path, error)
                continue
            if known is not None:
                met.append((known, each))
                if not self._is_all_unknown:
                    originals.add(Original(known.place, known.head, [known.tail], each.status.st_size))
        # One that was rotated was written to before the next one was; its name may tell the opposite.
        return sorted(met, key=lambda pair: (pair[1].status.st_mtime_ns, pair[1].path))

    def _identified(self, found: FoundFile, known_ids: Container[str]) -> FilePosition | None:
        read_bytes = self._copies.read_bytes(FileKey.of(found.status))
        return self._first_sight.identify(found, known_ids, is_all_unknown=self._is_all_unknown, read_bytes=read_bytes)

    def _neighbours(self, strange: Sequence[FoundFile]) -> tuple[Originals, set[Path]]:
        """The files that are tailed in the directories of others.

        Returns:
            What the others may be copies of; and directories in which that cannot be told before some file was read
            once more, since it was cut short or replaced meanwhile.
        """
        directories = {Path(os.path.realpath(each.path)).parent for each in strange}
        originals = Originals()
        unclear = set()
        for file in self.files.values():
            directory = Path(file.place).parent
            if directory in directories:
                originals.add(_as_original(file))
                if file.has_news and not file.is_same():
                    unclear.add(directory)
        return originals, unclear

    def _take_in(self, new: Sequence[tuple[FilePosition, FoundFile]], now: float) -> None:
        if not new and not self._is_all_unknown:
            return
        # Before anything of them is stored: after a crash they must be known under the same ids. Where that cannot be,
        # they are met once more at the next scan, and files that are known already go on.
        if self._save([known for known, _ in new]):
            self._is_all_unknown = False
            for known, each in new:
                _note_found(self._track(known), each, now)

    def _save(self, new: Sequence[FilePosition]) -> bool:
        new_ids = {known.producer_id for known in new}
        resting = [known for known in self._resting.values() if known.producer_id not in new_ids]
        try:
            self._positions.save([*resting, *(file.described() for file in self.files.values()), *new])
        except OSError as error:
            self._tell_refused(self._positions.path, error)
            return False
        return True

    def _look_for(self, file: TailedFile, directories: Directories, now: float) -> None:
        """Finds a file again that no pattern finds any more, or gives it up."""
        file.found_path = None
        if file.is_open:
            return
        place = None if file.is_set_aside else directories.place_of(file.key, Path(file.place).parent)
        if place is None:
            if file.is_behind:
                self._log.warning("a file went away before its end was read", file=shown_path(file.path))
            self.untrack(file)
            return
        file.place = place
        file.changed_at = now
        file.has_news = True

    def _move(self, file: TailedFile, place: str, key: FileKey) -> None:
        del self.files[file.key]
        file.moves(place, key)
        self.files[key] = file


def why_refused(error: OSError) -> str:
    """Why the operating system did not do something with a file."""
    return error.strerror or str(error)


def shown_path(path: str) -> str:
    """A path as text: what in it is not UTF-8 stands there as escapes."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _as_original(file: TailedFile) -> Original:
    return Original(file.place, file.head, file.landmarks, file.size_max)


def _note_found(file: TailedFile, found: FoundFile, now: float) -> None:
    if file.found_path != found.path:
        file.found_path = found.path
        file.place = os.path.realpath(found.path)
    file.pattern = found.pattern
    file.look_at(found.status, now)


def _names(found: Mapping[FileKey, FoundFile]) -> set[tuple[FileKey, str]]:
    return {(key, each.path) for key, each in found.items()}


def _originals_first(found: FoundFile) -> tuple[int, int, str]:
    return -found.status.st_size, found.status.st_mtime_ns, found.path


def _is_same(known: FilePosition, found: FoundFile) -> bool:
    if found.status.st_size < known.position:
        return False
    descriptor = open_file(os.path.realpath(found.path), known.key)
    try:
        return known.head.is_found_in(descriptor) and known.tail.is_found_in(descriptor)
    finally:
        os.close(descriptor)
