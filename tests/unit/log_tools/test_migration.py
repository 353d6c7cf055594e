"""`millraced migrate`: channels that move between files and a stream of a real nats-server, also when it is killed."""

import asyncio
import inspect
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_file import ChannelFile, ChannelIdentity, ChannelMovedError
from millrace_server.channels.file_store import FileStores
from millrace_server.channels.log_store import LogStore
from millrace_server.channels.recovery import ReplayProgress
from millrace_server.channels.stamps import Stamp
from millrace_server.channels.stream_store import StreamStores, TakeOver
from millrace_server.channels.transactions import TxnDirectory
from millrace_server.cli import app
from millrace_server.configuration.settings import load_settings
from millrace_server.log_tools import log_copy, migration
from millrace_server.replication.engine import EngineError
from millrace_server.replication.lease_bucket import JetStreamBucket
from millrace_server.replication.owner_entries import Holder, Member, channel_key, session_key
from millrace_server.replication.stream import Stream, StreamLimits
from millrace_server.replication.stream_reading import MigratingError
from millrace_server.wal.disk import OsDisk
from tests.channel_events import RESPONSE_BYTES_MAX, append, begin_with_takes, numbered, times_of
from tests.stream_logs import engine_at, new_name

_STREAM_BYTES_MAX = 8 << 20
_LIMITS = StreamLimits(replicas=1, stream_bytes_max=_STREAM_BYTES_MAX)

Contents = dict[str, Any]
"""What must be the same after a migration."""


class _KilledError(BaseException):
    """The process ends here."""


