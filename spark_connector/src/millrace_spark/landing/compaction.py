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

from millrace_spark.landing.config import CompactionConfig
from millrace_spark.landing.paths import WorkFolder, as_uri, compacted_name, data_files, is_landed, suffix_of
from millrace_spark.landing.spark_session import format_error
from millrace_spark.landing.storage import Storage, StorageError, StoredFile, joined
from millrace_spark.landing.swap import STAGING_PREFIX, Intent, recover, swap

FILES_MAX = 1_000
"""One merge reads at most so many files, so that what is to be done again after a crash stays bounded."""


class Merge(NamedTuple):
    """Files of one folder that become one file."""

    folder: str
    files: tuple[StoredFile, ...]

    @property
    def size_bytes(self) -> int:
        """How large they are together."""
        return sum(file.size_bytes for file in self.files)


def plan_merges(files: Iterable[StoredFile], limits: CompactionConfig, now_seconds: float) -> list[Merge]:
    """Finds what is to be merged.

    A file that is half as large as it should be is never read
    again, so each row is merged a few times in its life, however many batches there are.

    Args:
        files: All files of the landed folder; those with names of others are left alone.
        limits: When, and up to which size.
        now_seconds: The time, in seconds since 1970.
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
    ]


def _groups(files: Sequence[StoredFile], limits: CompactionConfig) -> Iterator[tuple[StoredFile, ...]]:
    small = [file for file in files if 2 * file.size_bytes < limits.target_bytes]
    if len(small) < limits.files_min:
        return
    group: list[StoredFile] = []
    group_bytes = 0
    for file in small:
        if group and (group_bytes + file.size_bytes > limits.target_bytes or len(group) == FILES_MAX):
            yield from _worthwhile(group)
            group, group_bytes = [], 0
        group.append(file)
        group_bytes += file.size_bytes
    yield from _worthwhile(group)


def _worthwhile(group: list[StoredFile]) -> Iterator[tuple[StoredFile, ...]]:
    if len(group) > 1:
        yield tuple(group)


Merger = Callable[[Sequence[str], str], None]
"""Writes the rows of files into one file in a new folder.

Raises:
    MergeError: They cannot be one file.
"""


class MergeError(Exception):
    """Returned when files cannot become one; the message is a sentence. Nothing has changed."""


@dataclass
class CompactionTotals:
    """What was merged.

    Attributes:
        files_before: How many files were replaced.
        files_after: By how many.
        bytes_before: How large they were.
        refusals: Why others could not be merged.
    """

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    refusals: tuple[str, ...] = ()


class Compactor:
    """Merges the files of one folder, and ends what an earlier one began.

    Attributes:
        totals: What it has merged so far.
    """

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
        """Finishes or undoes what a crash has left; returns how many swaps it finished."""
        return recover(self._storage, self._work)

    def compact(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Merges whatever the limits say; ends early, between two merges, where it is told to.

        Raises:
            StorageError: The file system refuses; the next start takes up from there.
        """
        for merge in plan_merges(self._storage.files(self._folder), self._limits, time.time()):
            if is_stopping():
                return
            try:
                self._merge(merge)
            except MergeError as error:
                told = f"{merge.folder}: its small files stay as they are, {error}"
                if told not in self.totals.refusals:
                    self.totals.refusals += (told,)

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
            raise StorageError(f"{staged}: holds {len(merged)} files where Spark was asked for one")
        name = compacted_name(compaction_id, suffix_of(merged[0].path), like=posixpath.basename(paths[0]))
        intent = Intent(staged=merged[0].path, target=joined(merge.folder, name), replaces=tuple(paths))
        swap(self._storage, self._work, intent)
        self.totals.files_before += len(paths)
        self.totals.files_after += 1
        self.totals.bytes_before += merge.size_bytes


def spark_merger(spark: SparkSession, compression: str) -> Merger:
    """What merges Parquet files: their rows in one file, which has the columns of all of them.

    Args:
        spark: Who reads and writes.
        compression: How the merged file is compressed.
    """

    def merge(files: Sequence[str], staged: str) -> None:
        try:
            merged = _read(spark, files)
            # One task, so one file.
            merged.coalesce(1).write.option("compression", compression).parquet(as_uri(staged))
            counts = [_read(spark, paths).count() for paths in (files, [staged])]
        except (PySparkException, Py4JError) as error:
            # Such as a column that is text in one file and a number in another.
            raise MergeError(format_error(error)) from error
        if counts[0] != counts[1]:
            raise MergeError(f"they hold {counts[0]:,} rows, and one file of them {counts[1]:,}")

    return merge


def _read(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    # Columns that came or went with a change of the configuration are kept.
    return spark.read.option("mergeSchema", value=True).parquet(*map(as_uri, paths))
