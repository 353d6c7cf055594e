"""The configuration and the commands of docs/replicated.md, run with two servers and a node of the engine."""

import shlex
from pathlib import Path

import nats
import pytest

import millrace_client as millrace
from tests.conftest import StartMillraced
from tests.fenced_blocks import blocks_of
from tests.millrace_program import run_millrace
from tests.millraced import Millraced, run_millraced
from tests.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "replicated.md"

_CHANNEL = "orders"
_EVENTS = [b"%d" % number for number in range(100)]


class _Site:
    """Two servers with the configuration of the page, which can be started again."""

    def __init__(self, start: StartMillraced, nats_url: str) -> None:
        (block,) = blocks_of(PAGE, "server")
        servers, monitoring = (line for line in block.splitlines() if line.startswith(("servers =", "monitoring_urls")))
        one_node = block.replace(servers, f'servers = ["{nats_url}"]').replace(monitoring + "\n", "")
        one_node = one_node.replace("replicas = 3", "replicas = 1").replace(
            "lease_seconds = 15.0", "lease_seconds = 2.0"
        )
        # The tests' own address is where they listen.
        self.toml = one_node.replace('advertise = "millrace-1.example:7070"\n', "")
        self._start = start
        self.servers: list[Millraced] = []

    def start(self) -> None:
        """Starts both servers."""
        self.servers = [self._start(self.toml) for _ in range(2)]

    def stop(self) -> None:
        """Stops both servers."""
        for server in self.servers:
            assert server.stop() == 0

    def states(self) -> set[millrace.ChannelState]:
        """The states of the channel at both."""
        found: set[millrace.ChannelState] = set()
        for server in self.servers:
            with millrace.connect(server.grpc) as client:
                found.update(info.state for info in client.admin.list_channels())
        return found

    def faults(self) -> list[str]:
        """What both have logged as faults."""
        return [entry.get("error", "") for server in self.servers for entry in server.faults]

    def until_opened(self) -> None:
        """Waits until one serves the channel, and the other stands by."""
        wait_until(lambda: self.states() == {millrace.ChannelState.OPEN, millrace.ChannelState.STANDING_BY})

    def queued(self) -> list[bytes]:
        """The events of the channel."""
        with millrace.connect(self.servers[0].grpc) as client:
            return [body for batch in client.channel(_CHANNEL).peek(max_events=1_000) for body in batch.bodies()]


@pytest.fixture
def site(start_millraced: StartMillraced, nats_url: str) -> _Site:
    """Two servers, the channel of which is open and holds some events."""
    site = _Site(start_millraced, nats_url)
    site.start()
    site.until_opened()
    with millrace.connect(site.servers[0].grpc) as client:
        client.admin.purge_channel(_CHANNEL)
        client.channel(_CHANNEL).append(_EVENTS)
    return site


def test_channel_is_moved_by_the_commands_of_the_page(site: _Site) -> None:
    """The table of both servers shows who owns it, before and after."""
    (block,) = blocks_of(PAGE, "move")
    show, move = block.splitlines()
    with millrace.connect(site.servers[0].grpc) as client:
        [info] = client.admin.list_channels()
    one, other = (server.grpc for server in site.servers)
    former, target = (other, one) if info.owner else (one, other)
    names = {"millrace-1.example:7070": former, "millrace-2.example:7070": target}
    shown = []
    for command in (show, move, show):
        words = [names.get(word, word) for word in shlex.split(command)]
        ran = run_millrace(former, *words[1:])
        assert ran.returncode == 0, ran.stderr
        shown.append(ran.stdout.decode())
    owners = [former in shown[0], target in shown[0], former in shown[2], target in shown[2]]
    assert owners == [True, False, False, True]
    assert site.queued() == _EVENTS


def test_log_is_read_by_the_commands_of_the_page(site: _Site, tmp_path: Path) -> None:
    """While the servers run, and with all events that the channel holds."""
    (tmp_path / "millrace.toml").write_text(site.toml)
    (block,) = blocks_of(PAGE, "verify")
    verify, export = map(shlex.split, block.splitlines())
    config = str(tmp_path / "millrace.toml")
    for words in (verify, export):
        words[words.index("millrace.toml")] = config
        ran = run_millraced(*words[1:], cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
    assert len((tmp_path / "orders.jsonl").read_text().splitlines()) == len(_EVENTS)


async def test_stream_that_is_lost_is_not_created_again_until_an_operator_accepts_it(
    site: _Site, nats_url: str
) -> None:
    """The channel is CORRUPT, until what the bucket knows of it is removed, as the page says."""
    site.stop()
    engine = await nats.connect(nats_url)
    try:
        jetstream = engine.jetstream()
        await jetstream.delete_stream(f"MILLRACE_{_CHANNEL}")
        site.start()
        wait_until(lambda: millrace.ChannelState.CORRUPT in site.states())
        wait_until(lambda: any("is missing, and the channel had one" in fault for fault in site.faults()))
        site.stop()
        assert f"`nats stream rm MILLRACE_{_CHANNEL}` and `nats kv del MILLRACE_OWNERS {_CHANNEL}`" in PAGE.read_text()
        await (await jetstream.key_value("MILLRACE_OWNERS")).delete(_CHANNEL)
        site.start()
        site.until_opened()
        assert site.queued() == []
    finally:
        await engine.close()


def test_channel_is_migrated_by_the_command_of_the_page(
    site: _Site, start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """Into the engine with its events, and back with the files exchanged."""
    site.stop()
    files = site.toml.replace('type = "replicated"', 'type = "file"').partition("[server.engine]")[0]
    files += "[channels.orders]" + site.toml.partition("[channels.orders]")[2].replace('"replicated"', '"file"')
    data_dir = tmp_path / "data"
    for name, toml in (("before.toml", site.toml), ("after.toml", files)):
        (tmp_path / name).write_text(toml.replace("[server]\n", f'[server]\ndata_dir = "{data_dir}"\n'))
    (block,) = blocks_of(PAGE, "migrate")
    words = [str(tmp_path / word) if word.endswith(".toml") else word for word in shlex.split(block)]
    out = run_millraced(*words[1:])
    assert out.returncode == 0, out.stderr
    server = start_millraced(files, data_dir=data_dir)
    with millrace.connect(server.grpc) as client:
        wait_until(lambda: client.admin.get_channel(_CHANNEL).state is millrace.ChannelState.OPEN)
        with client.channel(_CHANNEL).transaction() as txn:
            assert [event.body for batch in txn.take(10) for event in batch] == _EVENTS[:10]
    assert server.stop() == 0
    words[words.index("--from") + 1], words[words.index("--to") + 1] = words[-1], words[words.index("--from") + 1]
    back = run_millraced(*words[1:])
    assert back.returncode == 0, back.stderr
    site.start()
    site.until_opened()
    assert site.queued() == _EVENTS[10:]