class _Site:
    """A channel that has a file of each type, and is in one of both places."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.name = new_name()
        self.home = folder / "data" / "channels" / self.name
        self.files, self.stream = folder / "files.toml", folder / "stream.toml"
        server = f'[server]\ndata_dir = "{folder / "data"}"\n[channels."{self.name}"]\n'
        engine = f'{{ type = "jetstream", servers = ["{url}"], replicas = 1, stream_bytes_max = {_STREAM_BYTES_MAX} }}'
        self.files.write_text(f'{server}type = "file"\nmin_free_bytes = 0\n')
        self.stream.write_text(f'{server}type = "replicated"\nengine = {engine}\n')

    def migrate(self, source: Path, target: Path) -> Result:
        return CliRunner().invoke(app, ["migrate", self.name, "--from", str(source), "--to", str(target)])

    def into_stream(self) -> Result:
        return self.migrate(self.files, self.stream)

    def into_files(self) -> Result:
        return self.migrate(self.stream, self.files)

    async def fill(self) -> None:
        """Stores events, stamps, ended transactions and a claim in files, and consumes some in the middle."""
        async with _Opened.files(self) as opened:
            for number in range(10):
                await append(
                    opened.channel, b"a%d" % number, b"b%d" % number, stamp=Stamp("p", 2 * number, 2 * number + 1)
                )
            await opened.channel.transactions.commit([await begin_with_takes(opened.channel, 3)], None)
            txn_id = opened.channel.transactions.begin("mine", None)[0]
            opened.channel.transactions.rollback(txn_id)
            await opened.channel.claim("reader", 60.0, takeover=False)

    async def contents_of_files(self) -> Contents:
        async with _Opened.files(self) as opened:
            return opened.contents()

    async def contents_of_stream(self) -> Contents:
        async with engine_at(self.url) as engine:
            config = load_settings(self.stream).channels[self.name].log
            assert config is not None
            found = await StreamStores(engine).open(
                self.name, config, TakeOver(_LIMITS, "127.0.0.1:1"), ReplayProgress(), _ignore
            )
            channel = Channel(self.name, config, found.store.storage, TxnDirectory(100), RESPONSE_BYTES_MAX)
            contents = _Opened(found.store, channel).contents()
            await found.store.close()
            return contents

    def is_in_files(self) -> bool:
        """Whether a server with the first file would open the channel."""
        file = ChannelFile.read(self.home)
        return file is not None and not file.moved_to

    def is_in_stream(self) -> bool:
        """Whether a server with the second file would open the channel."""

        async def find() -> bool:
            async with engine_at(self.url) as engine:
                stream = Stream(engine, self.name, _LIMITS)
                try:
                    return not (await asyncio.wrap_future(engine.call(stream.state()))).migration
                except EngineError:
                    return False

        return asyncio.run(find())


class _Opened:
    """An open channel."""

    def __init__(self, store: LogStore, channel: Channel) -> None:
        self.store = store
        self.channel = channel

    @classmethod
    def files(cls, site: _Site) -> "_OpenedFiles":
        return _OpenedFiles(site)

    def contents(self) -> Contents:
        batches = sorted(self.channel._contents.held_batches(), key=lambda batch: batch.first_sequence)
        storage = self.store.storage
        return {
            "events": numbered(batches),
            "times": times_of(batches),
            "stamps": {name: list(pairs) for name, pairs in storage.contents.ledger.producers()},
            "next": storage.contents.next_sequence,
            "ended": [(txn_id, outcome) for txn_id, outcome in storage.ended.items()],
            "claim": storage.claim,
            "channel_id": storage.channel_id,
            "epochs_from": storage.epochs_from,
        }


class _OpenedFiles:
    def __init__(self, site: _Site) -> None:
        self._site = site

    async def __aenter__(self) -> _Opened:
        config = load_settings(self._site.files).channels[self._site.name].on_disk
        assert config is not None
        stores = FileStores(self._site.home.parent, OsDisk())
        store = await stores.open(self._site.name, config, ReplayProgress(), _ignore)
        channel = Channel(self._site.name, config, store.storage, TxnDirectory(100), RESPONSE_BYTES_MAX)
        self._opened = _Opened(store, channel)
        return self._opened

    async def __aexit__(self, *_error: object) -> None:
        await self._opened.store.close()


@pytest.fixture
def site(tmp_path: Path, nats_url: str) -> _Site:
    """A channel in files."""
    found = _Site(tmp_path, nats_url)
    asyncio.run(found.fill())
    return found


def test_migrate_there_and_back_keeps_all_that_belongs_to_the_channel(site: _Site) -> None:
    """And at each time one of the two places has the channel."""
    before = asyncio.run(site.contents_of_files())
    assert len(before["events"]) == 17
    result = site.into_stream()
    assert result.exit_code == 0, result.output
    assert result.stdout == f"Moved channel {site.name} with 17 events to MILLRACE_{site.name.replace('.', '=')}.\n"
    assert (site.is_in_files(), site.is_in_stream()) == (False, True)
    assert site.home.with_name(f"{site.name}.migrated").exists()
    assert asyncio.run(site.contents_of_stream()) == before
    result = site.into_files()
    assert result.exit_code == 0, result.output
    assert (site.is_in_files(), site.is_in_stream()) == (True, False)
    assert asyncio.run(site.contents_of_files()) == before
    with pytest.raises(MigratingError, match="moved to files"):
        asyncio.run(site.contents_of_stream())
    assert site.into_stream().exit_code == 0
    assert asyncio.run(site.contents_of_stream()) == before


def test_open_files_of_a_channel_that_was_migrated_is_refused(site: _Site) -> None:
    """A server with the former file says where it is, as do tools: an empty channel would divide its events."""
    assert site.into_stream().exit_code == 0
    moved = "was moved to stream MILLRACE_{}; ".format(site.name.replace(".", "="))
    with pytest.raises(ChannelMovedError, match=moved):
        asyncio.run(site.contents_of_files())
    result = CliRunner().invoke(app, ["log", "verify", "--config", str(site.files), "--channel", site.name])
    assert (result.exit_code, moved in result.stderr) == (3, True), result.output
    assert site.into_stream().exit_code == 0, "it was finished"
    assert sorted(path.name for path in site.home.parent.iterdir()) == [site.name, f"{site.name}.migrated"]
    assert site.into_files().exit_code == 0
    assert sorted(path.name for path in site.home.parent.iterdir()) == [site.name, f"{site.name}.migrated"]


def test_migrate_of_a_channel_in_several_directories_marks_each_and_back_removes_the_marks(
    tmp_path: Path, nats_url: str
) -> None:
    """Any of them that is left tells where the channel is."""
    site = _Site(tmp_path, nats_url)
    one, two, checkpoints = (tmp_path / name for name in ("one", "two", "checkpoints"))
    places = f'data_dirs = ["{one}", "{two}"]\ncheckpoint_dir = "{checkpoints}"\n'
    site.files.write_text(site.files.read_text() + places)
    asyncio.run(site.fill())
    before = asyncio.run(site.contents_of_files())
    assert site.into_stream().exit_code == 0
    files = [ChannelFile.read(place / site.name) for place in (one, two, checkpoints)]
    assert all(file is not None and file.moved_to for file in files)
    with pytest.raises(ChannelMovedError):
        asyncio.run(site.contents_of_files())
    assert site.into_files().exit_code == 0
    assert asyncio.run(site.contents_of_files()) == before


def test_migrate_into_files_where_another_channel_was_moved_is_refused(site: _Site) -> None:
    """Its mark is for the operator to remove."""
    assert site.into_stream().exit_code == 0
    file = ChannelFile.read(site.home)
    assert file is not None
    replace(file, identity=ChannelIdentity.make(site.name)).write(site.home)
    result = site.into_files()
    assert (result.exit_code, "was moved to stream" in result.stderr) == (3, True), result.output
    assert (site.is_in_files(), site.is_in_stream()) == (False, True)


_STEPS = (
    (Stream, "create"),
    (Stream, "mark"),
    (Stream, "delete"),
    (migration, "_rename"),
    (JetStreamBucket, "write"),
    (log_copy, "_submit"),
)
"""What changes something."""


@contextmanager
def _killed_at(count: int) -> Iterator[list[str]]:
    """Ends the process at a change, before it happens where the number is even, else behind it."""
    done: list[str] = []

    def wrapped(original: Any, name: str) -> Any:
        def check(*, is_behind: bool) -> None:
            if 2 * len(done) + is_behind == count:
                raise _KilledError
            if is_behind:
                done.append(name)

        async def step(*args: Any, **options: Any) -> Any:
            check(is_behind=False)
            result = await original(*args, **options)
            check(is_behind=True)
            return result

        def plain(*args: Any, **options: Any) -> Any:
            check(is_behind=False)
            result = original(*args, **options)
            check(is_behind=True)
            return result

        return step if inspect.iscoroutinefunction(original) else plain

    with pytest.MonkeyPatch.context() as patching:
        for owner, name in _STEPS:
            patching.setattr(owner, name, wrapped(getattr(owner, name), name))
        yield done


@pytest.mark.parametrize("direction", ["into a stream", "into files"])
def test_migrate_that_was_killed_is_finished_by_another_run(tmp_path: Path, nats_url: str, direction: str) -> None:
    """Wherever it was: no two places can be opened meanwhile, and nothing is lost."""
    back = direction == "into files"
    for count in range(100):
        folder = tmp_path / str(count)
        folder.mkdir()
        site = _Site(folder, nats_url)
        asyncio.run(site.fill())
        before = asyncio.run(site.contents_of_files())
        migrate = site.into_stream
        if back:
            assert site.into_stream().exit_code == 0
            migrate = site.into_files
        with _killed_at(count):
            try:
                was_killed = isinstance(migrate().exception, _KilledError)
            except _KilledError:
                was_killed = True
        assert not (site.is_in_files() and site.is_in_stream()), count
        if not was_killed:
            assert count >= 8, "each step was one"
            return
        # Where it had been finished, another run says so.
        result = migrate()
        assert result.exit_code == 0, (count, result.output)
        contents = site.contents_of_files if back else site.contents_of_stream
        assert asyncio.run(contents()) == before, count
        assert not (site.is_in_files() and site.is_in_stream()), count
    raise AssertionError("it never ended")


def test_migrate_of_a_channel_that_a_server_uses_is_refused(site: _Site) -> None:
    """Nothing is changed."""

    async def migrate() -> Result:
        async with _Opened.files(site):
            return await asyncio.to_thread(site.into_stream)

    result = asyncio.run(migrate())
    assert result.exit_code == 3
    assert "another channel or server" in result.stderr
    assert (site.is_in_files(), site.is_in_stream()) == (True, False)


def test_migrate_of_a_stream_whose_owner_lives_is_refused(site: _Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that has not renewed its lease for the longest that leases may be does not count, whatever it wrote."""
    assert site.into_stream().exit_code == 0

    async def own(*, lives: bool) -> Result:
        async with engine_at(site.url) as engine:
            bucket = await JetStreamBucket.opened(engine, 1)
            key, session = channel_key(site.name), session_key(site.name)
            entry = await bucket.read(key)
            holder = Holder(session=site.name, address="server-1:7070").encoded()
            await bucket.write(key, holder, entry.revision if entry else 0)
            # The one that lives never misses its lease; the lease of the other claims to last for decades.
            member = Member("server-1:7070", 60.0 if lives else 1e9, [site.name]).encoded()
            revision = await bucket.write(session, member, 0 if lives else (await bucket.read(session)).revision)  # type: ignore[union-attr] # it was written
            migrating = asyncio.ensure_future(asyncio.to_thread(site.into_files))
            while lives and not migrating.done():
                revision = await bucket.write(session, member, revision)
                await asyncio.sleep(0.1)
            return await migrating

    result = asyncio.run(own(lives=True))
    assert result.exit_code == 3
    assert f"the server at server-1:7070 owns channel {site.name}" in result.stderr
    assert site.is_in_stream()
    monkeypatch.setattr("millrace_server.replication.owner_entries.LEASE_SECONDS_MAX", 1.0)
    assert asyncio.run(own(lives=False)).exit_code == 0


