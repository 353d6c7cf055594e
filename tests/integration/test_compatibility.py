"""Files and clients of former versions, with the server of this one."""

import json
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

import millrace_client as millrace
from millrace_server.channels.channel_file import ChannelFile
from tests.conftest import StartMillraced
from tests.fenced_blocks import blocks_of
from tests.millraced import Millraced, run_millraced
from tests.scripts import run_script
from tests.segment_versions import LATER_VERSION, set_version

KEPT = Path(__file__).parents[1] / "compatibility" / "format_1"
CONVERTED = "the files of a channel will be converted, and earlier versions cannot open them then"
OLD_CLIENT = """
import sys
import millrace_client as millrace

assert ".zip" in millrace.__file__
with millrace.connect(sys.argv[1]) as client:
    client.admin.create_channel("letters", millrace.ChannelConfig(type=millrace.ChannelType.FILE, capacity=1000))
    letters = client.channel("letters")
    letters.append([millrace.Event(b"a", {"to": "x"}), millrace.Event(b"b")], stamp=millrace.Stamp("post", 1, 2))
    assert letters.append([b"a", b"b"], stamp=millrace.Stamp("post", 1, 2)).deduplicated
    with letters.transaction() as txn:
        print([(event.sequence, event.headers, event.body) for batch in txn.take(max_events=1) for event in batch])
    with letters.consume() as batches:
        for batch in batches:
            print(batch.bodies())
            batch.ack()
            break
    with millrace.Producer(sys.argv[1], channel="letters") as producer:
        print(producer.send(b"c").result(timeout_seconds=60).sequence)
    with letters.claim("reader") as claim:
        print([body for batch in claim.read(claim.first_sequence) for body in batch.bodies()])
        claim.acknowledge(3)
    assert {info.name for info in client.admin.list_channels()} == {"letters"}
"""


