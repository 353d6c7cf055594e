"""A streaming query of Spark on a replicated channel whose owner is killed."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import millrace_client as millrace
from tests.conftest import StartMillraced
from tests.integration.replicated_servers import SHORT_LEASE_SECONDS, ReplicatedServers
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

_EVENTS = 400


@pytest.mark.timeout(600)
def test_stream_when_the_owner_is_killed_goes_on_and_lands_each_event_once(
    spark: SparkSession, start_millraced: StartMillraced, nats_url: str, tmp_path: Path
) -> None:
    """Its claim and its checkpoint hold at the next owner; the channel is one shard, though two servers share it."""
    servers = ReplicatedServers(start_millraced, nats_url, 2, SHORT_LEASE_SECONDS)
    owner, [other] = servers.roles()
    options = {"endpoints": f"{other.grpc},{owner.grpc}", "channels": servers.channel, "maxEventsPerTrigger": "100"}
    events = spark.readStream.format("millrace").options(**options).load()
    writer = events.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(processingTime="0 seconds")
    bodies = [b"%d" % number for number in range(2 * _EVENTS)]
    with millrace.connect(other.grpc, timeout_seconds=60.0) as client:
        channel = client.channel(servers.channel)
        channel.append(bodies[:_EVENTS])
        query = writer.start()
        try:
            wait_until(lambda: client.admin.get_channel(servers.channel).gauges.queued_events < _EVENTS)
            owner.kill()
            channel.append(bodies[_EVENTS:])
            wait_until(lambda: client.admin.get_channel(servers.channel).gauges.queued_events == 0)
        finally:
            query.stop()
        assert query.exception() is None
    rows = spark.read.schema("sequence long, body binary").parquet(str(tmp_path / "out")).orderBy("sequence").collect()
    assert [(row.sequence, bytes(row.body)) for row in rows] == list(enumerate(bodies, start=1))
