import json
import os
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace_server.channels.channel_file import CHANNEL_FILE, ChannelFile, ChannelIdentity, DirectoryError

IDENTITY = ChannelIdentity("orders", bytes(range(16)), bytes(range(16, 32)), 1_700_000_000_000_000)
FILE = ChannelFile(IDENTITY, index=1, count=3)


def write(path: Path, **changes: Any) -> None:
    """Writes a file with other fields and a valid checksum."""
    FILE.write(path)
    content = json.loads((path / CHANNEL_FILE).read_bytes())
    channel = content["channel"] | changes
    described = json.dumps(channel, sort_keys=True, separators=(",", ":")).encode()
    content |= {"channel": channel, "crc32": f"{zlib.crc32(described):08x}"}
    (path / CHANNEL_FILE).write_text(json.dumps(content))


@pytest.mark.parametrize("file", [FILE, ChannelFile(IDENTITY, -1, 0), replace(FILE, is_deleted=True)])
def test_read_of_what_was_written_returns_it(tmp_path: Path, file: ChannelFile) -> None:
    """The file contains what was written, and nothing of the previous version."""
    FILE.write(tmp_path)
    file.write(tmp_path)
    assert ChannelFile.read(tmp_path) == file


def test_write_makes_the_bytes_that_are_documented(tmp_path: Path) -> None:
    """The format is fixed: files must be readable by later versions."""
    FILE.write(tmp_path)
    assert json.loads((tmp_path / CHANNEL_FILE).read_bytes()) == {
        "format": "millrace channel",
        "version": 1,
        "crc32": "6f7b938c",
        "channel": {
            "name": "orders",
            "channel_id": "000102030405060708090a0b0c0d0e0f",
            "log_id": "101112131415161718191a1b1c1d1e1f",
            "made_at_microseconds": 1_700_000_000_000_000,
            "index": 1,
            "count": 3,
            "is_deleted": False,
        },
    }


def test_read_without_a_file_returns_none(tmp_path: Path) -> None:
    """A new directory has no file."""
    assert ChannelFile.read(tmp_path) is None


def test_make_assigns_each_channel_an_id_of_its_own() -> None:
    """No two channels are confused, even of one name; a new channel's log has its id."""
    before = time.time_ns() // 1000
    first, second = ChannelIdentity.make("orders"), ChannelIdentity.make("orders")
    assert first.channel_id == first.log_id != second.channel_id
    assert len(first.channel_id) == 16
    assert before <= first.made_at_microseconds <= second.made_at_microseconds <= time.time_ns() // 1000


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[" * 60_000, "it is not JSON"),
        (b"[]", "it does not say that its format is"),
        (b'{"format": "millrace catalog", "version": 1}', "it does not say that its format is"),
        (b'{"format": "millrace channel", "version": 1}', "its checksum does not match"),
    ],
)
def test_read_when_it_is_no_channel_file_says_that_it_is_damaged(tmp_path: Path, content: bytes, why: str) -> None:
    """The error names the file, which stays as it is."""
    (tmp_path / CHANNEL_FILE).write_bytes(content)
    with pytest.raises(DirectoryError, match=f"{CHANNEL_FILE} is damaged: {why}.*; `millraced log repair` "):
        ChannelFile.read(tmp_path)
    assert (tmp_path / CHANNEL_FILE).read_bytes() == content


@pytest.mark.parametrize("version", [0, 2, None, "1", "x" * 1000])
def test_read_of_another_version_refuses_whatever_else_it_holds(tmp_path: Path, version: object) -> None:
    """Another version may define everything differently except the name of the format."""
    (tmp_path / CHANNEL_FILE).write_text(json.dumps({"format": "millrace channel", "version": version}))
    with pytest.raises(DirectoryError, match=r"its version is .*, and this server knows version 1 only") as refusal:
        ChannelFile.read(tmp_path)
    assert len(str(refusal.value)) < 300 + len(str(tmp_path))


def test_read_of_every_single_bit_flip_finds_it(tmp_path: Path) -> None:
    """No flipped bit is accepted as another identity; one in white space or between fields may be harmless."""
    FILE.write(tmp_path)
    path = tmp_path / CHANNEL_FILE
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            read = ChannelFile.read(tmp_path)
        except DirectoryError:
            continue
        assert read == FILE, f"bit {bit}"


def test_read_of_every_truncation_finds_it(tmp_path: Path) -> None:
    """A truncated file is damaged, unless only its last line end is missing."""
    FILE.write(tmp_path)
    path = tmp_path / CHANNEL_FILE
    content = path.read_bytes()
    for length in range(len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(DirectoryError, match="is damaged"):
            ChannelFile.read(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../up"},
        {"name": "orders\n"},
        {"channel_id": "00"},
        {"log_id": "0" * 31 + "G"},
        {"made_at_microseconds": -1},
        {"made_at_microseconds": "1"},
        {"index": -2},
        {"count": True},
        {"is_deleted": 0},
        {"owner": "somebody"},
    ],
)
def test_read_of_a_field_that_is_not_allowed_names_it(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A valid checksum does not make a file valid that was edited by hand."""
    write(tmp_path, **changes)
    with pytest.raises(DirectoryError, match=f"not described as it must be: '{next(iter(changes))}'"):
        ChannelFile.read(tmp_path)


def test_read_of_a_link_does_not_follow_it(tmp_path: Path) -> None:
    """The identity of a directory is never read from elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    FILE.write(elsewhere)
    (tmp_path / CHANNEL_FILE).symlink_to(elsewhere / CHANNEL_FILE)
    with pytest.raises(DirectoryError, match=rf"cannot read .*{CHANNEL_FILE}: it is a link"):
        ChannelFile.read(tmp_path)


def test_read_of_a_directory_reports_it(tmp_path: Path) -> None:
    """The error is a sentence; its cause is the error of the operating system."""
    (tmp_path / CHANNEL_FILE).mkdir()
    with pytest.raises(DirectoryError, match="Is a directory") as refusal:
        ChannelFile.read(tmp_path)
    assert isinstance(refusal.value.__cause__, IsADirectoryError)


def test_read_of_a_pipe_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    """A pipe in place of the file cannot block the server."""
    os.mkfifo(tmp_path / CHANNEL_FILE)
    with pytest.raises(DirectoryError, match="it is not JSON"):
        ChannelFile.read(tmp_path)
