"""Hadoop's file systems as a storage: HDFS, S3A and all others that Spark supports."""

import uuid
from collections.abc import Iterable
from typing import Any

from pyspark.sql import SparkSession

from millrace_spark.landing.local_storage import LocalStorage
from millrace_spark.landing.paths import is_local
from millrace_spark.landing.storage import Storage, StorageError, StoredFile, storage_errors

_NEW = ".new"
_MILLISECONDS = 1000.0


class HadoopStorage:
    """Files behind Hadoop's `FileSystem`; see `Storage`.

    HDFS renames a file atomically. Object stores have no rename: they copy the file, which appears as a whole, and then
    remove it under its old name; so a rename costs as much as a copy.
    """

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._jvm: Any = spark._jvm  # noqa: SLF001 - Spark's own way to Hadoop from Python
        with storage_errors(folder):
            configuration = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - as above
            self._files: Any = self._path(folder).getFileSystem(configuration)

    def files(self, folder: str) -> list[StoredFile]:
        found = []
        with storage_errors(folder):
            if not self._files.exists(self._path(folder)):
                return []
            base = self._files.makeQualified(self._path(folder)).toString()
            # One recursive listing, which takes a few calls on object stores instead of one per folder.
            listed = self._files.listFiles(self._path(folder), True)
            while listed.hasNext():
                status = listed.next()
                # In the caller's spelling of the folder, which may omit the host of the file system.
                path = folder + status.getPath().toString().removeprefix(base)
                found.append(StoredFile(path, status.getLen(), status.getModificationTime() / _MILLISECONDS))
        return sorted(found)

    def exists(self, path: str) -> bool:
        with storage_errors(path):
            return bool(self._files.exists(self._path(path)))

    def size_bytes(self, path: str) -> int | None:
        with storage_errors(path):
            found = self._path(path)
            return int(self._files.getFileStatus(found).getLen()) if self._files.exists(found) else None

    def read(self, path: str) -> str:
        with storage_errors(path):
            stream = self._files.open(self._path(path))
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()
            finally:
                stream.close()

    def write(self, path: str, text: str) -> None:
        with storage_errors(path):
            self._write_now(path + _NEW, text)
            self.remove(path)
            self.rename(path + _NEW, path)

    def create(self, path: str, text: str) -> bool:
        # Another program may create it at the same time.
        fresh = f"{path}.{uuid.uuid4().hex}{_NEW}"
        with storage_errors(path):
            self._write_now(fresh, text)
            # HDFS checks and renames atomically; not all other file systems check.
            is_first = not self._files.exists(self._path(path)) and bool(
                self._files.rename(self._path(fresh), self._path(path))
            )
            if not is_first:
                self.remove(fresh)
                if not self._files.exists(self._path(path)):
                    raise StorageError(f"{path}: cannot be written, since {fresh} cannot be renamed to it")
            return is_first

    def rename(self, source: str, target: str) -> None:
        with storage_errors(target):
            self._files.mkdirs(self._path(target).getParent())
            if not self._files.rename(self._path(source), self._path(target)):
                raise StorageError(f"{target}: {source} cannot be renamed to it; check whether the file already exists")

    def remove(self, path: str) -> None:
        with storage_errors(path):
            self._files.delete(self._path(path), True)

    def sync(self, paths: Iterable[str]) -> None:
        """Does nothing: a closed file is as durable as HDFS or the store makes it."""

    def _write_now(self, path: str, text: str) -> None:
        stream = self._files.create(self._path(path), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)


def storage_for(spark: SparkSession, folder: str, *others: str) -> Storage:
    """Returns the file system of a folder, which the others share."""
    return LocalStorage(folder, *others) if is_local(folder) else HadoopStorage(spark, folder)
