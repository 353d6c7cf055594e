"""`millrace channels SERVER...`, and moving a channel from one server to another."""

import json
from dataclasses import replace
from typing import Any, cast

import pytest
from typer.testing import CliRunner, Result

from millrace_client import ChannelState, ChannelType, UnavailableError
from millrace_client.cli.program import app
from millrace_client.cli.session import Session
from tests.unit.cli.conftest import RunMillrace
from tests.unit.cli.fake_channel import LIMITS, FakeChannel
from tests.unit.cli.fake_client import FakeClient

_REPLICATED = replace(LIMITS, type=ChannelType.REPLICATED)


def _shared(name: str, owner: str = "", *, is_open: bool = False) -> FakeChannel:
    state = ChannelState.OPEN if is_open else ChannelState.STANDING_BY
    return FakeChannel(name, config=_REPLICATED, state=state, owner=owner)


@pytest.fixture
def servers(millrace: RunMillrace) -> dict[str, FakeClient]:
    """Three servers that share channels, by their addresses; `millrace` hides the contexts of who runs the tests."""
    clients = {f"mill-{number}:7070": FakeClient() for number in (1, 2, 3)}
    one, two, three = clients.values()
    one.admin.channels = {"eu": _shared("eu", is_open=True), "us": _shared("us", "mill-2:7070")}
    two.admin.channels = {"eu": _shared("eu", "mill-1:7070"), "us": _shared("us", is_open=True)}
    three.admin.channels = {
        "eu": _shared("eu", "mill-1:7070"),
        "us": _shared("us", "mill-2:7070"),
        "asia": _shared("asia"),
        "own": FakeChannel("own"),
    }
    one.admin.channels["own"] = FakeChannel("own")
    return clients


def channels(servers: dict[str, FakeClient], *arguments: str) -> Result:
    def connect(endpoint: str, **options: Any) -> FakeClient:
        return servers[endpoint].connect(endpoint, **options)

    session = Session(connect=cast("Any", connect))
    return CliRunner().invoke(app, ["channels", *arguments], obj=session, prog_name="millrace")


def test_channels_of_several_servers_show_each_shared_one_once_with_its_owner(servers: dict[str, FakeClient]) -> None:
    """Other channels belong to each server by itself."""
    result = channels(servers, *servers)
    assert result.exit_code == 0, result.output
    heading, *rows = [line.split() for line in result.stdout.splitlines()]
    assert heading[:4] == ["CHANNEL", "STATE", "SERVER", "STANDBY"]
    assert [row[:4] for row in rows] == [
        # No server owns it.
        ["asia", "standing_by", "1", "0"],
        ["eu", "open", "mill-1:7070", "2"],
        ["own", "open", "mill-1:7070", "-"],
        ["own", "open", "mill-3:7070", "-"],
        ["us", "open", "mill-2:7070", "2"],
    ]


def test_channels_of_several_servers_as_json_name_those_that_stand_by(servers: dict[str, FakeClient]) -> None:
    """An owner that was not asked is named too."""
    found = json.loads(channels(servers, "mill-1:7070", "mill-3:7070", "--json").stdout)
    assert [(one["name"], one["server"], one["standbys"]) for one in found] == [
        ("asia", None, ["mill-3:7070"]),
        ("eu", "mill-1:7070", ["mill-3:7070"]),
        ("own", "mill-1:7070", []),
        ("own", "mill-3:7070", []),
        ("us", "mill-2:7070", ["mill-1:7070", "mill-3:7070"]),
    ]


def test_channels_with_a_server_that_does_not_respond_show_the_others(servers: dict[str, FakeClient]) -> None:
    """The exit code says that something is missing."""
    servers["mill-1:7070"].admin.errors.append(UnavailableError("gone"))
    result = channels(servers, *servers)
    assert result.exit_code == 3
    assert "1 server of 3 did not respond" in result.stderr
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines()}
    # Those that stand by know the owner.
    assert "mill-1:7070" in rows["eu"]


def test_channels_of_servers_beside_the_option_are_refused(servers: dict[str, FakeClient]) -> None:
    """One of the two would be ignored."""
    result = channels(servers, "mill-1:7070", "--server", "mill-2:7070")
    assert result.exit_code == 2
    assert "not both" in result.stderr


def test_move_hands_a_channel_to_a_server(millrace: RunMillrace, client: FakeClient) -> None:
    """The default port is added."""
    result = millrace("channel", "move", "orders", "mill-2")
    assert result.exit_code == 0, result.output
    assert client.admin.moves == [("orders", "mill-2:7070")]
