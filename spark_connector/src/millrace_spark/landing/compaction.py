"""Merges the small files of a landed folder into larger ones."""

import posixpath
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millrace_spark.errors import format_error
from millrace_spark.landing.config import CompactionConfig
from millrace_spark.landing.paths import (
    WorkFolder,
    as_pattern,
    as_uri,
    compacted_name,
    data_files,
    is_landed,
    suffix_of,
)
from millrace_spark.landing.storage import Storage, StorageError, StoredFile, joined
from millrace_spark.landing.swap import STAGING_PREFIX, Intent, recover, swap

FILES_MAX = 1_000
"""The maximum number of files of one merge, which bounds the work that a crash undoes."""


class Merge(NamedTuple):
    """Files of one folder to merge into one file."""

    folder: str
    files: tuple[StoredFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def plan_merges(files: Iterable[StoredFile], limits: CompactionConfig, now_seconds: float) -> list[Merge]:
    """Returns the merges that are due.

    A file of at least half the target size is never read again, so that each row is merged only a few times, however
    many batches there are.
    """
    folders = defaultdict(list)
    for file in files:
        folder, name = posixpath.split(file.path)
        if is_landed(name):
            folders[folder].append(file)
    return [
        Merge(folder, group)
        for folder, found in sorted(folders.items())
        if max(file.modified_seconds for file in found) + limits.quiet_seconds <= now_seconds
        for group in _groups(sorted(found), limits)
        if len(group) > 1
    ]


def _groups(files: Sequence[StoredFile], limits: CompactionConfig) -> Iterator[tuple[StoredFile, ...]]:
    small = [file for file in files if 2 * file.size_bytes < limits.target_bytes]
    if len(small) < limits.files_min:
        return
    group: list[StoredFile] = []
    group_bytes = 0
    for file in small:
        if group and (group_bytes + file.size_bytes > limits.target_bytes or len(group) == FILES_MAX):
            yield tuple(group)
            group, group_bytes = [], 0
        group.append(file)
        group_bytes += file.size_bytes
    yield tuple(group)


Merger = Callable[[Sequence[str], str], None]
"""Merges files into one file in a new folder.

Raises:
    MergeError: The files cannot be merged.
"""


class MergeError(Exception):
    """Raised when files cannot be merged; the message is a sentence. Nothing has changed."""


@dataclass
class CompactionTotals:
    """Counts of a compaction."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    refusals: tuple[str, ...] = ()
    """Reasons why other files could not be merged."""


class Compactor:
    """Merges the files of one folder, and finishes interrupted merges."""

    def __init__(
        self,
        storage: Storage,
        folder: str,
        work: WorkFolder,
        limits: CompactionConfig,
        merger: Merger,
    ) -> None:
        self.totals = CompactionTotals()
        self._storage = storage
        self._folder = folder
        self._work = work
        self._limits = limits
        self._merger = merger

    def recover(self) -> int:
        """Finishes or undoes interrupted merges; returns the number of swaps it finished."""
        return recover(self._storage, self._work)

    def compact(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Runs all due merges; returns early, between two merges, if `is_stopping` does."""
        for merge in plan_merges(self._storage.files(self._folder), self._limits, time.time()):
            if is_stopping():
                return
            try:
                self._merge(merge)
            except MergeError as error:
                refusal = f"{merge.folder}: its small files were not merged, {error}"
                if refusal not in self.totals.refusals:
                    self.totals.refusals += (refusal,)

    def _merge(self, merge: Merge) -> None:
        compaction_id = uuid.uuid4().hex
        staged = joined(self._work.staging, STAGING_PREFIX + compaction_id)
        paths = [file.path for file in merge.files]
        try:
            self._merger(paths, staged)
        except MergeError:
            self._storage.remove(staged)
            raise
        merged = data_files(self._storage.files(staged), staged)
        if len(merged) != 1:
            raise StorageError(f"{staged}: holds {len(merged)} files, where Spark should have written one")
        name = compacted_name(compaction_id, suffix_of(merged[0].path), like=posixpath.basename(paths[0]))
        intent = Intent(staged=merged[0].path, target=joined(merge.folder, name), replaces=tuple(paths))
        swap(self._storage, self._work, intent)
        self.totals.files_before += len(paths)
        self.totals.files_after += 1
        self.totals.bytes_before += merge.size_bytes


def spark_merger(spark: SparkSession, compression: str) -> Merger:
    """Returns a merger of Parquet files, which writes their rows into one file with the columns of all of them."""

    def merge(files: Sequence[str], staged: str) -> None:
        try:
            merged = _read(spark, files)
            # One task writes one file.
            merged.coalesce(1).write.option("compression", compression).parquet(as_uri(staged))
            counts = [_read(spark, paths).count() for paths in (files, [staged])]
        except (PySparkException, Py4JError) as error:
            # For instance, a column is text in one file and a number in another.
            raise MergeError(format_error(error)) from error
        if counts[0] != counts[1]:
            raise MergeError(f"since they hold {counts[0]:,} rows, and the merged file {counts[1]:,}")

    return merge


def _read(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    # Keeps columns that a change of the configuration added or removed.
    return spark.read.option("mergeSchema", value=True).parquet(*map(as_pattern, paths))
