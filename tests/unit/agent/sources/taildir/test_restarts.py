"""The state of files after a restart of the source or of the whole process."""

import random
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from millrace_server.agent.sources.taildir import register
from millrace_server.agent.sources.taildir.file_scheduler import SAVE_SECONDS
from millrace_server.agent.supervision import ComponentFailedError
from tests.unit.agent.sources.taildir.tailing import CutOffError, StoringChannel, Tailing, append, config_of, numbered

SEED = 20261122


def bodies_in(tailing: Tailing, index: int) -> list[bytes]:
    return [event.body for event in tailing.channels[index].events]


def test_start_after_a_crash_continues_where_the_channels_have_stored(tmp_path: Path, log: Path) -> None:
    """A durable channel knows what it has stored, so a crash at any moment repeats nothing."""
    append(log, *numbered(0, 1_000))
    tailing = Tailing(tmp_path, config_of(log))
    for stores in (0, 1, 3, 2, 1):
        tailing.channels[0].stores_left = stores
        with pytest.raises(CutOffError):
            tailing.run(5)
        tailing.crash()
        tailing.start()
    tailing.channels[0].stores_left = None
    tailing.run(5)
    assert tailing.bodies == numbered(0, 1_000)


@pytest.mark.parametrize("settings", [{}, {"multiline": {"pattern": "0 of a log$"}}], ids=["lines", "events"])
def test_start_after_a_crash_between_commits_stores_in_each_channel_what_it_misses(
    tmp_path: Path, log: Path, settings: dict[str, object]
) -> None:
    """If channels have stored different parts of a file, each gets the rest, split where other parts end."""
    drawn = random.Random(SEED)
    append(log, *numbered(0, 500))
    tailing = Tailing(tmp_path, config_of(log, **settings), channel_count=3)
    for count in range(500, 3_000, 250):
        for channel in tailing.channels:
            channel.stores_left = drawn.randrange(4)
        with suppress(CutOffError):
            tailing.run(20)
        tailing.crash()
        append(log, *numbered(count, count + 250))
        tailing.start()
    for channel in tailing.channels:
        channel.stores_left = None
    tailing.run(20)
    expected = b"\n".join(numbered(0, 3_000))
    assert [b"\n".join(bodies_in(tailing, index)) for index in range(3)] == [expected] * 3, f"seed {SEED}"


def test_start_of_an_event_that_was_sent_early_sends_the_same_to_all_channels(tmp_path: Path, log: Path) -> None:
    """An event that was sent after its timeout ends there too for a channel that missed it, whatever followed."""
    config = config_of(log, multiline={"pattern": "^begin", "timeout_seconds": 2.0})
    append(log, b"begin 1", b" a", b" b")
    tailing = Tailing(tmp_path, config, channel_count=2)
    tailing.channels[1].stores_left = 0
    with pytest.raises(CutOffError):
        tailing.run(10)
    tailing.crash()
    append(log, b" c", b"begin 2")
    tailing.channels[1].stores_left = None
    tailing.start()
    tailing.run(10)
    assert bodies_in(tailing, 0) == [b"begin 1\n a\n b", b" c", b"begin 2"]
    assert bodies_in(tailing, 1) == bodies_in(tailing, 0)


def test_start_with_channels_that_have_forgotten_continues_where_positions_say(tmp_path: Path, log: Path) -> None:
    """A memory channel knows no producers after a restart, and channels forget idle ones."""
    append(log, *numbered(0, 100))
    tailing = Tailing(tmp_path, config_of(log), channel_count=2)
    tailing.run(5)
    tailing.stop()
    tailing.channels[1].forget()
    append(log, *numbered(100, 200))
    tailing.start()
    tailing.run(5)
    tailing.crash()
    tailing.channels[0].forget()
    tailing.channels[1].forget()
    append(log, *numbered(200, 300))
    tailing.start()
    tailing.run(5)
    assert bodies_in(tailing, 0) == numbered(0, 300)
    assert bodies_in(tailing, 1) == numbered(0, 300)


def test_start_in_good_order_repeats_nothing_for_channels_that_forget(tmp_path: Path, log: Path) -> None:
    """Positions are saved at the end, even shortly after the last save."""
    tailing = Tailing(tmp_path, config_of(log))
    for number in range(10):
        append(log, *numbered(number, number + 1))
        tailing.run(1)
        append(log, b"more %d" % number)
        tailing.run(0.6)
        tailing.stop()
        tailing.channels[0].forget()
        tailing.start()
    tailing.run(5)
    assert len(tailing.bodies) == 20
    assert len(set(tailing.bodies)) == 20


def test_run_for_a_while_saves_positions_by_itself(tmp_path: Path, log: Path) -> None:
    """After a crash, a memory channel gets again at most what was read since the last save."""
    append(log, *numbered(0, 100))
    tailing = Tailing(tmp_path, config_of(log))
    tailing.run(SAVE_SECONDS + 1)
    tailing.crash()
    tailing.channels[0].forget()
    tailing.start()
    tailing.run(5)
    assert tailing.bodies == numbered(0, 100)


@pytest.mark.parametrize("damage", ["lost", "empty", "cut", "altered"])
def test_start_with_damaged_positions_asks_the_channels(tmp_path: Path, log: Path, damage: str) -> None:
    """Durable channels make up for lost positions; a damaged file is kept for inspection."""
    append(log, *numbered(0, 100))
    tailing = Tailing(tmp_path, config_of(log, skip_to_end=False))
    tailing.run(5)
    tailing.stop()
    path = tailing.positions_path
    content = path.read_bytes()
    if damage == "lost":
        path.unlink()
    else:
        damaged = {"empty": b"", "cut": content[:-10], "altered": content.replace(b'"position":2', b'"position":1')}
        assert damaged[damage] != content
        path.write_bytes(damaged[damage])
    append(log, *numbered(100, 110))
    with capture_logs() as reported:
        tailing.start()
    tailing.run(5)
    assert tailing.bodies == numbered(0, 110)
    events = [each["event"] for each in reported]
    assert ("the positions file is damaged, and a new one begins" in events) == (damage != "lost")
    assert path.with_name("positions.json.damaged").exists() == (damage != "lost")


