"""`millraced import-flume`, and examples of Flume's user guide that run."""

import json
import re
import socket
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.conftest import StartMillraced
from tests.flume_imports import EXAMPLES, example
from tests.free_ports import free_port
from tests.integration.daemon_queries import stored_bodies, stored_count
from tests.millraced import Millraced, run_millraced
from tests.waiting import wait_until

DROPPED_SINK = re.compile(r"\[sinks\..*", re.DOTALL)


def imported_toml(tmp_path: Path, text: str, *options: str) -> str:
    """The configuration that the command writes for properties, and which it has checked."""
    (tmp_path / "flume.conf").write_text(text, encoding="utf-8")
    ran = run_millraced("import-flume", "flume.conf", "--output", "millrace.toml", *options, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    toml = (tmp_path / "millrace.toml").read_text(encoding="utf-8")
    (tmp_path / "millrace.toml").unlink()
    return toml


def test_import_flume_reports_each_fate_with_its_line_and_a_summary(tmp_path: Path) -> None:
    """What needs attention comes first; the configuration is on standard output."""
    (tmp_path / "f.conf").write_text(f"{example('simple_netcat')}a1.channels.c1.odd = 1\nb.channels = c\nx = 1\n")
    ran = run_millraced("import-flume", "f.conf", "--agent", "a1", cwd=tmp_path)
    assert ran.returncode == 0
    assert ran.stderr.splitlines() == [
        "millraced: f.conf:13: a1.channels.c1.odd: left out: is not a property of memory in Flume's user guide",
        "millraced: 1 property of agent b: ignored",
        "millraced: 1 property of no agent: ignored",
        "millraced: agent a1, 13 properties: 12 converted, 0 not needed, 0 changed in meaning, 1 left out",
    ]
    assert "# Converted from Flume's agent a1." in ran.stdout
    assert "# odd: is not a property of memory in Flume's user guide." in ran.stdout


def test_import_flume_strict_writes_nothing_if_something_is_left_out(tmp_path: Path) -> None:
    """So that a script that converts a fleet notices; without losses it writes the file."""
    ran = run_millraced("import-flume", EXAMPLES / "jms.properties", "--strict", "--output", "out.toml", cwd=tmp_path)
    assert ran.returncode == 2
    assert "nothing was written" in ran.stderr
    assert not (tmp_path / "out.toml").exists()
    good = run_millraced(
        "import-flume", EXAMPLES / "simple_netcat.properties", "--strict", "-o", "out.toml", cwd=tmp_path
    )
    assert good.returncode == 0
    assert (tmp_path / "out.toml").stat().st_mode & 0o777 == 0o600


def test_import_flume_of_several_files_merges_them(tmp_path: Path) -> None:
    """Of a property that comes twice the last value counts, and a property may refer to one of another file."""
    (tmp_path / "base.conf").write_text(example("environment").replace("${env:NC_PORT}", "${NC_PORT}"))
    (tmp_path / "override.conf").write_text("NC_PORT = 44444\na1.sources.r1.bind = ${sys:bind}\n")
    ran = run_millraced("import-flume", "base.conf", "override.conf", "--define", "bind=localhost", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert 'listen = "localhost:44444"' in ran.stdout


def test_import_flume_of_what_has_to_be_filled_in_names_the_line(tmp_path: Path) -> None:
    """The file is written, and does not pass the check until the value is there."""
    (tmp_path / "f.conf").write_text(example("hdfs"))
    ran = run_millraced("import-flume", "f.conf", "--output", "out.toml", cwd=tmp_path)
    assert ran.returncode == 2
    assert re.search(r"to be fixed manually: out.toml:\d+: sinks.k1.path", ran.stderr)
    assert 'path = { fill_in = "hdfs://NAMENODE:8020/flume/events/' in (tmp_path / "out.toml").read_text()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"a.sources = s\nb = \\u00z0\n", "line 2: \\u must be followed by four hexadecimal digits"),
        (b"a.sources = s\nb = \xff\n", "line 2: is not UTF-8"),
        (b"a = \\u0000", "line 1: contains U+0000, which is not a character"),
        (b"nothing = here", "it describes no agent"),
        (b"a.sinks = k\nb.sinks = k", "it describes a and b; choose one with --agent"),
    ],
)
def test_import_flume_of_a_bad_file_says_where_it_is_bad(tmp_path: Path, content: bytes, sentence: str) -> None:
    """Each in one sentence, with the exit code of bad settings."""
    (tmp_path / "f.conf").write_bytes(content)
    ran = run_millraced("import-flume", "f.conf", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"millraced: f.conf: cannot be imported: {sentence}\n"


def test_import_flume_with_a_bad_option_or_file_says_so(tmp_path: Path) -> None:
    """A definition without a value, a file that is not there, and one that already exists."""
    assert "must be NAME=VALUE" in run_millraced("import-flume", "x", "--define", "x").stderr
    assert "No such file" in run_millraced("import-flume", "gone.conf", cwd=tmp_path).stderr
    (tmp_path / "out.toml").write_text("")
    there = run_millraced("import-flume", EXAMPLES / "simple_netcat.properties", "-o", "out.toml", cwd=tmp_path)
    assert (there.returncode, "File exists" in there.stderr) == (1, True)


def test_first_example_of_the_guide_runs(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """As in the guide: a line sent with telnet gets OK, and the logger logs it."""
    port = free_port()
    server = start_millraced(imported_toml(tmp_path, example("simple_netcat").replace("44444", str(port))))
    server.wait_for("listening")
    with socket.create_connection(("127.0.0.1", port), 20) as telnet, telnet.makefile("rwb") as lines:
        lines.write(b"Hello world!\r\n")
        lines.flush()
        assert lines.readline().strip() == b"OK"
    assert server.wait_for("an event")["body"] == "Hello world!"
    assert server.stop() == 0


def test_example_of_a_sequence_with_a_static_header_runs(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """Each event has the header, and the numbers begin at 0."""
    text = f"{example('static')}a1.sources.r1.totalEvents = 3\n"
    server = start_millraced(imported_toml(tmp_path, text))
    server.wait_for("an event", count=3)
    events = [entry for entry in server.log if entry["event"] == "an event"]
    assert [(entry["body"], entry["headers"]) for entry in events] == [
        (str(number), {"datacenter": "NEW_YORK"}) for number in range(3)
    ]


def test_examples_of_files_run(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """The Taildir and Spooling Directory sources read what is there; each line has the headers of its file."""
    for folder in ("test1", "test2", "spool"):
        (tmp_path / folder).mkdir()
    (tmp_path / "test1" / "example.log").write_text("one\n")
    (tmp_path / "test2" / ".my-log-2").write_text("two\n")
    (tmp_path / "spool" / "file").write_text("three\n")
    tail = example("taildir").replace("/var/log", str(tmp_path))
    spool = example("spooldir").replace("/var/log/apache/flumeSpool", f"{tmp_path}/spool")
    spool = spool.replace("a1.channels = ch-1\n", "a1.channels = c1 ch-1\n").replace(
        "a1.sources = src-1", "a1.sources = r1 src-1"
    )
    server = start_millraced(imported_toml(tmp_path, tail + spool))
    wait_until(lambda: stored_count(server, "c1") == 2 and stored_count(server, "ch-1") == 1)
    assert sorted(stored_bodies(server, "c1")) == [b"one", b"two"]
    wait_until((tmp_path / "spool" / "file.COMPLETED").exists)


def post(server_port: int, headers: dict[str, str]) -> None:
    body = json.dumps([{"headers": headers, "body": "an order"}]).encode()
    with closing(HTTPConnection("127.0.0.1", server_port, timeout=20)) as connection:
        connection.request("POST", "/", body, {"Content-Type": "application/json"})
        assert connection.getresponse().status == 200


def counts(server: Millraced, channels: str) -> list[int]:
    return [stored_count(server, channel) for channel in channels.split()]


def test_example_of_multiplexing_runs(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """Events go to the channels of their state, and others to the default one."""
    port = free_port()
    server = start_millraced(imported_toml(tmp_path, example("multiplexing").replace("5140", str(port))))
    server.wait_for("listening")
    for state in ("CZ", "US", "FR"):
        post(port, {"state": state})
    assert counts(server, "c1 c2 c3 c4") == [1, 1, 1, 1]


def test_example_with_an_optional_and_required_channel_runs(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """The guide's own: CA has a channel that is optional there, and required for AZ and NY."""
    port = free_port()
    text = example("multiplexing_optional").replace("5140", str(port))
    toml = DROPPED_SINK.sub("", imported_toml(tmp_path, text))
    server = start_millraced(toml)
    server.wait_for("listening")
    for state in ("CA", "AZ", "NY", "TX"):
        post(port, {"State": state})
    assert counts(server, "mem-channel-1 file-channel-2") == [3, 3]


def test_example_of_syslog_runs(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """A message over TCP is stored, with the headers that the import tells of."""
    port = free_port()
    server = start_millraced(imported_toml(tmp_path, example("syslog_tcp").replace("5140", str(port))))
    server.wait_for("listening")
    with socket.create_connection(("127.0.0.1", port), 20) as sender:
        sender.sendall(b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed\n")
    wait_until(lambda: stored_count(server, "c1") == 1)
