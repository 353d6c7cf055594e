"""Spark and a server that asks for client certificates."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import millrace_client as millrace
from millrace_spark import claim_ranges
from tests.certificates import Site
from tests.conftest import StartMillraced

pytestmark = pytest.mark.spark

_COUNT = 50
_QUERY_SECONDS_MAX = 90


def test_spark_reads_and_writes_over_tls(spark: SparkSession, start_millraced: StartMillraced, tmp_path: Path) -> None:
    """A save, batch reads, and a stream from one channel into another work with the same options."""
    files = tmp_path / "tls"
    files.mkdir()
    site = Site(files)
    server = start_millraced(site.toml() + '[channels.copies]\ntype = "file"\n')
    tls = {
        "tls.ca.file": str(site.ca),
        "tls.certificate.file": str(site.client.certificate),
        "tls.key.file": str(site.client.private_key),
    }
    options = {"endpoints": server.grpc, **tls}
    rows = spark.range(_COUNT).selectExpr("cast(id as string) AS body")
    rows.write.format("millrace").options(**options, channel="orders").mode("append").save()
    read = spark.read.format("millrace").options(**options, channels="orders", startingTimestamp="0").load()
    assert {int(row.body) for row in read.select("body").collect()} == set(range(_COUNT))
    with claim_ranges(server.grpc, "orders", reader_id="nightly", tls=site.client) as claimed:
        assert claimed.load(spark).count() == _COUNT
    stream = spark.readStream.format("millrace").options(**options, channels="orders").load()
    writer = stream.writeStream.format("millrace").options(**options, channel="copies")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(_QUERY_SECONDS_MAX)
    with millrace.connect(server.grpc, tls=site.client) as client:
        queued = {info.name: info.gauges.queued_events for info in client.admin.list_channels()}
    assert queued == {"orders": 0, "copies": _COUNT}
    with pytest.raises(PySparkException, match=r"orders at .*; does it want TLS, or another certificate"):
        spark.read.format("millrace").options(endpoints=server.grpc, channels="orders").load().collect()
