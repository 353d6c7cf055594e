import json
import signal
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner, Result

from millrace_client import ChannelState, ComponentState, UnavailableError
from millrace_client.cli import report_command
from millrace_client.cli.program import app
from millrace_client.cli.session import Session
from tests.unit.cli.conftest import RunMillrace
from tests.unit.cli.fake_channel import ACCESS, FakeChannel
from tests.unit.cli.fake_client import FakeClient


@pytest.fixture
def servers(millrace: RunMillrace) -> dict[str, FakeClient]:
    """Two servers by their addresses, each with a context of its own."""
    clients = {"one:7070": FakeClient(), "two:7070": FakeClient()}
    for address in clients:
        assert millrace("context", "add", address.partition(":")[0], "--server", address).exit_code == 0
    return clients


def report(servers: dict[str, FakeClient], *arguments: str) -> Result:
    def connect(endpoint: str, **options: Any) -> FakeClient:
        return servers[endpoint].connect(endpoint, **options)

    session = Session(connect=cast("Any", connect))
    return CliRunner().invoke(app, ["report", "--interval", "0.1", *arguments], obj=session, prog_name="millrace")


def test_report_that_is_interrupted_waits_for_no_server(
    servers: dict[str, FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for the interval over which rates are measured."""
    may_end = threading.Event()

    def sleep(_seconds: float) -> None:
        signal.pthread_kill(cast("int", threading.main_thread().ident), signal.SIGINT)
        assert may_end.wait(60.0)

    monkeypatch.setattr(report_command, "time", SimpleNamespace(sleep=sleep))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert report(servers, "one").exit_code == 130
    finally:
        signal.signal(signal.SIGINT, before)
        may_end.set()


def test_report_has_what_is_wrong_first(servers: dict[str, FakeClient]) -> None:
    """Of all servers, whatever their names: channels that serve nothing, then full ones, then the deepest."""
    one, two = servers.values()
    one.admin.channels["calm"] = FakeChannel("calm")
    one.admin.channels["deep"] = FakeChannel("deep")
    one.admin.channels["deep"].add("x")
    for _ in range(85):
        one.orders.add("x")
    two.admin.channels = {"zebra": FakeChannel("zebra", state=ChannelState.CORRUPT, fault="segment 3 is damaged")}
    two.admin.components = [replace(ACCESS, state=ComponentState.FAILED, reason="no such file")]
    result = report(servers)
    assert result.exit_code == 0, result.output
    totals, channels, components = (
        [line.split() for line in table.splitlines()] for table in result.stdout.split("\n\n")
    )
    assert [row[:3] + row[-2:] for row in totals[1:]] == [["one", "up", "3", "1", "-"], ["two", "up", "1", "2", "-"]]
    assert [row[:3] for row in channels[1:]] == [
        ["zebra", "corrupt", "two"],
        ["orders", "open", "one"],
        ["deep", "open", "one"],
        ["calm", "open", "one"],
    ]
    assert channels[1][-4:] == ["segment", "3", "is", "damaged"]
    assert channels[2][-2:] == ["85%", "full"]
    assert components[1][:3] == ["sources/access", "failed", "two"]
    assert len(report(servers, "--limit", "1").stdout.split("\n\n")[1].splitlines()) == 2


def test_report_shows_who_owns_a_channel(servers: dict[str, FakeClient]) -> None:
    """A server that stands by is in order; a channel that nobody owns is not."""
    one, two = servers.values()
    one.admin.channels = {
        "eu": FakeChannel("eu", state=ChannelState.STANDING_BY, owner="two:7070"),
        "us": FakeChannel("us", state=ChannelState.STANDING_BY),
    }
    two.admin.channels = {"eu": FakeChannel("eu")}
    _, channels, *_ = ([line.split() for line in table.splitlines()] for table in report(servers).stdout.split("\n\n"))
    assert [row[:2] for row in channels[1:]] == [["us", "standing_by"], ["eu", "owned"], ["eu", "open"]]
    assert channels[1][-4:] == ["no", "server", "owns", "it"]
    assert channels[2][1:5] == ["owned", "by", "two:7070", "one"]


def test_report_with_a_server_that_does_not_respond_has_the_others(servers: dict[str, FakeClient]) -> None:
    """The exit code says that something is missing."""
    servers["one:7070"].admin.errors.append(UnavailableError("gone"))
    result = report(servers)
    assert result.exit_code == 3
    assert "1 server of 2 did not respond" in result.stderr
    assert result.stdout.splitlines()[1].split()[:3] == ["one", "no", "response"]
    first, second = json.loads(report(servers, "two", "one:7070", "--json").stdout)
    assert (first["server"], first["error"], second["server"]) == ("two", None, "one:7070")
    assert first["channels"][0]["events_per_second"] == {"in": 0.0, "out": 0.0}


def test_report_of_a_name_that_is_no_server_is_refused(servers: dict[str, FakeClient]) -> None:
    """The message says where contexts are."""
    result = report(servers, "no server")
    assert (result.exit_code, "millrace context list" in result.stderr) == (2, True)