def test_migrate_where_both_places_have_a_channel_is_refused(site: _Site) -> None:
    """Neither is given up unseen."""
    assert site.into_stream().exit_code == 0
    shutil.rmtree(site.home)
    asyncio.run(site.fill())
    result = site.into_stream()
    assert result.exit_code == 2
    assert "exists; delete its channel" in result.stderr
    result = site.into_files()
    assert result.exit_code == 2
    assert "does not hold the channel of stream" in result.stderr
    assert (site.is_in_files(), site.is_in_stream()) == (True, True), "as before"


def test_migrate_to_an_engine_that_does_not_respond_says_so_in_one_sentence(
    site: _Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection's own attempts are not for people."""
    monkeypatch.setattr("millrace_server.replication.engine._CONNECT_SECONDS", 0.6)
    site.stream.write_text(site.stream.read_text().replace(site.url, "nats://127.0.0.1:1"))
    result = site.into_stream()
    assert result.exit_code == 3
    assert len(result.output.splitlines()) == 1, result.output
    assert "none of nats://127.0.0.1:1 can be used" in result.output


def test_migrate_into_a_stream_that_is_too_small_names_the_setting_and_what_is_needed(site: _Site) -> None:
    """With a larger one, another run moves the channel."""

    async def fill() -> None:
        async with _Opened.files(site) as opened:
            for _ in range(10):
                await append(opened.channel, bytes(600 << 10))

    asyncio.run(fill())
    before = asyncio.run(site.contents_of_files())
    config = site.stream.read_text()
    site.stream.write_text(config.replace(str(_STREAM_BYTES_MAX), "4194304"))
    result = site.into_stream()
    assert result.exit_code == 2, result.output
    assert re.search(
        r"stream_bytes_max is 4194304, and the events alone need 61\d{5} bytes; set it to at least 92\d{5}: .*maximum "
        r"bytes exceeded",
        result.stderr,
    ), result.output
    assert (site.is_in_files(), site.is_in_stream()) == (True, False)
    site.stream.write_text(config.replace(str(_STREAM_BYTES_MAX), "16777216"))
    assert site.into_stream().exit_code == 0
    assert asyncio.run(site.contents_of_stream()) == before


def test_migrate_between_two_files_of_one_type_is_refused(site: _Site) -> None:
    """It says which type each file has."""
    result = site.migrate(site.files, site.files)
    assert result.exit_code == 2
    assert "is of type file in" in result.stderr


def test_migrate_of_a_damaged_channel_is_refused(site: _Site) -> None:
    """What cannot be read is not left behind in silence."""
    [segment] = site.home.glob("segment-*.log")
    content = bytearray(segment.read_bytes())
    content[200] ^= 1
    segment.write_bytes(content)
    for checkpoint in site.home.glob("checkpoint*"):
        checkpoint.unlink()
    result = site.into_stream()
    assert result.exit_code == 1
    assert "repair the channel first" in result.stderr
    assert site.is_in_files()


def _ignore(_change: str) -> None:
    """A server would log it."""