def test_start_with_lost_positions_knows_each_generation_of_a_file(tmp_path: Path, log: Path) -> None:
    """The channels know which of several consecutive files with one path was the last."""
    head = b"the header of all generations, and not a short one"
    tailing = Tailing(tmp_path, config_of(log))
    for number in range(3):
        log.write_bytes(head + b"\n" + b"".join(b"%d %d\n" % (number, index) for index in range(5 + number)))
        tailing.run(5)
    tailing.stop()
    tailing.positions_path.unlink()
    append(log, b"last")
    tailing.start()
    tailing.run(5)
    assert [len(bodies) for bodies in tailing.bodies_by_file] == [6, 7, 9]
    assert tailing.bodies_by_file[-1][-1] == b"last"


def test_start_with_positions_of_another_version_changes_nothing(tmp_path: Path, log: Path) -> None:
    """Positions of a later version are neither read nor overwritten."""
    append(log, b"line")
    tailing = Tailing(tmp_path, config_of(log))
    tailing.run(5)
    tailing.stop()
    path = tailing.positions_path
    later = path.read_bytes().replace(b'"version":1', b'"version":2')
    path.write_bytes(later)
    with pytest.raises(ComponentFailedError, match=r"has version 2, but this server supports only version 1"):
        tailing.start()
    assert path.read_bytes() == later


def test_start_with_other_settings_continues_at_the_same_byte(tmp_path: Path, log: Path) -> None:
    """If the format changes between runs, stored events stay, and the rest is read in the new format."""
    append(log, b"one", b" a", "größe".encode("iso-8859-1"), b"two", b" b")
    tailing = Tailing(tmp_path, config_of(log))
    tailing.channels[0].stores_left = 1
    tailing.run(5)
    tailing.stop()
    append(log, b"three", b" c", "größe".encode("iso-8859-1"), b"four")
    tailing.channels[0].stores_left = None
    tailing.start(config_of(log, charset="iso-8859-1", multiline={"pattern": "^ ", "role": "continues"}))
    tailing.run(10)
    assert tailing.bodies[5:] == [b"three\n c", "größe".encode(), b"four"]


def test_run_with_many_rotated_files_remembers_the_last_ones(
    tmp_path: Path, logs: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of remembered files that are no longer tailed is bounded."""
    monkeypatch.setattr(register, "RESTING_MAX", 3)
    tailing = Tailing(tmp_path, config_of(log, idle_close_seconds=1.0))
    for number in range(8):
        append(log, b"line %d" % number)
        tailing.run(2)
        log.rename(logs / f"app.log.{number}")
        tailing.run(4)
    tailing.stop()
    assert tailing.positions_path.read_text().count('"is_resting":true') == 3
    assert len(tailing.bodies) == 8


def test_start_with_another_channel_fills_it_from_there_on(tmp_path: Path, log: Path) -> None:
    """A channel added to a source gets new events, not those stored long ago in others."""
    append(log, *numbered(0, 10))
    tailing = Tailing(tmp_path, config_of(log))
    tailing.run(5)
    tailing.stop()
    tailing.channels.append(StoringChannel())
    append(log, *numbered(10, 20))
    tailing.start()
    tailing.run(5)
    assert (bodies_in(tailing, 0), bodies_in(tailing, 1)) == (numbered(0, 20), numbered(10, 20))


def test_start_of_two_sources_on_one_file_delivers_all_of_it_to_each(tmp_path: Path, log: Path) -> None:
    """Each source is a producer of its own, even with the same channel."""
    append(log, *numbered(0, 10))
    first = Tailing(tmp_path / "first", config_of(log), name="first")
    second = Tailing(tmp_path / "second", config_of(log), name="second")
    second.channels = first.channels
    first.run(5)
    second.run(5)
    assert first.bodies == [*numbered(0, 10), *numbered(0, 10)]


def test_start_with_a_device_of_another_number_knows_its_files(tmp_path: Path, log: Path) -> None:
    """After a restart of the machine a disk may have another device number; its files are recognized."""
    append(log, *numbered(0, 10))
    tailing = Tailing(tmp_path, config_of(log))
    tailing.run(5)
    [file] = tailing.files
    file.key = file.key._replace(device=file.key.device + 1)
    tailing.stop()
    append(log, *numbered(10, 20))
    tailing.start()
    tailing.run(5)
    tailing.stop()
    tailing.start()
    tailing.run(5)
    assert tailing.bodies == numbered(0, 20)


def test_run_where_positions_cannot_be_saved_reads_known_files_only(
    tmp_path: Path, logs: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new file waits until it can be recognized; the reason is logged once."""
    append(log, *numbered(0, 10))
    tailing = Tailing(tmp_path, config_of(logs / "*"))
    tailing.run(5)
    with monkeypatch.context() as patches, capture_logs() as reported:
        patches.setattr(
            "millrace_server.agent.sources.taildir.positions.write_atomically",
            lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")),
        )
        append(logs / "new.log", b"new")
        append(log, *numbered(10, 20))
        tailing.run(5)
    assert tailing.bodies == numbered(0, 20)
    assert [each["reason"] for each in reported] == ["No space left on device"]
    tailing.run(5)
    assert tailing.bodies == [*numbered(0, 20), b"new"]
