"""The way from deliveries to finished files, without a sink."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fsspec
import pytest

from millrace_server.agent.sinks.files.event_files import EventFiles
from millrace_server.agent.supervision import ComponentError, ComponentFailedError
from tests.files_sink import (
    SINK,
    config_of,
    files_below,
    lines_below,
    make_event_files,
    raw_of,
    rows_of,
    unfinished_below,
)

CHANNEL_ID = "c0ffee" * 5
MakeStore = Callable[..., EventFiles]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The directory for finished files."""
    path = tmp_path / "out"
    path.mkdir()
    return path


@pytest.fixture
def open_store(tmp_path: Path, out: Path) -> Iterator[MakeStore]:
    """Opens a store with these settings, by default for files below `out`; closes all files at the end."""
    with ExitStack() as opened:

        def open_one(path: str = "", **settings: Any) -> EventFiles:
            store = make_event_files(config_of(out / path, **settings), tmp_path / "state")
            opened.callback(store.close)
            store.open()
            return store

        yield open_one


def _batch(first_sequence: int, count: int, **headers: str) -> tuple[int, bytes]:
    sequences = range(first_sequence, first_sequence + count)
    return first_sequence, raw_of(rows_of((str(sequence).encode() for sequence in sequences), **headers))


def _numbers(out: Path) -> list[int]:
    return sorted(int(line) for line in lines_below(out))


def test_write_until_finished_shows_nothing(open_store: MakeStore, out: Path) -> None:
    """A reader never sees an incomplete file."""
    store = open_store()
    progress = store.write(1, CHANNEL_ID, [_batch(1, 10)], now=0.0)
    assert progress.completed == []
    assert files_below(out) == []
    assert len(unfinished_below(out)) == 1
    assert store.finish_all().completed == [1]
    assert _numbers(out) == list(range(1, 11))
    assert unfinished_below(out) == []


def test_finished_file_is_named_after_its_events(open_store: MakeStore, out: Path) -> None:
    """The name has the sink, the channel, and the first and last sequence."""
    store = open_store(prefix="logs-", suffix=".log")
    store.write(1, CHANNEL_ID, [_batch(7, 3)], now=0.0)
    store.finish_all()
    [path] = files_below(out)
    assert path.name == f"logs-{SINK}-{CHANNEL_ID[:12]}-000000000007-000000000009.log"


def test_finish_beside_a_file_of_the_same_name_takes_another(open_store: MakeStore, out: Path) -> None:
    """A file is never overwritten, even if another program created it."""
    taken = out / f"{SINK}-{CHANNEL_ID[:12]}-000000000001-000000000002.txt"
    taken.write_text("mine\n")
    store = open_store()
    store.write(1, CHANNEL_ID, [_batch(1, 2)], now=0.0)
    assert store.finish_all().completed == [1]
    assert taken.read_text() == "mine\n"
    assert taken.with_name(f"{taken.stem}-2.txt").read_text() == "1\n2\n"


