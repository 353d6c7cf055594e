from pathlib import Path

import pytest

from millrace_server.flume_import.hadoop import below, default_file_system, has_scheme


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("<property><name>fs.defaultFS</name><value>hdfs://nn:8020/</value></property>", "hdfs://nn:8020"),
        ("<property><name>fs.default.name</name><value> hdfs://old </value></property>", "hdfs://old"),
        ("<property><name>fs.defaultFS</name><value>file:///</value></property>", None),
        ("<property><name>io.file.buffer.size</name><value>1</value></property>", None),
        ("<broken", None),
    ],
)
def test_default_file_system_of_core_site_is_what_it_says(tmp_path: Path, content: str, found: str | None) -> None:
    """A local file system is Hadoop's own default, and never where a cluster's events belong."""
    (tmp_path / "core-site.xml").write_text(f"<configuration>{content}</configuration>")
    assert default_file_system({"HADOOP_CONF_DIR": str(tmp_path)}) == found


def test_default_file_system_without_a_configuration_is_none(tmp_path: Path) -> None:
    """Neither without the variable nor without the file."""
    assert default_file_system({}) is None
    assert default_file_system({"HADOOP_CONF_DIR": str(tmp_path)}) is None


def test_has_scheme_of_a_path_is_true_if_it_names_its_file_system() -> None:
    """HDFS without a host is the default one."""
    assert [has_scheme(path) for path in ("hdfs://nn/x", "s3://b/x", "file:///x")] == [True] * 3
    assert [has_scheme(path) for path in ("/flume/x", "flume", "hdfs:///x", "hdfs:/x")] == [False] * 4


def test_below_a_file_system_paths_keep_their_meaning() -> None:
    """A relative path is one below the user's home, as Hadoop takes it."""
    assert below("hdfs://nn", "/flume/x", "ops") == "hdfs://nn/flume/x"
    assert below("hdfs://nn", "hdfs:///flume", "ops") == "hdfs://nn/flume"
    assert below("hdfs://nn", "flume", "ops") == "hdfs://nn/user/ops/flume"
