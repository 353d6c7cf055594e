"""How a log gets its groups into a stream: a lone one without a thread."""

import asyncio
from functools import partial
from typing import Any, Never

import pytest
from nats.aio.transport import TcpTransport

from millrace_server.replication.engine import Engine
from millrace_server.replication.lone_connection import LoneConnection
from millrace_server.replication.stream import Stream, StreamLimits
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.records import LogFailedError, LogFullError, LogTakenOverError
from millrace_server.wal.writer_threads import Work
from tests.stream_logs import LIMITS, OwnedLog, engine_at, new_name, owned_log
from tests.waiting import WAIT_SECONDS_MAX, until

_MIB = 1 << 20


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response that is late on a busy machine is not taken for a lost one."""
    monkeypatch.setattr("millrace_server.replication.chain.CALL_SECONDS", WAIT_SECONDS_MAX)


async def test_submit_of_a_lone_group_needs_no_thread(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a change of threads who has nothing to wait for."""
    runs = list[Work]()
    async with engine_at(nats_url) as engine, owned_log(engine, new_name()) as log:
        await log.submit(b"begins a segment")
        assert log.log._writer is not None
        threads = log.log._writer._threads
        run = threads.run

        def counted_run(work: Work, *, is_urgent: bool = True) -> None:
            runs.append(work)
            run(work, is_urgent=is_urgent)

        monkeypatch.setattr(threads, "run", counted_run)
        for number in range(3):
            await _idle(log)
            await log.submit(b"%d" % number)
        await _idle(log)
        assert not runs
        await log.submit(b"x" * 3 * _MIB)
        assert len(runs) == 1
        await _idle(log)
        with log.together():
            together = [log.submit(b"1"), log.submit(b"2")]
        await asyncio.gather(*together)
        assert len(runs) == 2
        await _idle(log)
        await log.submit(b"perhaps one of two")
        assert len(runs) == 3
        await _idle(log)
        await log.submit(b"alone again")
        assert len(runs) == 3
        log.log.compress(compresses=True)
        await _idle(log)
        await log.submit(b"x" * 1_000)
        assert len(runs) == 4


async def _idle(log: OwnedLog) -> None:
    """Waits until nothing is being appended: the response comes a moment earlier."""
    writer = log.log._writer
    assert writer is not None
    await until(lambda: not writer._has_thread)


async def test_submit_while_another_message_is_appended_waits_for_it(nats_url: str) -> None:
    """A checkpoint, which has the turn meanwhile, does not make the channel's loop wait."""
    name = new_name()
    async with engine_at(nats_url) as engine:
        async with owned_log(engine, name) as log:
            await log.submit(b"1")
            with log.chain.turn:
                in_flight = [log.submit(b"2"), log.submit(b"3")]
                assert log.chain.last_sequence == log.chain.epoch + 1
            await asyncio.gather(*in_flight)
        async with owned_log(engine, name) as later:
            assert later.payloads == [b"1", b"2", b"3"]


async def test_close_while_a_lone_group_is_appended_stores_it(nats_url: str) -> None:
    """Also what was submitted behind it."""
    name = new_name()
    async with engine_at(nats_url) as engine:
        log = await OwnedLog.opened(engine, name)
        await log.submit(b"1")
        await _idle(log)
        in_flight = [log.submit(b"2"), log.submit(b"3")]
        await log.close()
        await asyncio.gather(*in_flight)
        with pytest.raises(LogFailedError, match="closed"):
            await log.submit(b"4")
        async with owned_log(engine, name) as later:
            assert later.payloads == [b"1", b"2", b"3"]


