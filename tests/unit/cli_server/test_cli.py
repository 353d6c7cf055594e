import json
import logging
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace_server import logs
from millrace_server.cli import app
from millrace_server.cli.reporting import EXIT_CANNOT_START, EXIT_USAGE
from millrace_server.errors import StartError
from millrace_server.process import daemon
from tests.fork_server import run_code

GOOD = """
[server]
listen = "127.0.0.1:0"
data_dir = "somewhere"
[channels.orders]
type = "memory"
capacity = 50
byte_capacity = 1000
[channels.logs]
type = "memory"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "millrace.toml"


def test_version_shows_the_release() -> None:
    """The version is that of the installed distribution."""
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"millraced {version('millrace-server')}\n")


def test_check_of_a_good_file_says_what_it_says(file: Path) -> None:
    """A valid file is summarized, and nothing is created."""
    file.write_text(GOOD)
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == 0
    first, second, orders, logs = result.output.splitlines()
    assert first == f"{file} is valid."
    assert second == "gRPC listens on 127.0.0.1:0, HTTP on 127.0.0.1:7071; data is stored in somewhere."
    assert (
        orders
        == "Channel orders: memory, holds 50 events and 1000 B, 800 B of them for bodies; 50 events in a transaction."
    )
    assert logs.startswith("Channel logs: memory, holds 100 events and ")
    assert not Path("somewhere").exists()


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        (
            "",
            (
                "  Its log is in somewhere/channels/orders; it is synced before each commit is acknowledged; "
                "records are not compressed and not encrypted."
            ),
        ),
        (
            """
            data_dirs = ["/disk-1", "/disk-2"]
            checkpoint_dir = "/disk-3"
            fsync = "interval"
            fsync_interval_seconds = 0.5
            compression = "zstd"
            encryption = { active_key = "2026", keys = { 2026 = "/keys/2026" } }
            """,
            (
                "  Its log is in /disk-1/orders and /disk-2/orders, its checkpoints in /disk-3/orders; "
                "it is synced every 0.5 s, so a power failure loses the commits since the last sync; "
                "records are compressed with zstd and encrypted with the key 2026."
            ),
        ),
    ],
)
def test_check_of_a_file_channel_says_where_and_how_it_keeps_its_log(file: Path, toml: str, sentence: str) -> None:
    """The output says which disks will fill, and what a crash can lose. No directory is created."""
    file.write_text(f'[server]\ndata_dir = "somewhere"\n[channels.orders]\ntype = "file"\n{toml}')
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == 0
    *_, orders, log = result.stdout.splitlines()
    assert orders == (
        "Channel orders: file, holds 1,000,000 events and 8.0 GiB, 6.4 GiB of them for bodies; "
        "10,000 events in a transaction."
    )
    assert log == sentence
    assert not Path("somewhere").exists()


def test_check_warns_of_keys_that_cannot_be_used_here(file: Path) -> None:
    """The file is valid, since it may be meant for another machine."""
    key, shown_to_all = file.with_name("good.key"), file.with_name("shown.key")
    for path, mode in ((key, 0o600), (shown_to_all, 0o644)):
        path.write_text("5a" * 32)
        path.chmod(mode)
    keys = f'{{ good = "{key}", shown = "{shown_to_all}", lost = "{file}.key" }}'
    file.write_text(f'[channels.orders]\ntype = "file"\nencryption = {{ active_key = "good", keys = {keys} }}\n')
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == 0
    warnings = "".join(result.stderr.splitlines())
    assert warnings.count("channel orders would not open here: key ") == 2
    assert f"key 'shown': {shown_to_all} has mode 0644" in warnings
    assert f"key 'lost': {file}.key cannot be read: No such file or directory" in warnings


@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        (
            'type = "millrace"\nendpoints = ["b:7070"]\ntarget_channel = "a"\ntls = { ca = "none.pem" }',
            "tls: none.pem cannot",
        ),
        (
            'type = "millrace"\nendpoints = ["b:7070"]\ntarget_channel = "a"\ntls = {}\ntoken_file = "none"',
            "token_file: none cannot be read: No such file or directory",
        ),
        ('type = "avro"\nendpoints = ["b:4141"]\ntls = { ca = "none.pem" }', "tls.ca: none.pem has no readable PEM"),
        ('type = "http"\nurl = "https://b/"\nca_file = "none.pem"', "ca_file none.pem cannot be read"),
    ],
)
def test_check_warns_of_files_with_which_a_sink_cannot_connect(file: Path, sink: str, problem: str) -> None:
    """The file is valid here too, but the sink would fail at each start."""
    file.write_text(f'[channels.orders]\ntype = "memory"\n[sinks.out]\nchannel = "orders"\n{sink}\n')
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == 0, result.stderr
    assert f"sink out could not connect from here: {problem}" in result.stderr


def test_check_of_a_spillable_channel_says_what_a_crash_loses(file: Path) -> None:
    """The output says how much is only in memory, and where the rest is stored."""
    file.write_text(
        '[server]\ndata_dir = "somewhere"\n[channels.orders]\ntype = "spillable"\n'
        "memory_capacity = 500\nmemory_byte_capacity = 1000\n"
    )
    *_, orders, memory, log = CliRunner().invoke(app, ["check", str(file)]).output.splitlines()
    assert orders.startswith(
        "Channel orders: spillable, holds 1,000,000 events and 8.0 GiB, 6.4 GiB of them for bodies"
    )
    assert memory == "  Of these, up to 500 events and 800 B of bodies are in memory only, and a crash loses them."
    assert log.startswith("  Its log is in somewhere/channels/orders; it is synced before each commit is acknowledged")


def test_check_of_a_replicated_channel_says_which_engine_has_its_log(file: Path) -> None:
    """Its size at the engine's servers is said, since each reserves it."""
    file.write_text(
        '[channels.orders]\ntype = "replicated"\n'
        'engine = { type = "jetstream", servers = ["nats://n1", "nats://n2"], stream_bytes_max = "50MiB" }\n'
    )
    *_, log = CliRunner().invoke(app, ["check", str(file)]).output.splitlines()
    assert log == (
        "  Its log is in jetstream at nats://n1 and nats://n2, 50.0 MiB at 3 servers; another server "
        "takes over after 15 s; records are not compressed and not encrypted."
    )


