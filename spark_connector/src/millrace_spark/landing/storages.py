"""Which storage a folder is in."""

from pyspark.sql import SparkSession

from millrace_spark.landing.hadoop_storage import HadoopStorage
from millrace_spark.landing.local_storage import LocalStorage
from millrace_spark.landing.places import is_local
from millrace_spark.landing.storage import Storage


def storage_for(spark: SparkSession, folder: str, *others: str) -> Storage:
    """The file system that a folder lies in, and others with it.

    Raises:
        StorageError: There is none for such a path, or it cannot be reached.
    """
    return LocalStorage(folder, *others) if is_local(folder) else HadoopStorage(spark, folder)
