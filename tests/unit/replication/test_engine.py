"""The connection to an engine, and its end."""

import asyncio
from collections.abc import Callable
from unittest.mock import AsyncMock

import pytest
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from millrace_server.replication.connection import Connection
from millrace_server.replication.engine import Engine
from tests.stream_logs import engine_at
from tests.waiting import until


async def test_close_while_the_connection_breaks_ends_all_the_same(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, logged_here: Callable[[], list[str]]
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
    assert logged_here() == []


async def test_ask_that_waited_too_long_leaves_its_response_to_nobody(nats_url: str) -> None:
    """A response that comes too late is not taken for that to the next question."""
    async with engine_at(nats_url) as engine:
        await asyncio.wrap_future(engine.call(_ask_twice(engine.nats)))


async def _ask_twice(connection: Connection) -> None:
    asked: list[Msg] = []

    async def respond(message: Msg) -> None:
        asked.append(message)
        if len(asked) == 2:
            for number, each in enumerate(asked):
                await each.respond(b"%d" % number)

    await connection.subscribe("questions", cb=respond)
    with pytest.raises(TimeoutError):
        await connection.ask("questions", {}, [b"first"], 0.01)
    assert await connection.ask("questions", {}, [b"sec", b"ond"], 30) == b"1"
    assert [message.data for message in asked] == [b"first", b"second"]
    with pytest.raises(NoRespondersError):
        await connection.ask("nowhere", {}, [b""], 30)


@pytest.mark.parametrize("moment", ["before it begins", "while nothing is there", "once it is open"])
async def test_close_of_a_lone_connection_ends_it(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, logged_here: Callable[[], list[str]], moment: str
) -> None:
    """Whatever it is doing, and it leaves no task behind."""
    engine = await Engine.connected([nats_url])
    if moment == "while nothing is there":
        monkeypatch.setattr(engine, "_servers", ["nats://127.0.0.1:1"])
    before = asyncio.all_tasks()
    engine.connect_lone()
    lone = engine.lone
    assert lone is not None
    if moment != "before it begins":
        await until(lambda: lone.is_open or bool(lone.last_error))
    await asyncio.to_thread(engine.close)
    assert not lone.is_open
    assert asyncio.all_tasks() == before
    assert logged_here() == []
