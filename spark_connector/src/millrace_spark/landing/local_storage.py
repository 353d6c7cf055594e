"""The local file system as a storage, and the lock of a folder."""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace_spark.errors import MillraceSparkError
from millrace_spark.landing.paths import WorkFolder, is_local
from millrace_spark.landing.storage import StorageError, StoredFile

_NEW = ".new"


class LocalStorage:
    """Files of this machine, or of what is mounted there; see `Storage`."""

    def __init__(self, *folders: str) -> None:
        """Is good for all files.

        Args:
            folders: Where most files will be. What is above these folders stays, so that it is synced once.
        """
        self._tops = frozenset(Path(folder).parent for folder in folders)
        self._synced_tops: set[Path] = set()

    def files(self, folder: str) -> list[StoredFile]:
        with _storage_errors(folder):
            return sorted(_walk(Path(folder)))

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def size_bytes(self, path: str) -> int | None:
        with _storage_errors(path):
            return Path(path).stat().st_size if Path(path).exists() else None

    def read(self, path: str) -> str:
        with _storage_errors(path):
            return Path(path).read_text(encoding="utf-8")

    def write(self, path: str, text: str) -> None:
        target = Path(path)
        fresh = target.with_name(target.name + _NEW)
        with _storage_errors(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            with fresh.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(target)
            self._sync_folders({target.parent})

    def create(self, path: str, text: str) -> bool:
        # Whoever writes here holds the folder's lock, so nobody comes between.
        if self.exists(path):
            return False
        self.write(path, text)
        return True

    def rename(self, source: str, target: str) -> None:
        with _storage_errors(target):
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            Path(source).replace(target)

    def remove(self, path: str) -> None:
        target = Path(path)
        with _storage_errors(path):
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)

    def sync(self, paths: Iterable[str]) -> None:
        files = [Path(path) for path in paths]
        for file in files:
            with _storage_errors(str(file)), file.open("rb") as opened:
                os.fsync(opened.fileno())
        self._sync_folders({file.parent for file in files})

    def _sync_folders(self, folders: set[Path]) -> None:
        """Syncs folders and those above them: a folder that was made for a file has a name to be kept, too."""
        wanted = {above for folder in folders for above in self._up_from(folder)}
        for each in wanted:
            _sync_folder(each)
        self._synced_tops |= self._tops & wanted

    def _up_from(self, folder: Path) -> Iterator[Path]:
        for above in (folder, *folder.parents):
            yield above
            if above in self._synced_tops:
                return


def check_same_disk(work: str, *targets: str) -> None:
    """Makes sure that files can be renamed from a work folder to others.

    Raises:
        StorageError: One lies on another disk, where a rename would be a copy, of which readers might see a part.
    """
    for target in targets:
        if _device_of(Path(work)) != _device_of(Path(target)):
            raise StorageError(
                f"{target}: lies on another disk than {work}, from which files are renamed to it; "
                "name a target.work_path on the same disk"
            )


def _device_of(path: Path) -> int:
    """The disk of a folder that may not be there yet."""
    return next(above for above in (path, *path.parents) if above.exists()).stat().st_dev


def _walk(folder: Path) -> Iterator[StoredFile]:
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                found = (Path(base) / name).stat()
            except FileNotFoundError:
                # Somebody removed it meanwhile.
                continue
            yield StoredFile(str(Path(base) / name), found.st_size, found.st_mtime)


def _sync_folder(folder: Path) -> None:
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        # Whoever may not read a folder has not made anything in it.
        return
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def _storage_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error


class FolderBusyError(MillraceSparkError):
    """Returned when another program works on a folder."""


@contextmanager
def folder_lock(work: WorkFolder) -> Iterator[None]:
    """Holds a folder for as long as the block runs; the operating system gives it back whatever happens.

    Only of this machine: other file systems have no such locks. There a second landing ends the first one's claim.

    Raises:
        FolderBusyError: Another program holds it.
        MillraceSparkError: The folder cannot be made.
    """
    if not is_local(work.path):
        yield
        return
    try:
        Path(work.path).mkdir(parents=True, exist_ok=True)
        lock = os.open(work.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise MillraceSparkError(
            f"{work.path}: cannot be used: {error.strerror}; name another folder as target.work_path"
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
            raise FolderBusyError(
                f"{work.path}: another millrace-spark works here, process {holder}; stop it, or wait until it ends"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)
