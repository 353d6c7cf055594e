import errno
import io
import json
import os
from pathlib import Path
from typing import Any

import fastavro
import pytest
from rich.console import Console

from millrace_server.agent.sinks.files.writers import JsonWriter
from millrace_server.channels.channel_file import CHANNEL_FILE
from millrace_server.channels.config import EncryptionConfig, FileChannelConfig
from millrace_server.channels.directories import lock_directory
from millrace_server.cli import log_targets
from millrace_server.cli.reporting import EXIT_DAMAGED, EXIT_UNAVAILABLE, EXIT_USAGE
from millrace_server.hosting.data_dir import Catalog
from millrace_server.wal.checkpoints import NEWEST
from tests.segment_versions import LATER_VERSION, set_version
from tests.unit.log_tools.kept_channels import (
    NAME,
    contents,
    copied,
    flip,
    make_channel,
    opened_again,
    positions,
    run,
    segments,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One channel for the module; each test damages a copy."""
    return make_channel(tmp_path_factory.mktemp("cli"))


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    return copied(made, tmp_path / NAME)


def result_of(*arguments: str | Path, exit_code: int = 0) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def refused(*arguments: str | Path, exit_code: int) -> str:
    """The sentence of a refusal, which is the only output."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (exit_code, ""), result.output
    [sentence] = result.stderr.splitlines()
    assert sentence.startswith("millraced: ")
    return sentence


def test_log_verify_of_a_good_channel_sums_it_up(home: Path) -> None:
    """The output lists each segment and both checkpoints, and ends with one sentence."""
    result = run("log", "verify", home)
    assert (result.exit_code, result.stderr) == (0, "")
    first, *_, summary = result.stdout.splitlines()
    assert first.startswith("Channel orders: log ")
    assert f"  {NEWEST}: good, at byte " in result.stdout
    assert summary == "Good: 47 events, next sequence 72."
    report = result_of("log", "verify", home)
    assert report["is_good"]
    assert (report["state"]["events"], report["state"]["claim"]["reader_id"]) == (47, "reader")
    assert [one["state"] for one in report["checkpoints"]] == ["good", "good"]
    assert run("log", "verify", "--no-keys", home).stdout.splitlines()[-1] == (
        "Good as far as checksums show; no payload was decoded."
    )


def test_log_verify_of_a_damaged_channel_says_what_is_wrong_on_standard_error(home: Path) -> None:
    """Scripts use the exit code."""
    put = positions(segments(home)[0])[3]
    flip(segments(home)[0], put + 40)
    flip(home / NEWEST, 100)
    result = run("log", "verify", home)
    assert result.exit_code == EXIT_DAMAGED
    assert f"segment-000000000001.log: is damaged at byte {put}; the next valid record is at byte " in result.stderr
    assert result.stdout.splitlines()[-1] == (
        "Damaged: 2 problems; it concerns sequences 11 to 20; a server opens the channel with 47 events."
    )
    report = result_of("log", "verify", home, exit_code=EXIT_DAMAGED)
    assert report["sequences_affected"] == [[11, 20]]
    assert report["damages"][0]["position"] == put


@pytest.mark.parametrize("lost", ["segment-000000000001.log", CHANNEL_FILE])
def test_log_verify_of_a_channel_that_a_server_does_not_open_says_so(home: Path, lost: str) -> None:
    """This holds even if the records can be read."""
    (home / lost).unlink()
    result = run("log", "verify", home)
    assert result.exit_code == EXIT_DAMAGED
    assert result.stdout.splitlines()[-1].endswith("; a server does not open the channel.")


def test_log_verify_with_a_torn_tail_says_how_much_a_crash_left(home: Path) -> None:
    """A torn tail is not damage; the server truncates it."""
    (home / NEWEST).unlink()
    (home / "checkpoint.previous").unlink()
    segment = segments(home)[-1]
    flip(segment, positions(segment)[-1])
    result = run("log", "verify", home)
    assert result.exit_code == 0
    assert " bytes after the end, left by a crash or being written" in result.stdout
    assert f"  {NEWEST}: none, and none is needed" in result.stdout


def test_log_dump_shows_a_record_a_line(home: Path) -> None:
    """The output is readable by people and scripts; the exit code reports damage."""
    lines = run("log", "dump", home).stdout.splitlines()
    documents = [json.loads(line) for line in run("log", "dump", home, "--json").stdout.splitlines()]
    assert len(lines) == len(documents)
    assert lines[0].startswith("1:64  STATE  number 1, synced up to 0, ")
    assert run("log", "dump", home, "--from", "2:64").stdout.startswith("2:64  STATE")
    flip(segments(home)[0], 300)
    assert run("log", "dump", home).exit_code == EXIT_DAMAGED


def test_log_dump_of_the_state_shows_the_channel(home: Path) -> None:
    """The output contains batches, producers, ended transactions and the claim."""
    state = json.loads(run("log", "dump", "--state", home).stdout)
    assert (state["events"], state["next_sequence"]) == (47, 72)
    assert state["producers"] == {"producer": [[0, 59]]}
    assert sum(batch["count"] for batch in state["batches"]) == 47
    assert {ended["state"] for ended in state["ended_txns"].values()} == {"committed", "rolled back"}
    segments(home)[1].unlink()
    assert "the segments between are missing" in refused("log", "dump", "--state", home, exit_code=EXIT_DAMAGED)


def test_log_repair_asks_before_it_changes_anything(home: Path, tmp_path: Path) -> None:
    """The output says what would be done, then what was done, and where the copy is."""
    assert run("log", "repair", home).stdout == "Nothing is damaged; nothing was changed.\n"
    flip(segments(home)[1], 100)
    before = contents(home)
    asked = run("log", "repair", home)
    assert asked.exit_code == EXIT_DAMAGED
    assert asked.stdout.startswith("This would be done with --yes:\n  rewrite the log with the 47 readable events ")
    document = result_of("log", "repair", home, exit_code=EXIT_DAMAGED)
    assert document["is_done"] is False
    assert (document["sequences_lost"], document["sequences_redelivered"], document["stamps_lost"]) == ([], [], [])
    assert contents(home) == before
    done = run("log", "repair", home, "--yes", "--keep", tmp_path / "keep")
    assert done.exit_code == 0
    assert done.stdout.startswith("Done:\n")
    assert f"The original files are in {tmp_path / 'keep'}.\nGood: " in done.stdout
    assert {path.name: content for path, content in contents(tmp_path / "keep").items()} == {
        path.name: content for path, content in before.items()
    }


def test_log_verify_with_another_key_under_the_right_id_says_so(tmp_path: Path) -> None:
    """Nothing is called damaged, and nothing is repaired."""
    for name in ("right", "wrong"):
        (tmp_path / name).write_bytes(os.urandom(32))
        (tmp_path / name).chmod(0o600)
    encryption = EncryptionConfig(active_key="k1", keys={"k1": tmp_path / "right"})
    home = make_channel(tmp_path / "channels", encryption=encryption)
    for command in ("verify", "repair", "dump"):
        key = f"k1={tmp_path / 'wrong'}"
        if command == "dump":
            assert "the one given is most likely another" in run("log", command, home, "--key", key).stdout
        else:
            assert "the one given is most likely another" in refused(
                "log", command, home, "--key", key, exit_code=EXIT_UNAVAILABLE
            )
    assert run("log", "verify", home, "--key", f"k1={tmp_path / 'right'}").exit_code == 0


def test_log_export_writes_what_can_be_read(home: Path, tmp_path: Path) -> None:
    """As JSON lines or Avro; the exit code reports what is lost, and the channel stays as it was."""
    events, _ = opened_again(copied(home, tmp_path / "good" / NAME).parent)
    put = positions(segments(home)[0])[1]
    flip(segments(home)[0], put + 40)
    before = contents(home)
    document = result_of("log", "export", home, "--to", tmp_path / "events.json", exit_code=EXIT_DAMAGED)
    lost = {sequence for first, last in document["sequences_lost"] for sequence in range(first, last + 1)}
    assert lost == {1, 2}
    expected = [event for event in events if event[0] not in lost]
    lines = [json.loads(line) for line in (tmp_path / "events.json").read_text().splitlines()]
    assert [(line["sequence"], line["body"].encode()) for line in lines] == expected
    result = run("log", "export", home, "--format", "avro", "--to", tmp_path / "events.avro")
    assert (result.exit_code, result.stdout) == (
        EXIT_DAMAGED,
        f"Wrote {len(expected)} events of channel orders to {tmp_path / 'events.avro'}.\n",
    )
    assert "missing: sequences 1 to 2, which cannot be read" in result.stderr
    with (tmp_path / "events.avro").open("rb") as file:
        records: Any = fastavro.reader(file)
        assert [(record["sequence"], record["body"]) for record in records] == expected
    assert "exists; name a file that does not" in refused(
        "log", "export", home, "--to", tmp_path / "events.json", exit_code=EXIT_USAGE
    )
    assert contents(home) == before


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [(KeyboardInterrupt(), 130), (OSError(errno.ENOSPC, "No space left on device"), EXIT_DAMAGED)],
)
def test_log_export_that_ends_early_leaves_no_file(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, exit_code: int
) -> None:
    """What has the name of the export is complete."""

    def fail(_writer: JsonWriter) -> None:
        raise error

    monkeypatch.setattr(JsonWriter, "finish", fail)
    (tmp_path / "to").mkdir()
    assert run("log", "export", home, "--to", tmp_path / "to" / "events.json").exit_code == exit_code
    assert list((tmp_path / "to").iterdir()) == []


