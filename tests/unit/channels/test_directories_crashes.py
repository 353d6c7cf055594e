"""Directories after a crash at any point of a start or of a deletion."""

import random
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from millrace_server.channels.channel_file import CHECKPOINTS_ONLY, ChannelFile, ChannelIdentity, DirectoryError
from millrace_server.wal.segments import segment_name
from tests.channel_directories import made, opened
from tests.crashing_os import CrashingOs, Killed

Life = Callable[[], object]


def crash_points(
    disk: CrashingOs, prepare: Callable[[], None], life: Life, source: random.Random, *, is_thorough: bool
) -> Iterator[None]:
    """Runs a sequence of steps and kills it before each call, runs it again, whole or in part, and cuts the power.

    Yields after each power cut, with the remaining state on the disk.
    """
    first, is_whole = 0, False
    while not is_whole:
        some = source.choice((0, source.randrange(CALLS_MAX), None))
        for second in (*range(CALLS_MAX), None) if is_thorough else (some,):
            prepare()
            disk.adopt()
            is_whole = lived(disk, life, first)
            if not is_whole:
                lived(disk, life, second)
            disk.cut_power(source)
            yield
        first += 1
    assert 10 < first < CALLS_MAX


def lived(disk: CrashingOs, life: Life, calls_left: int | None) -> bool:
    """Whether a run came to its end."""
    disk.calls_left = calls_left
    try:
        life()
    except Killed:
        return False
    finally:
        disk.calls_left = None
    return True


@pytest.fixture
def source() -> random.Random:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it where the test fails
    return random.Random(seed)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CrashingOs:
    (tmp_path / "root").mkdir()
    return CrashingOs(tmp_path / "root", monkeypatch)


def emptied(root: Path) -> None:
    for path in sorted(root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


CALLS_MAX = 60


either_thorough_or_not = pytest.mark.parametrize("is_thorough", [False, pytest.param(True, marks=pytest.mark.torture)])


@either_thorough_or_not
def test_open_directories_after_a_crash_in_the_first_start_opens(
    disk: CrashingOs, source: random.Random, *, is_thorough: bool
) -> None:
    """After a crash at any point of the first start the next one succeeds; an identity that was used stays."""
    a, b, c = (disk.root / name / "orders" for name in "abc")
    known: list[ChannelIdentity] = []

    def prepare() -> None:
        emptied(disk.root)
        known.clear()

    def life() -> None:
        known.append(made(a, b, checkpoint_dir=c))

    for _ in crash_points(disk, prepare, life, source, is_thorough=is_thorough):
        identity = made(a, b, checkpoint_dir=c)
        assert not known or set(known) == {identity}
        assert [ChannelFile.read(path) for path in (a, b, c)] == [
            ChannelFile(identity, index, 2) for index in (0, 1, CHECKPOINTS_ONLY)
        ]


@either_thorough_or_not
def test_open_directories_after_a_crash_while_some_are_added_opens(
    disk: CrashingOs, source: random.Random, *, is_thorough: bool
) -> None:
    """After a crash at any point of adding directories the channel opens completely, with or without them."""
    a, b, c, d = (disk.root / name for name in "abcd")
    old: list[ChannelIdentity] = []
    is_added: list[bool] = []

    def prepare() -> None:
        emptied(disk.root)
        is_added.clear()
        old[:] = [made(a, b)]
        (b / segment_name(1)).write_bytes(b"events")

    def life() -> None:
        made(c, a, b, checkpoint_dir=d)
        is_added.append(True)

    for _ in crash_points(disk, prepare, life, source, is_thorough=is_thorough):
        if not is_added and source.random() < 0.5:
            with suppress(DirectoryError):
                # This is refused only if all of them already count the new one.
                assert made(a, b) == old[0]
        assert made(c, a, b, checkpoint_dir=d) == old[0]
        assert (b / segment_name(1)).read_bytes() == b"events"
        assert ChannelFile.read(c) == ChannelFile(old[0], 2, 3)


@either_thorough_or_not
def test_open_directories_after_a_crash_in_a_deletion_finishes_it_or_keeps_all(
    disk: CrashingOs, source: random.Random, *, is_thorough: bool
) -> None:
    """After a crash at any point of a deletion the channel is complete or new, never partial."""
    a, b = disk.root / "a", disk.root / "b"
    old: list[ChannelIdentity] = []
    is_marked: list[bool] = []

    def prepare() -> None:
        emptied(disk.root)
        is_marked.clear()
        old[:] = [made(a, b)]
        for path in (a, b):
            (path / segment_name(1)).write_bytes(b"events")

    def life() -> None:
        with closing(opened(a, b)) as directories:
            directories.mark_deleted()
            is_marked.append(True)
            directories.remove()

    for _ in crash_points(disk, prepare, life, source, is_thorough=is_thorough):
        identity = made(a, b)
        segments = [path for path in (a, b) if (path / segment_name(1)).exists()]
        assert segments == ([a, b] if identity == old[0] else [])
        assert not (is_marked and identity == old[0])