def test_finish_in_another_file_system_beside_a_file_of_the_same_name_takes_another(tmp_path: Path) -> None:
    """Objects in an object store are not overwritten either."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    name = f"/bucket/{SINK}-{CHANNEL_ID[:12]}-000000000001-000000000002"
    files.pipe_file(f"{name}.txt", b"1\n2\n")
    store = make_event_files(config_of("memory://bucket"), tmp_path / "state")
    store.open()
    store.write(1, CHANNEL_ID, [_batch(1, 2)], now=0.0)
    assert store.finish_all().completed == [1]
    store.close()
    assert files.find("/bucket") == [f"{name}-2.txt", f"{name}.txt"]


def test_write_beyond_the_events_of_a_file_begins_the_next(open_store: MakeStore, out: Path) -> None:
    """A file never exceeds its event limit, however large a delivery is."""
    store = open_store(roll_events=4)
    assert store.write(1, CHANNEL_ID, [_batch(1, 10)], now=0.0).completed == []
    assert [path.read_text().split() for path in files_below(out)] == [list("1234"), list("5678")]
    assert store.write(2, CHANNEL_ID, [_batch(11, 2)], now=0.0).completed == [1, 2]
    assert _numbers(out) == list(range(1, 13))


def test_write_beyond_the_bytes_of_a_file_finishes_it(open_store: MakeStore, out: Path) -> None:
    """A file that is large enough is finished with the events that made it so."""
    store = open_store(roll_bytes=1024)
    assert store.write(1, CHANNEL_ID, [(1, raw_of(rows_of([b"x" * 1000])))], now=0.0).completed == []
    assert store.write(2, CHANNEL_ID, [(2, raw_of(rows_of([b"y" * 1000])))], now=0.0).completed == [1, 2]
    assert [path.stat().st_size for path in files_below(out)] == [2002]


def test_roll_finishes_what_is_due_and_nothing_else(open_store: MakeStore, out: Path) -> None:
    """Each file has its own deadline."""
    store = open_store("{header:host}", roll_seconds=10.0, idle_seconds=4.0)
    assert store.write(1, CHANNEL_ID, [_batch(1, 1, host="a")], now=100.0).due_at == 104.0
    assert store.write(2, CHANNEL_ID, [_batch(2, 1, host="b")], now=103.0).due_at == 104.0
    assert store.roll(103.9).completed == []
    progress = store.roll(104.0)
    assert (progress.completed, progress.due_at) == ([1], 107.0)
    assert store.write(3, CHANNEL_ID, [_batch(3, 1, host="b")], now=106.0).due_at == 110.0
    assert store.write(4, CHANNEL_ID, [_batch(4, 1, host="b")], now=109.0).due_at == 113.0
    progress = store.roll(113.0)
    assert (progress.completed, progress.due_at) == ([2, 3, 4], None)
    assert len(files_below(out)) == 2


def test_delivery_in_several_files_is_completed_with_the_last(open_store: MakeStore, out: Path) -> None:
    """A delivery is complete only when all its events are in finished files."""
    store = open_store("{header:host}", roll_events=2)
    hosts = [({"host": "a"}, b"1"), ({"host": "b"}, b"2"), ({"host": "a"}, b"3")]
    assert store.write(1, CHANNEL_ID, [(1, raw_of(hosts))], now=0.0).completed == []
    assert len(files_below(out / "a")) == 1
    assert store.write(2, CHANNEL_ID, [_batch(4, 1, host="b")], now=0.0).completed == [1, 2]


def test_finish_delivery_leaves_files_alone_that_have_nothing_of_it(open_store: MakeStore, out: Path) -> None:
    """Settling one delivery finishes no more files than necessary."""
    store = open_store("{header:host}")
    store.write(1, CHANNEL_ID, [_batch(1, 1, host="a")], now=0.0)
    store.write(2, CHANNEL_ID, [_batch(2, 1, host="b")], now=0.0)
    assert store.finish_delivery(1).completed == [1]
    assert [path.parent.name for path in files_below(out)] == ["a"]


def test_write_to_more_directories_than_files_may_be_open_finishes_the_least_recent(
    open_store: MakeStore, out: Path
) -> None:
    """The number of open files is bounded, however many directories the headers make."""
    store = open_store("{header:host}", open_files_max=3)
    for sequence in range(1, 21):
        store.write(sequence, CHANNEL_ID, [_batch(sequence, 1, host=f"h{sequence % 7}")], now=0.0)
        assert len(unfinished_below(out)) <= 3
    store.finish_all()
    assert _numbers(out) == list(range(1, 21))


def test_open_after_a_crash_removes_its_own_unfinished_files_only(
    open_store: MakeStore, tmp_path: Path, out: Path
) -> None:
    """Leftovers of a crash are removed at the next start; files of others stay."""
    store = open_store("{header:host}")
    store.write(1, CHANNEL_ID, [_batch(1, 1, host="a"), _batch(2, 1, host="b")], now=0.0)
    [owner] = (out / ".millrace").iterdir()
    foreign = out / ".millrace" / "archive-of-another" / "000001.part"
    foreign.parent.mkdir()
    foreign.touch()
    mine = unfinished_below(owner.parent)
    assert len(mine) == 3
    store._directory.close()
    open_store("{header:host}")
    assert unfinished_below(out) == [foreign]


def test_open_while_another_run_is_active_is_refused(open_store: MakeStore) -> None:
    """Two runs of a sink never use the same files."""
    open_store()
    with pytest.raises(ComponentError, match="an earlier run still waits"):
        open_store()


def test_write_of_events_that_an_earlier_run_has_finished_skips_them(open_store: MakeStore, out: Path) -> None:
    """After a crash between publish and settle, only the rest is written."""
    store = open_store("{header:host}", roll_events=2)
    rows = [({"host": "ab"[n % 2]}, str(n + 1).encode()) for n in range(7)]
    store.write(1, CHANNEL_ID, [(1, raw_of(rows))], now=0.0)
    assert _numbers(out) == [1, 2, 3, 4, 5, 7]
    store._directory.close()
    again = open_store("{header:host}", roll_events=2)
    assert again.write(1, CHANNEL_ID, [(1, raw_of(rows[:3])), (4, raw_of(rows[3:]))], now=0.0).completed == []
    assert again.finish_all().completed == [1]
    assert _numbers(out) == list(range(1, 8))


def test_write_of_events_that_are_all_finished_completes_at_once(open_store: MakeStore, out: Path) -> None:
    """They can be settled without a write, even if the files were moved away."""
    store = open_store()
    store.write(1, CHANNEL_ID, [_batch(1, 5)], now=0.0)
    store.finish_all()
    store._directory.close()
    for path in files_below(out):
        path.unlink()
    again = open_store()
    assert again.write(1, CHANNEL_ID, [_batch(1, 5)], now=0.0) == ([1], None)
    assert files_below(out) == []


def test_delete_receipts_below_deletes_those_of_settled_events(
    open_store: MakeStore, tmp_path: Path, out: Path
) -> None:
    """The sink's state does not grow."""
    receipts = tmp_path / "state" / "receipts"
    store = open_store(roll_events=5)
    store.write(1, CHANNEL_ID, [_batch(1, 10)], now=0.0)
    assert len(list(receipts.iterdir())) == 2
    store.delete_receipts_below(10)
    assert len(list(receipts.iterdir())) == 1
    store.delete_receipts_below(11)
    assert list(receipts.iterdir()) == []


