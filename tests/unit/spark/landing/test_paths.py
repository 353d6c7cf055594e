from pathlib import Path

import pytest

from millrace_spark.landing.paths import (
    WorkFolder,
    absolute_path,
    as_pattern,
    as_uri,
    compacted_name,
    data_files,
    file_system_of,
    is_landed,
    is_local,
    landed_name,
    name_of,
    suffix_of,
)
from millrace_spark.landing.storage import StoredFile, joined, relative_to

QUERY = "3f2a91c0-4b7d-4c11-9a55-0123456789ab"


def test_landed_name_tells_query_batch_and_number() -> None:
    """The names of a query sort in the order of its batches."""
    names = [landed_name(QUERY, batch_id, 3, ".zstd.parquet", "web-") for batch_id in (2, 10, 123_456_789)]
    assert names[0] == "web-3f2a91c04b7d-b000000002-00003.zstd.parquet"
    assert names == sorted(names)
    assert all(map(is_landed, names))


def test_compacted_name_keeps_the_prefix_and_is_landed_again() -> None:
    """A merged file can be merged again."""
    name = compacted_name("00112233445566", ".zstd.parquet", "web-3f2a91c04b7d-b000000002-00003.snappy.parquet")
    assert name == "web-c001122334455-00000.zstd.parquet"
    assert is_landed(name)
    assert compacted_name("ffeeddccbbaa", ".parquet", name) == "web-cffeeddccbbaa-00000.parquet"


@pytest.mark.parametrize("name", ["part-0.parquet", "_SUCCESS", "3f2a91c04b7d-b1-00000.parquet", "a.json", ""])
def test_is_landed_leaves_others_names_alone(name: str) -> None:
    """Other files are not touched."""
    assert not is_landed(name)


def test_data_files_leaves_out_what_spark_writes_for_itself() -> None:
    """Markers and checksums are not data files."""
    names = ["/_s/part-0.zstd.parquet", "/_s/_SUCCESS", "/_s/.part-0.zstd.parquet.crc", "/_s/_temporary/0/x"]
    assert [file.path for file in data_files([StoredFile(name, 0, 0) for name in names], "/_s")] == names[:1]
    assert suffix_of(names[0]) == ".zstd.parquet"


def test_data_files_leaves_out_what_tasks_write_that_spark_gave_up() -> None:
    """Files in hidden folders are ignored, except in partitions, whatever their column is called."""
    names = [
        "/s/_hour=1/part-0.parquet",
        "/s/_temporary/0/_temporary/attempt_1/_hour=1/part-0.parquet",
        "/s/.spark-staging-1/_hour=1/part-0.parquet",
    ]
    assert [file.path for file in data_files([StoredFile(name, 0, 0) for name in names], "/s")] == names[:1]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/a/b/", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("hdfs://n:8020/a/b/", "hdfs://n:8020/a/b"),
        ("hdfs:///a", "hdfs:///a"),
        ("s3a://bucket/a/./b", "s3a://bucket/a/b"),
    ],
)
def test_absolute_path_is_the_same_for_all_spellings(text: str, path: str) -> None:
    """All spellings of a path have the same work folder."""
    assert absolute_path(text) == path
    assert is_local(path) == path.startswith("/")


def test_absolute_path_of_a_relative_one_starts_at_the_working_directory() -> None:
    """The JVM may have another working directory."""
    assert absolute_path("a b/c") == str(Path.cwd() / "a b" / "c")
    assert as_uri("/a b/100%") == "file:///a b/100%"
    assert as_pattern("/a[1]/{x,y}") == "file:///a\\[1\\]/\\{x,y\\}"


@pytest.mark.parametrize("text", ["", ".", "/", "a\0b", "s3a://bucket/", "hdfs://n/a?b=c"])
def test_absolute_path_of_a_root_is_refused(text: str) -> None:
    """A root or the working directory itself is refused."""
    with pytest.raises(ValueError, match="such as"):
        absolute_path(text)


def test_name_of_is_another_for_each_path() -> None:
    """Landings into folders of the same name have different reader ids."""
    names = {name_of(path) for path in ("/a/web", "/b/web", "s3a://x/web", "/a/w b")}
    assert len(names) == 4
    assert all(name.isascii() and " " not in name for name in names)


def test_work_folder_lies_beside_the_landed_one() -> None:
    """No pattern within the landed folder matches files of the work folder."""
    work = WorkFolder.beside("/landed/web")
    for path in (work.checkpoint, work.staging, work.batches, work.intents, work.lock, work.spark_log):
        assert path.startswith("/landed/web.landing/")


def test_file_system_of_tells_stores_apart() -> None:
    """Files cannot be renamed between file systems."""
    assert file_system_of("/a") == ""
    assert file_system_of("s3a://x/a") == file_system_of("s3a://x/b") != file_system_of("s3a://y/a")


def test_relative_to_is_what_joined_added() -> None:
    """The two functions are inverse."""
    assert relative_to(joined("/a/", "b", "c"), "/a") == "b/c"
