"""The connection to an engine, and its end."""

import asyncio
from unittest.mock import AsyncMock

import pytest

from millrace_server.replication.engine import Engine


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
async def test_close_while_the_connection_breaks_ends_all_the_same(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that stops while its engine is down exits as usual, and leaves no task behind."""

    async def reset() -> None:
        raise ConnectionResetError

    engine = await Engine.connected([nats_url])
    monkeypatch.setattr(engine.nats._transport, "drain", reset)
    # Something that waits to be sent, as during a reconnect.
    monkeypatch.setattr(engine.nats, "_flush_pending", AsyncMock())
    monkeypatch.setattr(engine.nats, "_pending", [b"PING\r\n"])
    monkeypatch.setattr(engine.nats, "_pending_data_size", 6)
    await asyncio.to_thread(engine.close)
    assert not engine._thread.is_alive()
    assert engine._loop.is_closed()
    assert caplog.messages == []
