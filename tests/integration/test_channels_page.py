"""The configurations and commands of docs/channels.md, executed."""

import shutil
from pathlib import Path

import pytest

import millrace_client as millrace
from tests.conftest import StartMillraced
from tests.fenced_blocks import CHECKED, block_with, blocks_of
from tests.scripts import run_script
from tests.unit.repository.checkout import ROOT

PAGE = ROOT / "docs" / "channels.md"


def test_first_configuration_block_served_has_its_channels(start_millraced: StartMillraced) -> None:
    """A server with the configuration has its channels."""
    server = start_millraced(blocks_of(PAGE, CHECKED)[0])
    server.wait_for("channel opened")
    with millrace.connect(server.grpc) as client:
        states = {channel.name: (channel.config.type, channel.state) for channel in client.admin.list_channels()}
    assert states == {
        "orders": (millrace.ChannelType.FILE, millrace.ChannelState.OPEN),
        "metrics": (millrace.ChannelType.MEMORY, millrace.ChannelState.OPEN),
    }


def test_blocks_for_disks_and_compression_keep_and_pack_events(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """Both disks have the channel's directory, and similar bodies take little space."""
    config = block_with(PAGE, CHECKED, "data_dirs").replace("/disk", f"{tmp_path}/disk")
    server = start_millraced(config)
    server.wait_for("channel opened")
    with millrace.connect(server.grpc) as client:
        client.channel("orders").append([b"a book" * 10_000])
    assert server.stop() == 0
    assert [(tmp_path / disk / "millrace" / "orders").is_dir() for disk in ("disk1", "disk2")] == [True, True]
    written = b"".join(path.read_bytes() for path in tmp_path.glob("disk?/millrace/orders/segment-*"))
    assert b"a book" * 10 not in written


def test_blocks_for_encryption_make_a_key_that_seals_what_is_written(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """The command creates a key that the server accepts, and no event is readable on the disk."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on this machine")
    (make_key,) = blocks_of(PAGE, "key")
    run_script(make_key, tmp_path)
    server = start_millraced(block_with(PAGE, CHECKED, "active_key").replace("/etc/millrace", str(tmp_path)))
    server.wait_for("channel opened")
    with millrace.connect(server.grpc) as client:
        client.channel("orders").append([b"a book"])
        assert [batch.bodies() for batch in client.channel("orders").peek()] == [[b"a book"]]
    assert server.stop() == 0
    written = b"".join(path.read_bytes() for path in (server.data_dir / "channels" / "orders").iterdir())
    assert b"a book" not in written
    assert b"2026" in written
