"""`millrace-spark compact`: a folder's small files are merged, without any channel."""

from pathlib import Path

from rich.console import Console

from millrace_spark.errors import MillraceSparkError
from millrace_spark.landing.compaction import CompactionAccount, Compactor
from millrace_spark.landing.config import SparkConfig
from millrace_spark.landing.folder_lock import folder_lock
from millrace_spark.landing.merges import CompactionLimits
from millrace_spark.landing.places import WorkFolder, is_local
from millrace_spark.landing.publication import finish_all
from millrace_spark.landing.sessions import spark_log, spark_session
from millrace_spark.landing.spark_merger import spark_merger
from millrace_spark.landing.stopping import StopSignals
from millrace_spark.landing.storage import StorageError
from millrace_spark.landing.storages import storage_for


def compact_folder(
    path: str, work: WorkFolder, limits: CompactionLimits, compression: str, spark_config: SparkConfig
) -> tuple[CompactionAccount, int]:
    """Merges the small files of a folder.

    Returns:
        What was merged, and the exit code.

    Raises:
        MillraceSparkError: There is no such folder, another program works on it, or files cannot be read or written.
    """
    # Two compactions that knew nothing of each other would merge the same rows twice.
    told = f"{work.path}: is not there, and the landing into {path} must have its records somewhere; say --work-path"
    if is_local(work.path) and not Path(work.path).is_dir():
        raise MillraceSparkError(told)
    signals = StopSignals()
    signals.install()
    console = Console(stderr=True)
    try:
        with (
            folder_lock(work),
            console.status("merging files"),
            spark_session("millrace-compact", spark_config, spark_log(work)) as spark,
        ):
            signals.install()
            storage = storage_for(spark, path, work.path)
            if not storage.exists(work.path):
                raise MillraceSparkError(told)
            if not storage.exists(path):
                raise MillraceSparkError(f"{path}: is not there; name the folder that was landed in")
            compactor = Compactor(storage, path, work, limits, spark_merger(spark, compression))
            compactor.recover()
            finish_all(storage, work)
            compactor.compact(signals.is_stopping.is_set)
    except StorageError as error:
        raise MillraceSparkError(str(error)) from error
    finally:
        signals.uninstall()
    return compactor.account, signals.exit_code if signals.number else 0