def test_write_from_a_recreated_channel_skips_nothing(open_store: MakeStore, tmp_path: Path, out: Path) -> None:
    """A recreated channel reuses sequences for other events."""
    store = open_store()
    store.write(1, CHANNEL_ID, [_batch(1, 2)], now=0.0)
    assert store.write(2, "beef" * 8, [_batch(1, 3)], now=0.0).completed == [1]
    assert store.finish_all().completed == [2]
    assert _numbers(out) == [1, 1, 2, 2, 3]
    store._directory.close()
    again = open_store()
    again.write(1, CHANNEL_ID, [_batch(1, 1)], now=0.0)
    again.finish_all()
    assert _numbers(out) == [1, 1, 1, 2, 2, 3]
    assert len(list((tmp_path / "state" / "receipts").iterdir())) == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"version":1}', b'{"version":1,"path":"","file_bytes":1,"channel_id":"","ranges":[1]}'],
)
def test_open_with_a_damaged_receipt_fails_and_says_which(
    open_store: MakeStore, tmp_path: Path, content: bytes
) -> None:
    """The sink does not guess what was finished: an operator must decide."""
    receipts = tmp_path / "state" / "receipts"
    receipts.mkdir(parents=True)
    (receipts / "000000000001.kept.json").write_bytes(content)
    with pytest.raises(ComponentFailedError, match=r"000000000001\.kept\.json is damaged"):
        open_store()


def test_open_with_a_receipt_of_a_later_version_is_refused(open_store: MakeStore, tmp_path: Path) -> None:
    """State written by a later server is not changed."""
    receipts = tmp_path / "state" / "receipts"
    receipts.mkdir(parents=True)
    (receipts / "000000000001.kept.json").write_bytes(b'{"version":2}')
    with pytest.raises(ComponentFailedError, match="has version 2, which this server does not support"):
        open_store()
    assert len(list(receipts.iterdir())) == 1


def test_close_of_a_clean_run_leaves_no_directory_for_unfinished_files(open_store: MakeStore, out: Path) -> None:
    """The target directory contains only finished files then."""
    store = open_store()
    store.write(1, CHANNEL_ID, [_batch(1, 1)], now=0.0)
    store.finish_all()
    store.close()
    assert [path.name for path in out.iterdir()] == [path.name for path in files_below(out)]