async def test_submit_that_cannot_begin_fails_the_log(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is, the caller has a response, and nothing is stored behind it."""

    def refuse(*_: object) -> Never:
        raise ZeroDivisionError

    async with engine_at(nats_url) as engine, owned_log(engine, new_name()) as log:
        await log.submit(b"1")
        await _idle(log)
        for way in ("begin", "append"):
            monkeypatch.setattr(log.chain, way, refuse)
        with pytest.raises(LogFailedError, match="ZeroDivisionError"):
            await log.submit(b"2")
        monkeypatch.undo()
        await _idle(log)
        with pytest.raises(LogFailedError, match="ZeroDivisionError"):
            await log.submit(b"3")


@pytest.mark.parametrize("has_lone", [True, False])
@pytest.mark.parametrize("codec", [PayloadCodec(), PayloadCodec(compresses=True)], ids=["alone", "on a thread"])
async def test_abandon_ends_what_is_being_appended(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, codec: PayloadCodec, *, has_lone: bool
) -> None:
    """A channel that was lost closes at once, although the engine does not respond; later appends are refused."""
    async with engine_at(nats_url, has_lone=has_lone) as engine, owned_log(engine, new_name(), codec=codec) as log:
        await log.submit(b"1")
        await _idle(log)
        asked = _let_no_response_come(engine, monkeypatch)
        in_flight = [log.submit(b"2"), log.submit(b"3")]
        await asked.wait()
        log.chain.abandon()
        for each in in_flight:
            with pytest.raises(LogTakenOverError, match="other servers may append"):
                await each
        monkeypatch.undo()
        with pytest.raises(LogTakenOverError, match="other servers may append"):
            await log.submit(b"4")


def _let_no_response_come(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Returns what is set once something is asked."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()

    def send(*_: object) -> "asyncio.Future[bytes]":
        loop.call_soon_threadsafe(asked.set)
        return asyncio.get_running_loop().create_future()

    for connection in (engine.nats, engine.lone):
        if connection is not None:
            monkeypatch.setattr(connection, "send", send)
    return asked


async def test_append_whose_cancellation_is_swallowed_ends(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library below may do that, and the append would be tried again for minutes."""
    async with engine_at(nats_url) as engine:
        stream = Stream(engine, new_name(), LIMITS)

        async def cancelled() -> None:
            await stream.open()
            appending = asyncio.ensure_future(stream.append("log", [b"1"], 1))

            async def ask(*_: Any) -> Never:
                appending.cancel()
                try:
                    await asyncio.Event().wait()
                finally:
                    raise TimeoutError

            monkeypatch.setattr(engine.nats, "ask", ask)
            with pytest.raises(asyncio.CancelledError):
                await appending

        await asyncio.wrap_future(engine.call(cancelled()))


@pytest.mark.parametrize("has_lone", [True, False])
async def test_append_to_a_transport_that_has_just_closed_is_stored_once(nats_url: str, *, has_lone: bool) -> None:
    """It notices before the rest of the connection does, and the append goes on over the next one."""
    name = new_name()
    async with engine_at(nats_url, has_lone=has_lone) as engine:
        async with owned_log(engine, name) as log:
            await log.submit(b"1")
            await _idle(log)
            connection = engine.lone or engine.nats
            assert connection._transport is not None
            if connection is engine.lone:
                connection._transport.close()  # type: ignore[no-untyped-call] # nats-py has few types
            else:
                engine.call_soon(connection._transport.close)
            await log.submit(b"2")
            await until(lambda: connection.stats["reconnects"] == 1)
        async with owned_log(engine, name) as later:
            assert later.payloads == [b"1", b"2"]


async def test_submit_of_a_lone_group_needs_no_other_event_loop(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes over the connection on the caller's loop, and where that is lost, over the other one."""
    name = new_name()
    async with engine_at(nats_url) as engine:
        async with owned_log(engine, name) as log:
            await log.submit(b"1")
            await _idle(log)
            calls = _counted_calls(engine, monkeypatch)
            for number in range(2, 5):
                await log.submit(b"%d" % number)
                await _idle(log)
            assert not calls
            assert engine.lone is not None
            await engine.lone.close()
            await log.submit(b"5")
            assert calls == ["start"]
        async with owned_log(engine, name) as later:
            assert later.payloads == [b"1", b"2", b"3", b"4", b"5"]


async def test_lone_group_too_large_for_its_connection_goes_over_the_other(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two may be to servers of the engine that take messages of different sizes."""
    async with engine_at(nats_url) as engine, owned_log(engine, new_name()) as log:
        await log.submit(b"1")
        await _idle(log)
        monkeypatch.setattr(engine.lone, "_max_payload", 1_000)
        calls = _counted_calls(engine, monkeypatch)
        await log.submit(b"x" * 2_000)
        assert calls == ["start"]


def _counted_calls(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the ways to the engine's event loop that are used from now on."""
    calls: list[str] = []

    def counted(way: str, *arguments: Any) -> Any:
        calls.append(way)
        return getattr(Engine, way)(engine, *arguments)

    for way in ("call", "start", "call_soon"):
        monkeypatch.setattr(engine, way, partial(counted, way))
    return calls


@pytest.mark.parametrize("fault", ["no response", "lost connection"])
async def test_lone_group_whose_outcome_is_unknown_is_stored_once(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The other connection finds out what became of it."""
    name = new_name()
    async with engine_at(nats_url) as engine:
        async with owned_log(engine, name) as log:
            first = await log.submit(b"1")
            await _idle(log)
            assert engine.lone is not None
            if fault == "no response":
                _lose_responses(engine.lone, monkeypatch)
                responded = log.submit(b"2")
            else:
                responded = log.submit(b"2")
                transport = engine.lone._transport
                assert isinstance(transport, TcpTransport)
                assert transport._io_writer is not None
                transport._io_writer.transport.abort()
            second = await responded
            third = await log.submit(b"3")
            places = [each.locations[0].segment_id for each in (first, second, third)]
            assert places == [places[0], places[0] + 1, places[0] + 2]
        async with owned_log(engine, name) as later:
            assert later.payloads == [b"1", b"2", b"3"]


def _lose_responses(lone: LoneConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ignore(*_: object) -> None:
        pass

    monkeypatch.setattr("millrace_server.replication.chain.CALL_SECONDS", 0.05)
    monkeypatch.setattr(lone, "_process_msg", ignore)


async def test_lone_group_behind_a_response_that_did_not_come_goes_over_the_other_connection(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of the engine that stands still delays one append, and is used again once it responds anything."""
    async with engine_at(nats_url) as engine, owned_log(engine, new_name()) as log:
        await log.submit(b"1")
        await _idle(log)
        assert engine.lone is not None
        calls = _counted_calls(engine, monkeypatch)
        with monkeypatch.context() as losing:
            _lose_responses(engine.lone, losing)
            await log.submit(b"2")
            await _idle(log)
            await log.submit(b"3")
            await _idle(log)
        assert calls == ["start", "start"]
        await engine.lone.flush()
        await log.submit(b"4")
        assert calls == ["start", "start"]


async def test_lone_group_that_may_arrive_later_is_not_refused(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without space refuses one whose outcome is known; another might still be stored, once there is space."""
    monkeypatch.setattr("millrace_server.replication.stream_reading.UNKNOWN_SECONDS_MAX", 0.5)
    limits = StreamLimits(replicas=1, stream_bytes_max=_MIB)
    async with engine_at(nats_url) as engine, owned_log(engine, new_name(), limits=limits) as log:
        await log.submit(b"x" * (_MIB // 2))
        await _idle(log)
        with pytest.raises(LogFullError):
            await log.submit(b"y" * (_MIB // 2))
        log.log.resume()
        await log.submit(b"z")
        await _idle(log)
        assert engine.lone is not None
        _lose_responses(engine.lone, monkeypatch)
        with pytest.raises(LogFailedError, match="exceed"):
            await log.submit(b"y" * (_MIB // 2))