def test_log_repair_of_a_channel_in_use_ends_with_a_code_of_its_own(home: Path) -> None:
    """The channel may be valid; the server must be stopped first."""
    lock = lock_directory(home)
    try:
        sentence = refused("log", "repair", home, "--yes", exit_code=EXIT_UNAVAILABLE)
        assert f"(process {os.getpid()}) uses it; stop that one" in sentence
        assert run("log", "verify", home).exit_code == 0
    finally:
        os.close(lock)


def test_backup_and_restore_say_what_they_did(home: Path, tmp_path: Path) -> None:
    """They also explain the consequences for readers."""
    result = run("backup", home, tmp_path / "backup")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"Copied channel orders to {tmp_path / 'backup'}.",
        "Good: 47 events, next sequence 72.",
    ]
    result = run("restore", tmp_path / "backup", tmp_path / "restored", "--name", "other")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Restored channel other to {tmp_path / 'restored'}.\nGood: 47 events")
    assert "readers see a new channel id" in result.stdout
    assert result_of("restore", tmp_path / "backup", tmp_path / "again")["channel"] == NAME


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["log", "verify"], "name the channel's directories, or --config FILE and --channel NAME"),
        (["log", "verify", "--config", "x"], "--config FILE and --channel NAME must be given together"),
        (["log", "verify", "--channel", "x"], "--config FILE and --channel NAME must be given together"),
        (["log", "verify", "nowhere"], "nowhere: is not a directory"),
        (["log", "verify", "no\n\x1b[2J"], r"no\n\x1b[2J: is not a directory"),
        (["log", "verify", "--config", "no.toml", "--channel", "x"], "no.toml: cannot be read: No such file"),
        (["log", "verify", ".", "--key", "x"], "--key: is 'x'; it must be ID=FILE"),
        (["log", "verify", ".", "--key", "=x"], "--key: is '=x'; it must be ID=FILE"),
        (["log", "verify", ".", "--key", "a=nowhere"], "key 'a': nowhere cannot be read: No such file"),
        (["log", "dump", ".", "--from", "x"], "--from: is 'x'; it must be SEGMENT or SEGMENT:BYTE"),
        (["backup", "target"], "name the channel's directories"),
        (["restore", "nowhere"], "name the channel's directories"),
        (["restore", "nowhere", "target"], "nowhere: is not a directory"),
    ],
)
def test_command_line_that_names_something_else_is_refused_in_a_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is created, and control characters are escaped."""
    monkeypatch.chdir(tmp_path)
    assert sentence in refused(*arguments, exit_code=EXIT_USAGE)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_bytes(os.urandom(32))
    file.chmod(0o600)
    return file


def test_tools_without_a_key_say_which_and_how(key_file: Path, tmp_path: Path) -> None:
    """A missing key is not damage, and a wrong one never leads to a loss."""
    home = make_channel(tmp_path, encryption=EncryptionConfig(keys={"2026": key_file}, active_key="2026"))
    sentence = refused("log", "verify", home, exit_code=EXIT_UNAVAILABLE)
    assert "the encryption key '2026' is needed, and was not given; give it with --key 2026=FILE" in sentence
    assert "key 2026 would be needed" in run("log", "verify", "--no-keys", home).stdout
    assert run("log", "verify", home, "--key", f"2026={key_file}").exit_code == 0
    assert refused("log", "repair", home, "--yes", exit_code=EXIT_UNAVAILABLE)
    wrong = tmp_path / "wrong"
    wrong.write_bytes(os.urandom(32))
    wrong.chmod(0o600)
    before = contents(home)
    for command in (("verify",), ("repair", "--yes")):
        sentence = refused("log", *command, home, "--key", f"2026={wrong}", exit_code=EXIT_UNAVAILABLE)
        assert "the encryption key '2026' is needed, and the one given is most likely another" in sentence
    dumped = run("log", "dump", home, "--key", f"2026={wrong}").stdout
    assert "the one given is most likely another" in dumped
    assert "DAMAGED" not in dumped
    assert contents(home) == before
    copied_without = run("backup", home, tmp_path / "backup")
    assert "To read it, keep the keys: 2026." in copied_without.stdout


def test_tools_of_another_versions_log_say_so(home: Path) -> None:
    """No file is changed."""
    set_version(segments(home)[1], LATER_VERSION)
    sentence = refused("log", "verify", home, exit_code=EXIT_UNAVAILABLE)
    assert sentence.endswith("this program knows 1 and 2; use the millraced that wrote it")


def test_tools_with_the_servers_file_find_directories_and_keys_there(key_file: Path, tmp_path: Path) -> None:
    """This includes channels created by CreateChannel, which are in the catalog."""
    data_dirs = [tmp_path / "disk-a", tmp_path / "disk-b"]
    encryption = EncryptionConfig(keys={"2026": key_file}, active_key="2026")
    limits: dict[str, Any] = {"data_dirs": data_dirs, "checkpoint_dir": tmp_path / "disk-c", "encryption": encryption}
    make_channel(tmp_path, **limits)
    config = tmp_path / "millrace.toml"
    config.write_text(
        f"""
        [server]
        data_dir = "{tmp_path / "data"}"
        [channels.quick]
        type = "memory"
        [channels.orders]
        type = "file"
        data_dirs = ["{data_dirs[0]}", "{data_dirs[1]}"]
        checkpoint_dir = "{tmp_path / "disk-c"}"
        encryption = {{ active_key = "2026", keys = {{ 2026 = "{key_file}" }} }}
        """
    )
    of_orders = ("--config", config, "--channel", "orders")
    assert result_of("log", "verify", *of_orders)["state"]["events"] == 47
    assert run("backup", *of_orders, tmp_path / "backup").exit_code == 0
    for directory in ("disk-a", "disk-b", "disk-c"):
        (tmp_path / directory).rename(tmp_path / f"former-{directory}")
    assert run("restore", *of_orders, tmp_path / "backup").exit_code == 0
    assert result_of("log", "verify", *of_orders)["state"]["events"] == 47
    assert (tmp_path / "disk-c" / NAME / NEWEST).exists()
    assert "channel quick is of type memory, which has no files" in refused(
        "log", "verify", "--config", config, "--channel", "quick", exit_code=EXIT_USAGE
    )
    assert "has a channel nosuch" in refused(
        "log", "verify", "--config", config, "--channel", "nosuch", exit_code=EXIT_USAGE
    )
    assert "must be given together" in refused("log", "verify", tmp_path, *of_orders, exit_code=EXIT_USAGE)
    make_channel(tmp_path / "data" / "channels", "made")
    Catalog(tmp_path / "data" / "catalog.json").put("made", FileChannelConfig(type="file"))
    assert result_of("log", "verify", "--config", config, "--channel", "made")["channel"] == "made"
    (tmp_path / "data" / "catalog.json").write_text("nonsense")
    assert "catalog" in refused("log", "verify", "--config", config, "--channel", "made", exit_code=EXIT_USAGE)


def test_progress_on_a_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal there is no bar, so that scripts read only responds."""
    screen = io.StringIO()
    monkeypatch.setattr(log_targets, "Console", lambda **_options: Console(file=screen, force_terminal=True, width=100))
    with log_targets.shown_progress() as shown:
        shown.begin("reading", 1000)
        shown.advance(500)
        shown.begin("recovering", 3)
        shown.advance(3)
    assert "recovering" in screen.getvalue()


def test_tools_on_a_disk_that_fails_say_which_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any system error is reported without a traceback."""

    def refuse(_path: Path) -> None:
        raise PermissionError(13, "Permission denied", "somewhere")

    monkeypatch.setattr("millrace_server.log_tools.view.check_regular", refuse)
    assert refused("log", "verify", home, exit_code=EXIT_DAMAGED) == "millraced: somewhere: Permission denied"
