"""`millraced log` on a channel whose log is in a stream of a real nats-server."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from millrace_server.channels.channel import Channel
from millrace_server.channels.config import LogChannelConfig
from millrace_server.channels.recovery import ReplayProgress
from millrace_server.channels.stream_store import StreamStores, TakeOver
from millrace_server.channels.transactions import TxnDirectory
from millrace_server.cli import app
from millrace_server.configuration.settings import load_settings
from millrace_server.replication.stream import StreamLimits
from tests.channel_events import RESPONSE_BYTES_MAX, append, begin_with_takes
from tests.stream_logs import engine_at, new_name

_STREAM_BYTES_MAX = 8 << 20


class _Stored:
    """A channel with five events, of which the first was consumed, and its configuration."""

    def __init__(self, folder: Path, url: str, **settings: str) -> None:
        self.url = url
        self.name = new_name()
        self.config = folder / "millrace.toml"
        lines = "".join(f"{key} = {value}\n" for key, value in settings.items())
        engine = f'{{ type = "jetstream", servers = ["{url}"], replicas = 1, stream_bytes_max = {_STREAM_BYTES_MAX} }}'
        self.config.write_text(f'[channels."{self.name}"]\ntype = "replicated"\n{lines}engine = {engine}\n')

    async def store(self) -> None:
        limits = load_settings(self.config).channels[self.name].log
        assert isinstance(limits, LogChannelConfig)
        async with engine_at(self.url) as engine:
            attempt = TakeOver(StreamLimits(replicas=1, stream_bytes_max=_STREAM_BYTES_MAX), "127.0.0.1:1")
            opened = await StreamStores(engine).open(self.name, limits, attempt, ReplayProgress(), _ignore)
            channel = Channel(self.name, limits, opened.store.storage, TxnDirectory(100), RESPONSE_BYTES_MAX)
            await append(channel, b"zero", b"one")
            await opened.store._checkpointing.make()
            await append(channel, b"two", b"three", b"four")
            await channel.transactions.commit([await begin_with_takes(channel, 1)], None)
            await opened.store.close()

    async def damage(self, sequence: int) -> None:
        """Deletes a message, as a fault of the engine would."""
        async with engine_at(self.url) as engine:
            stream = f"MILLRACE_{self.name.replace('.', '=')}"
            await asyncio.wrap_future(engine.call(engine.jetstream.delete_msg(stream, sequence)))

    def run(self, command: str, *arguments: str) -> Result:
        call = ["log", command, "--config", str(self.config), "--channel", self.name, *arguments]
        return CliRunner().invoke(app, call)

    def json(self, command: str, *arguments: str) -> Any:
        result = self.run(command, *arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


@pytest.fixture(params=["plain", "encrypted and compressed"])
def stored(request: pytest.FixtureRequest, tmp_path: Path, nats_url: str) -> _Stored:
    """A stored channel, in both forms."""
    settings = {}
    if request.param != "plain":
        key = tmp_path / "key"
        key.write_bytes(bytes(range(32)))
        key.chmod(0o600)
        settings = {
            "compression": '"zstd"',
            "encryption": f'{{ active_key = "first", keys = {{ first = "{key}" }} }}',
        }
    found = _Stored(tmp_path, nats_url, **settings)
    asyncio.run(found.store())
    return found


def test_verify_of_a_stream_finds_it_good(stored: _Stored) -> None:
    """With all events, its checkpoints, and the same channel from each of them."""
    report = stored.json("verify")
    assert report["is_good"]
    assert (report["channel"], report["state"]["events"], report["state"]["next_sequence"]) == (stored.name, 4, 6)
    assert [one["state"] for one in report["checkpoints"]] == ["good", "good"]
    assert stored.run("verify").stdout.endswith("Good: 4 events, next sequence 6.\n")
    assert stored.run("verify", "--no-keys").exit_code == 0


def test_verify_does_not_overtake_the_owner(stored: _Stored) -> None:
    """Nothing is appended."""

    async def last_sequence() -> int:
        async with engine_at(stored.url) as engine:
            stream = f"MILLRACE_{stored.name.replace('.', '=')}"
            info = await asyncio.wrap_future(engine.call(engine.jetstream.stream_info(stream)))
            return info.state.last_seq

    before = asyncio.run(last_sequence())
    stored.json("verify")
    stored.run("dump")
    assert asyncio.run(last_sequence()) == before


def test_dump_of_a_stream_shows_records_and_other_messages(stored: _Stored) -> None:
    """Each has the sequence of its message."""
    lines = stored.run("dump", "--json", "--bodies").stdout.splitlines()
    documents = [json.loads(line) for line in lines]
    assert documents[0]["kind"] == "STATE", "what is before the first segment that is needed was removed"
    kinds = [document["kind"] for document in documents]
    assert kinds.count("CHECKPOINT") == 2
    assert kinds.count("PUT") == 2
    last_put = next(document for document in reversed(documents) if document["kind"] == "PUT")
    assert last_put["message"]["count"] == 3
    assert len(stored.run("dump", "--from", str(last_put["segment"])).stdout.splitlines()) < len(lines)
    assert json.loads(stored.run("dump", "--state").stdout)["events"] == 4


def test_export_of_a_stream_writes_the_events_in_the_channel(stored: _Stored, tmp_path: Path) -> None:
    """The one that was consumed is not among them."""
    file = tmp_path / "events.jsonl"
    assert stored.json("export", "--to", str(file)) == {
        "events": 4,
        "sequences_lost": [],
        "sequences_bound_from": None,
        "sequences_redelivered": [],
    }
    assert [json.loads(line)["body"] for line in file.read_text().splitlines()] == ["one", "two", "three", "four"]
    assert stored.run("export", "--to", str(file)).exit_code == 2


def test_verify_of_a_stream_that_lacks_a_message_says_which(stored: _Stored) -> None:
    """It exits as it does for damaged files."""
    documents = [json.loads(line) for line in stored.run("dump", "--json").stdout.splitlines()]
    lost = [document["segment"] for document in documents if document["kind"] == "PUT"][-1]
    asyncio.run(stored.damage(lost))
    result = stored.run("verify")
    assert result.exit_code == 1
    assert f"message {lost + 1}: begins with LSN" in result.stderr
    assert "messages before it are missing" in result.stderr
    assert "Damaged" in result.stdout


def test_verify_of_a_stream_without_its_key_says_which_is_missing(tmp_path: Path, nats_url: str) -> None:
    """Checksums can be compared all the same."""
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    stored = _Stored(tmp_path, nats_url, encryption=f'{{ active_key = "first", keys = {{ first = "{key}" }} }}')
    asyncio.run(stored.store())
    text = stored.config.read_text()
    stored.config.write_text("".join(line for line in text.splitlines(keepends=True) if "encryption" not in line))
    result = stored.run("verify")
    assert result.exit_code == 3
    assert "give it with --key first=FILE" in result.stderr
    assert stored.run("verify", "--key", f"first={key}").exit_code == 0
    assert "for which key first would be needed" in stored.run("verify", "--no-keys").stdout


def test_verify_of_no_stream_or_no_engine_says_so(
    tmp_path: Path, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel that no server has owned yet has none."""
    result = _Stored(tmp_path, nats_url).run("verify")
    assert result.exit_code == 1
    assert "stream not found; a channel has one once a server has owned it" in result.stderr
    monkeypatch.setattr("millrace_server.replication.engine._CONNECT_SECONDS", 0.2)
    result = _Stored(tmp_path, "nats://127.0.0.1:1").run("verify")
    assert result.exit_code == 3
    assert "none of nats://127.0.0.1:1 can be used" in result.stderr


def test_repair_of_a_stream_is_refused(stored: _Stored) -> None:
    """Its log is in no files."""
    result = stored.run("repair")
    assert result.exit_code == 2
    assert "is of type replicated, which has no files" in result.stderr


def _ignore(_change: str) -> None:
    """A server would log it."""
