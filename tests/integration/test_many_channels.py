"""Hundreds of file channels in one server: they share threads, and none is lost or forgotten."""

import asyncio
from collections.abc import Iterable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from millrace.v1 import admin_service_pb2
from tests.conftest import StartMillraced
from tests.millraced import Millraced
from tests.process_figures import thread_count
from tests.rpc import Rpc, connected, seconds

OPEN = admin_service_pb2.CHANNEL_STATE_OPEN
NAMES = [f"c{number:03}" for number in range(200)]
TOML = "".join(f'[channels.{name}]\ntype = "file"\nmin_free_bytes = 0\n' for name in NAMES)
THREADS_MAX = 64


async def _opened(rpc: Rpc) -> dict[str, admin_service_pb2.Channel]:
    """All channels by name, once all are open."""
    request = admin_service_pb2.WatchChannelsRequest(interval=seconds(0.1))
    async for response in rpc.admin.WatchChannels(request):
        if all(channel.state == OPEN for channel in response.channels):
            return {channel.name: channel for channel in response.channels}
    raise AssertionError("the stream has ended")


def _queued(channels: dict[str, admin_service_pb2.Channel]) -> dict[str, int]:
    return {name: channel.gauges.queued_events for name, channel in channels.items()}


def _scrape(server: Millraced, accept: str) -> str:
    with closing(HTTPConnection(server.http, timeout=60)) as connection:
        connection.request("GET", "/metrics", headers={"Accept": accept})
        return connection.getresponse().read().decode()


def _contents(data_dir: Path) -> dict[Path, bytes]:
    """The files of the channels, without what is preallocated in their logs."""
    files = (path for path in (data_dir / "channels").rglob("*") if path.is_file() and path.name != "lock")
    return {path: path.read_bytes().rstrip(b"\0") for path in files}


def _samples(families: Iterable[Metric]) -> dict[tuple[str, str], float]:
    """The samples of channels by name and channel."""
    samples = (sample for family in families for sample in family.samples if set(sample.labels) == {"channel"})
    return {(sample.name, sample.labels["channel"]): sample.value for sample in samples}


async def test_appends_to_hundreds_of_channels_share_threads_and_survive_a_kill(
    start_millraced: StartMillraced,
) -> None:
    """Each channel stores what it is sent, at the same time as the others, on fewer threads than there are channels."""
    server = start_millraced(TOML)
    async with connected(server.grpc) as rpc:
        await _opened(rpc)
        for _ in range(3):
            await asyncio.gather(*[rpc.append(name, b"a") for name in NAMES])
            assert thread_count(server.process.pid) <= THREADS_MAX
    server.kill()
    again = start_millraced(TOML, server.data_dir)
    async with connected(again.grpc) as rpc:
        assert _queued(await _opened(rpc)) == dict.fromkeys(NAMES, 3)
        assert thread_count(again.process.pid) <= THREADS_MAX
    assert again.stop() == 0


async def test_metrics_of_hundreds_of_channels_tell_each_in_both_formats(start_millraced: StartMillraced) -> None:
    """Every channel has every sample, and the parsers of both formats read them alike."""
    server = start_millraced(TOML)
    async with connected(server.grpc) as rpc:
        await _opened(rpc)
        await asyncio.gather(*[rpc.append(name, b"body") for name in NAMES[:100]])
        plain = await asyncio.to_thread(_scrape, server, "text/plain")
        openmetrics = await asyncio.to_thread(_scrape, server, "application/openmetrics-text; version=1.0.0")
    samples, again = _samples(plain_families(plain)), _samples(open_families(openmetrics))  # type: ignore[no-untyped-call] # the library's
    # A mark of what is synced, or a checkpoint, may have been written meanwhile.
    of_logs = {f"millrace_channel_{name}" for name in ("log_bytes", "segments", "replay_bytes")}
    same = {key: value for key, value in samples.items() if key[0] not in of_logs and key in again}
    assert all(again[key] == value for key, value in same.items())
    of_all = {name for name, channel in samples if channel == NAMES[-1]}
    assert len(of_all) > 20
    assert {key for key in samples if key[0] in of_all} == {(name, channel) for name in of_all for channel in NAMES}
    assert {key for key in again if key[0] in of_all} == {key for key in samples if key[0] in of_all}
    # The others are those of channels that were used.
    assert {channel for name, channel in samples if name not in of_all} == set(NAMES[:100])
    stored = [samples["millrace_channel_put_successes_total", name] for name in NAMES]
    assert stored == [1.0] * 100 + [0.0] * 100
    assert openmetrics.count("# EOF\n") == 1


async def test_restart_of_unused_channels_writes_nothing(start_millraced: StartMillraced) -> None:
    """Channels that are only opened and closed again leave their files as they were."""
    server = start_millraced(TOML)
    async with connected(server.grpc) as rpc:
        await _opened(rpc)
        await asyncio.gather(*[rpc.append(name, b"a") for name in NAMES[:100]])
    assert server.stop() == 0
    before = _contents(server.data_dir)
    again = start_millraced(TOML, server.data_dir)
    async with connected(again.grpc) as rpc:
        assert sum(_queued(await _opened(rpc)).values()) == 100
    assert again.stop() == 0
    assert _contents(server.data_dir) == before
