import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import pytest
from typer.testing import CliRunner, Result

from millrace_client.cli import put_command
from millrace_client.cli.program import app
from millrace_client.cli.session import Session
from millrace_client.dead_letters import targets
from tests.unit.cli.fake_channel import FakeChannel, fake_append_pipelined
from tests.unit.cli.fake_client import FakeClient


class RunMillrace(Protocol):
    def __call__(self, *arguments: str, typed: str = "") -> Result: ...


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def orders(client: FakeClient) -> FakeChannel:
    return client.orders


@pytest.fixture
def millrace(client: FakeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RunMillrace:
    """Runs `millrace` in this process with the fake client, in an environment without variables and contexts."""
    for name in [name for name in os.environ if name.startswith("MILLRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(put_command, "Producer", client.produce)
    monkeypatch.setattr(targets, "append_pipelined", fake_append_pipelined)
    session = Session(connect=cast("Callable[..., Any]", client.connect))

    def run(*arguments: str, typed: str = "") -> Result:
        return CliRunner().invoke(app, arguments, input=typed, obj=session, prog_name="millrace")

    return run