def test_check_of_an_empty_file_says_that_there_are_no_channels(file: Path) -> None:
    """The defaults are valid, too."""
    file.touch()
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == 0
    assert "No channels are configured." in result.output


@pytest.mark.parametrize("command", ["check", "serve"])
def test_command_with_a_bad_file_shows_all_problems_on_standard_error(file: Path, command: str) -> None:
    """Both commands print the same, one problem per line, and have an exit code of their own."""
    file.write_text('[server]\nlisten = "x"\nreflection = 1\n[channels.a]\ntype = "fiel"\n')
    result = CliRunner().invoke(app, ["check", str(file)] if command == "check" else ["serve", "--config", str(file)])
    assert result.exit_code == EXIT_USAGE
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f'millraced: {file}:2: server.listen: is "x"; it must be host:port, such as 127.0.0.1:7070 or [::1]:7070',
        f"millraced: {file}:3: server.reflection: is 1; it must be true or false",
        (
            f'millraced: {file}:5: channels.a.type: is "fiel"; it must be "memory" or "file" or "spillable" '
            'or "replicated"; did you mean "file"?'
        ),
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--listen", "nowhere"], 'millraced: command line: server.listen: is "nowhere"; it must be host:port'),
        (["--http-listen", "0.0.0.0:x"], 'server.http_listen: is "0.0.0.0:x"; its port must be a whole number'),
        (["--advertise", "0.0.0.0:1"], 'server.advertise: is "0.0.0.0:1"; it must be one that clients can connect to'),
        (["--data-dir", ""], 'server.data_dir: is ""; it must be the path of a file or directory'),
        (["--config", "no/such.toml"], "millraced: no/such.toml: cannot be read: No such file or directory"),
        (["--config", "no\n\x1b[2J"], "millraced: no\\n\\x1b[2J: cannot be read"),
    ],
)
def test_serve_with_a_bad_option_says_so_in_a_sentence(arguments: list[str], sentence: str) -> None:
    """Options are checked like the file, and control characters in them are escaped."""
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == EXIT_USAGE
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [[], ["serve", "x"], ["check"], ["nothing"], ["--nothing"]])
def test_command_line_that_is_none_shows_how_it_goes(arguments: list[str]) -> None:
    """Wrong usage exits with 2 and shows the usage."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == EXIT_USAGE
    assert "Usage" in result.output


@pytest.mark.parametrize(("options", "level"), [((), logging.INFO), (("--log-level", "warning"), logging.WARNING)])
def test_serve_with_a_log_level_logs_from_it_on(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], level: int
) -> None:
    """By default the log has everything but debugging."""
    levels: list[int] = []

    async def fail(*_: object) -> None:
        raise StartError("the port is in use")

    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")
    monkeypatch.setattr(logs, "configure_logging", lambda _, level: levels.append(level))
    monkeypatch.setattr(daemon, "serve", fail)
    result = CliRunner().invoke(app, ["serve", *options])
    assert (result.exit_code, result.stderr) == (EXIT_CANNOT_START, "millraced: the port is in use\n")
    assert levels == [level]


def test_check_as_json_has_paths_and_lines(file: Path) -> None:
    """Programs such as editors get all problems, and an empty list for a valid file."""
    file.write_text('[server]\n\nlisten = "x"\n[channels.a]\ntype = "file"\ncapacity = "many"\n')
    result = CliRunner().invoke(app, ["check", str(file), "--json"])
    assert (result.exit_code, result.stderr) == (EXIT_USAGE, "")
    assert json.loads(result.stdout) == {
        "file": str(file),
        "is_valid": False,
        "problems": [
            {
                "path": "server.listen",
                "line": 3,
                "sentence": 'is "x"; it must be host:port, such as 127.0.0.1:7070 or [::1]:7070',
            },
            {
                "path": "channels.a.capacity",
                "line": 6,
                "sentence": 'is "many"; it must be a whole number from 1 to 1_000_000_000, or text such as "1M"',
            },
        ],
    }
    file.write_text(GOOD)
    result = CliRunner().invoke(app, ["check", str(file), "--json"])
    assert (result.exit_code, json.loads(result.stdout)["problems"]) == (0, [])


def test_serve_with_a_file_as_its_argument_names_the_option() -> None:
    """Other programs take their configuration as an argument."""
    result = CliRunner().invoke(app, ["serve", "agent.toml"])
    assert (result.exit_code, result.stdout) == (EXIT_USAGE, "")
    assert "unexpected argument 'agent.toml'; name the configuration with --config" in result.stderr


def test_check_of_an_imported_file_says_what_is_to_be_filled_in(file: Path) -> None:
    """A value that Flume's file took from elsewhere is named, not called a table."""
    source = '[sources.s]\ntype = "taildir"\nchannels = ["c"]\npaths = [{ fill_in = "${env:LOGS}/a" }]\n'
    file.write_text(f'[channels.c]\ntype = "file"\n{source}')
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == EXIT_USAGE
    assert 'sources.s.paths[0]: is to be filled in, for "${env:LOGS}/a"; it must be text' in result.stderr


def test_serve_with_closed_streams_gives_their_descriptors_to_no_file() -> None:
    """What libraries write to standard error must not end up in a channel's log."""
    ran = run_code(
        """
        import os, sys
        from millrace_server.cli import _open_missing_streams

        for closed in (0, 2):
            os.close(closed)
        sys.stderr = None
        _open_missing_streams()
        print([os.path.samestat(os.fstat(one), os.stat(os.devnull)) for one in (0, 2)], sys.stderr.writable())
        """,
        warning_filters=("error",),
    )
    assert (ran.returncode, ran.stdout) == (0, "[True, True] True\n")