@pytest.fixture(params=["stopped", "killed"])
def kept_data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A data directory as a server of log format 1 left it."""
    folder = tmp_path / "data"
    with tarfile.open(KEPT / f"{request.param}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def _bodies(client: millrace.Client) -> list[bytes]:
    return [body for batch in client.channel("orders").peek(max_events=100) for body in batch.bodies()]


def test_data_of_format_1_opened_holds_everything(kept_data: Path, start_millraced: StartMillraced) -> None:
    """Events, headers, stamps, ended transactions and claims of a former version are all there, and are written on."""
    server = start_millraced(data_dir=kept_data)
    expected = [b"order %d" % number for number in range(4, 21)]
    with millrace.connect(server.grpc) as client:
        orders = client.channel("orders")
        assert _bodies(client) == expected
        assert [event.headers for batch in orders.peek(max_events=1) for event in batch] == [{"customer": "1"}]
        assert orders.append([b"again"], stamp=millrace.Stamp("shop", 20, 20)).deduplicated
        with pytest.raises(millrace.TxnStateError):
            orders.transaction(txn_id="first").begin()
        assert orders.append([b"order 21"], stamp=millrace.Stamp("shop", 21, 21)).first_sequence == 21
        with client.channel("clicks").claim("nightly") as claim:
            assert claim.first_sequence == 3
            assert next(claim.read(3)).bodies()[0] == b"click 3"
    assert server.stop() == 0
    with millrace.connect(start_millraced(data_dir=kept_data).grpc) as client:
        assert _bodies(client) == [*expected, b"order 21"]


def test_conversion_ahead_is_said_before_it_happens(kept_data: Path, start_millraced: StartMillraced) -> None:
    """`upgrade --check` says so without a change, the server says so before it writes, and afterwards neither does."""
    before = {path: path.read_bytes() for path in kept_data.rglob("*") if path.is_file()}
    check = run_millraced("upgrade", "--check", "--data-dir", kept_data)
    assert check.returncode == 4
    assert "orders: log format 1" in check.stdout
    assert "millraced backup" in check.stderr
    assert {path: path.read_bytes() for path in kept_data.rglob("*") if path.is_file()} == before
    server = start_millraced(data_dir=kept_data)
    # A channel that takes longer to be opened may follow the server's start.
    server.wait_for("channel opened", count=2)
    assert {entry["channel"] for entry in server.log if entry["event"] == CONVERTED} == {"orders", "clicks"}
    with millrace.connect(server.grpc) as client:
        client.channel("orders").append([b"new"])
    assert server.stop() == 0
    server = start_millraced(data_dir=kept_data)
    server.wait_for("channel opened", count=2)
    assert "orders" not in {entry["channel"] for entry in server.log if entry["event"] == CONVERTED}


def test_data_of_a_later_version_is_refused_unchanged(kept_data: Path, start_millraced: StartMillraced) -> None:
    """What this version does not know, it neither opens nor changes; the other channels are served."""
    segment = kept_data / "channels" / "orders" / "segment-000000000001.log"
    set_version(segment, LATER_VERSION)
    content = segment.read_bytes()
    check = run_millraced("upgrade", "--check", "--data-dir", kept_data)
    assert check.returncode == 3
    assert f"orders: log format {LATER_VERSION}" in check.stdout
    server = start_millraced(data_dir=kept_data)
    server.wait_for("channel opened")
    server.wait_for("a channel cannot be opened")
    with millrace.connect(server.grpc) as client:
        states = {info.name: info.state for info in client.admin.list_channels()}
    assert states == {"clicks": millrace.ChannelState.OPEN, "orders": millrace.ChannelState.CORRUPT}
    assert segment.read_bytes() == content


def test_command_of_the_page_checks_a_configuration(kept_data: Path, tmp_path: Path) -> None:
    """The documented command finds the channels of a configuration's data directory."""
    (block,) = blocks_of(KEPT.parents[2] / "docs" / "compatibility.md", "upgrade")
    config = tmp_path / "millrace.toml"
    config.write_text(f'[server]\ndata_dir = "{kept_data}"\n')
    program, *arguments = block.replace("/etc/millrace/millrace.toml", str(config)).split()
    assert program == "millraced"
    assert run_millraced(*arguments).returncode == 4


def test_commands_of_the_page_bring_events_to_an_earlier_version(kept_data: Path, millraced: Millraced) -> None:
    """What one version exports, another one puts again."""
    (block,) = blocks_of(KEPT.parents[2] / "docs" / "compatibility.md", "export")
    folder = kept_data.parent
    kept_data.rename(folder / "millrace-data")
    with millrace.connect(millraced.grpc) as client:
        client.admin.create_channel("orders", millrace.ChannelConfig(capacity=1_000))
        run_script(block, folder, MILLRACE_SERVER=millraced.grpc)
        assert _bodies(client) == [b"order %d" % number for number in range(4, 21)]


def test_upgrade_check_of_a_directory_without_channels_says_which_it_was(tmp_path: Path) -> None:
    """A mistyped directory must not look like one that needs no conversion."""
    empty, missing = (run_millraced("upgrade", "--check", "--data-dir", path) for path in (tmp_path, tmp_path / "no"))
    assert (empty.returncode, missing.returncode) == (0, 0)
    assert f"no channel has files yet. The data directory is {tmp_path}." in empty.stdout
    assert f"The data directory is {tmp_path / 'no'}, which does not exist." in missing.stdout


def test_upgrade_check_of_a_damaged_header_says_what_cannot_be_read(kept_data: Path) -> None:
    """Nothing is known of its format then; the other channels are shown all the same."""
    segment = max((kept_data / "channels" / "orders").glob("segment-*.log"))
    content = bytearray(segment.read_bytes())
    for position, why in ((0, "it does not begin with the magic of a segment"), (20, "the checksum of its header")):
        segment.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        check = run_millraced("upgrade", "--check", "--data-dir", kept_data)
        assert check.returncode == 1
        assert f"orders: {segment}: {why}" in check.stdout
        assert "clicks: log format 1" in check.stdout
        assert "cannot be read" in check.stderr


