"""The local file system as a storage, and the lock of a folder."""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace_spark.errors import MillraceSparkError
from millrace_spark.landing.paths import WorkFolder, is_local
from millrace_spark.landing.storage import StorageError, StoredFile, storage_errors

_NEW = ".new"


class LocalStorage:
    """Files of this machine, or of a mounted file system; see `Storage`.

    Most files are in `folders`; the folders above those do not change, and are synced once.
    """

    def __init__(self, *folders: str) -> None:
        self._tops = frozenset(Path(folder).parent for folder in folders)
        self._synced_tops: set[Path] = set()

    def files(self, folder: str) -> list[StoredFile]:
        with storage_errors(folder):
            return sorted(_walk(Path(folder)))

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def size_bytes(self, path: str) -> int | None:
        with storage_errors(path):
            return Path(path).stat().st_size if Path(path).exists() else None

    def read(self, path: str) -> str:
        with storage_errors(path):
            return Path(path).read_text(encoding="utf-8")

    def write(self, path: str, text: str) -> None:
        target = Path(path)
        fresh = target.with_name(target.name + _NEW)
        with storage_errors(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            with fresh.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(target)
            self._sync_folders({target.parent})

    def create(self, path: str, text: str) -> bool:
        # The caller holds the folder's lock, so no other program can create it in between.
        if self.exists(path):
            return False
        self.write(path, text)
        return True

    def rename(self, source: str, target: str) -> None:
        with storage_errors(target):
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            Path(source).replace(target)

    def remove(self, path: str) -> None:
        target = Path(path)
        with storage_errors(path):
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)

    def sync(self, paths: Iterable[str]) -> None:
        files = [Path(path) for path in paths]
        for file in files:
            with storage_errors(str(file)), file.open("rb") as opened:
                os.fsync(opened.fileno())
        self._sync_folders({file.parent for file in files})

    def _sync_folders(self, folders: set[Path]) -> None:
        """Syncs folders and their parents, since the name of a new folder must be durable, too."""
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
    """Checks that files can be renamed from a work folder to other folders.

    Raises:
        StorageError: A folder is on another disk, where a rename would be a copy that readers might see in part.
    """
    for target in targets:
        if _device_of(Path(work)) != _device_of(Path(target)):
            raise StorageError(
                f"{target}: is on another disk than {work}, from which files are renamed to it; "
                "set target.work_path to a folder on the same disk"
            )


def _device_of(path: Path) -> int:
    """Returns the disk of a folder, which need not exist yet."""
    return next(above for above in (path, *path.parents) if above.exists()).stat().st_dev


def _walk(folder: Path) -> Iterator[StoredFile]:
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                found = (Path(base) / name).stat()
            except FileNotFoundError:
                # The file was removed in the meantime.
                continue
            yield StoredFile(str(Path(base) / name), found.st_size, found.st_mtime)


def _sync_folder(folder: Path) -> None:
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        # Without read permission, this process has not created anything in the folder.
        return
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


class FolderBusyError(MillraceSparkError):
    """Raised when another program is using a folder."""


@contextmanager
def folder_lock(work: WorkFolder) -> Iterator[None]:
    """Locks a folder while the block runs; the operating system releases the lock when the process ends.

    Only local file systems have such locks. Elsewhere, a second landing ends the claim of the first.

    Raises:
        FolderBusyError: Another program holds the lock.
        MillraceSparkError: The folder cannot be created.
    """
    if not is_local(work.path):
        yield
        return
    try:
        Path(work.path).mkdir(parents=True, exist_ok=True)
        lock = os.open(work.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise MillraceSparkError(
            f"{work.path}: cannot be used: {error.strerror}; set target.work_path to another folder"
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
            raise FolderBusyError(
                f"{work.path}: another millrace-spark is using this folder, process {holder}; stop it, or wait for it"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)
