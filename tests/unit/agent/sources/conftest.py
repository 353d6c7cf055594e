"""Fixtures of the tests of sources."""

from functools import partial

import pytest

from millrace_server.agent import channel_writer, runners
from millrace_server.agent.supervision import Backoff


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a source that failed, or whose channel is full, retry after hundredths of a second."""
    for module in (channel_writer, runners):
        monkeypatch.setattr(module, "Backoff", partial(Backoff, 0.04, 0.1))