@pytest.mark.parametrize("kept_data", ["stopped"], indirect=True)
def test_upgrade_check_of_a_damaged_checkpoint_says_so(kept_data: Path) -> None:
    """It does not count as a channel without a checkpoint, wherever the damage is."""
    checkpoint = kept_data / "channels" / "orders" / "checkpoint"
    content = checkpoint.read_bytes()
    for position in (0, len(content) - 1):
        checkpoint.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        check = run_millraced("upgrade", "--check", "--data-dir", kept_data)
        assert check.returncode == 1
        assert f"orders: {checkpoint}: is damaged" in check.stdout
        assert "clicks: log format 1" in check.stdout


@pytest.mark.parametrize("kept_data", ["stopped"], indirect=True)
@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("moved_to", "stream MILLRACE_orders", "the channel was moved to stream MILLRACE_orders"),
        ("is_deleted", True, "the channel was being deleted"),
        ("repaired_from", 7, "a repair was interrupted"),
    ],
)
def test_upgrade_check_of_a_channel_that_is_not_open_to_tools_shows_the_others(
    kept_data: Path, field: str, value: object, why: str
) -> None:
    """One channel's state keeps nobody from learning about the rest."""
    home = kept_data / "channels" / "orders"
    file = ChannelFile.read(home)
    assert file is not None
    replace(file, **{field: value}).write(home)  # type: ignore[arg-type] # its own type
    check = run_millraced("upgrade", "--check", "--data-dir", kept_data)
    assert check.returncode == 1
    assert f"orders: {home}: {why}" in check.stdout
    assert "clicks: log format 1" in check.stdout


def test_upgrade_check_of_a_damaged_channel_file_says_so(kept_data: Path) -> None:
    """The server would not open the channel."""
    file = kept_data / "channels" / "orders" / "channel.json"
    file.write_text("{")
    check = run_millraced("upgrade", "--check", "--data-dir", kept_data)
    assert check.returncode == 1
    assert f"orders: {file} is damaged" in check.stdout


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("file", "is not a directory"),
        ("loop", "cannot be read: Too many levels of symbolic links"),
        ("dangling", "is a link to a directory that does not exist"),
    ],
)
def test_upgrade_check_of_a_path_that_is_no_directory_says_so(kept_data: Path, kind: str, why: str) -> None:
    """It must not look like a channel that was never opened."""
    path = kept_data / "channels" / "orders"
    path.rename(kept_data / "orders")
    if kind == "file":
        path.touch()
    else:
        path.symlink_to(path if kind == "loop" else kept_data / "nowhere")
    check = run_millraced("upgrade", "--check", "--json", "--data-dir", kept_data)
    assert check.returncode == 1
    channels = {one["channel"]: one for one in json.loads(check.stdout)["channels"]}
    assert channels["orders"]["problem"] == f"{path}: {why}"
    assert not channels["orders"]["is_readable"]
    assert channels["clicks"]["is_converted"]


def test_upgrade_without_check_says_what_to_do() -> None:
    """There is nothing to run but the check, since files are converted as they are written."""
    upgrade = run_millraced("upgrade")
    assert upgrade.returncode == 2
    assert "millraced upgrade --check" in upgrade.stderr


def test_client_of_format_1_works_with_this_server(start_millraced: StartMillraced) -> None:
    """A client that knows neither times nor owners appends, takes, consumes, produces and claims."""
    server = start_millraced()
    command = [sys.executable, "-c", OLD_CLIENT, server.grpc]
    environment = {"PYTHONPATH": str(KEPT / "client.zip"), "PATH": ""}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[:4] == ["[(1, {'to': 'x'}, b'a')]", "[b'b']", "3", "[b'c']"]
