"""Spark and a server that asks for client certificates and tokens."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import millrace_client as millrace
from millrace_server.access.tokens import make_token
from millrace_spark import claim_ranges
from tests.certificates import Site
from tests.conftest import StartMillraced
from tests.fenced_blocks import blocks_of

pytestmark = pytest.mark.spark

README = Path(__file__).parents[2] / "spark_connector" / "README.md"
_COUNT = 50
_RIGHTS = '["append:*", "read:orders", "describe:*"]'
"""All that jobs need which read orders and write anywhere."""
_QUERY_SECONDS_MAX = 90


def test_spark_reads_and_writes_over_tls_with_a_token(
    spark: SparkSession, spark_events: Path, start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """A save, batch reads, and a stream into another channel work with the same options; nothing shows the token."""
    files = tmp_path / "tls"
    files.mkdir()
    site = Site(files)
    token = make_token(tmp_path / "tokens", "job")
    (tmp_path / "token").write_text(token)
    auth = f'auth.tokens_file = "{tmp_path}/tokens"\nroles.job.allow = {_RIGHTS}\nidentities.job.roles = ["job"]\n'
    server = start_millraced(auth + site.toml() + '[channels.copies]\ntype = "file"\n')
    tls = {
        "tls.ca.file": str(site.ca),
        "tls.certificate.file": str(site.client.certificate),
        "tls.key.file": str(site.client.private_key),
    }
    options = {"endpoints": server.grpc, "token": token, **tls}
    rows = spark.range(_COUNT).selectExpr("cast(id as string) AS body")
    rows.write.format("millrace").options(**options, channel="orders").mode("append").save()
    reader = spark.read.format("millrace").options(**options, channels="orders", readerId="nightly")
    read = reader.option("startingTimestamp", "0").load()
    assert {int(row.body) for row in read.select("body").collect()} == set(range(_COUNT))
    with claim_ranges(server.grpc, "orders", reader_id="nightly", tls=site.client, token=token) as claimed:
        assert claimed.load(spark).count() == _COUNT
    by_file = {"endpoints": server.grpc, "token.file": str(tmp_path / "token"), **tls}
    stream = (
        spark.readStream.format("millrace").options(**by_file, channels="orders", maxEventsPerTrigger=_COUNT - 1).load()
    )
    writer = stream.writeStream.format("millrace").options(**options, channel="copies")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(_QUERY_SECONDS_MAX)
    [documented] = blocks_of(README, "tls")
    placed = {"ca.pem": site.ca, "client.pem": site.client.certificate, "client.key": site.client.private_key}
    for theirs, ours in {**placed, "token": tmp_path / "token"}.items():
        documented = documented.replace(f"/etc/millrace/{theirs}", str(ours))
    described: dict[str, Any] = {"spark": spark}
    exec(documented.replace("mill-1:7070", server.grpc), described)  # noqa: S102 - the README's own program
    assert described["events"].isStreaming
    with millrace.connect(server.grpc, tls=site.client, token=token) as client:
        queued = {info.name: info.gauges.queued_events for info in client.admin.list_channels()}
    assert queued == {"orders": 0, "copies": _COUNT}
    with pytest.raises(PySparkException, match=r"orders at .*; does it require TLS, or another client"):
        spark.read.format("millrace").options(endpoints=server.grpc, channels="orders").load().collect()
    with pytest.raises(PySparkException, match=r"the token is not valid; .* by the option token.file") as refused:
        spark.read.format("millrace").options(**{**options, "token": token[:-1]}, channels="orders").load().collect()
    plans = [str(frame._jdf.queryExecution()) for frame in (read, stream)]
    assert "redacted" in plans[1]
    assert token[:-1] not in "".join([*plans, str(query.recentProgress), str(refused.value)])
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    written = [file.read_bytes() for folder in (spark_events, tmp_path / "checkpoint") for file in files_below(folder)]
    assert any(b"redacted" in content for content in written)
    assert not any(token[:-1].encode() in content for content in written)


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
