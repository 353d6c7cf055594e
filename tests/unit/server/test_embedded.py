import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millrace.setting_file import SettingsError
from millrace_server.embedded import EmbeddedAgent, EmbeddedAgentError
from millrace_server.errors import ChannelFullError, StartError, TxnCapacityError

WAIT_SECONDS_MAX = 60.0


def tables_of(data_dir: Path, sinks: dict[str, Any] | None = None, **limits: Any) -> dict[str, Any]:
    """A source `app` that fills the memory channel `orders`, and a source `none` that accepts no puts."""
    return {
        "server": {"data_dir": str(data_dir)},
        "channels": {"orders": {"type": "memory", "keep_alive_seconds": 0.01, **limits}},
        "sources": {
            "app": {"type": "embedded", "channels": ["orders"]},
            "none": {"type": "taildir", "paths": [str(data_dir / "*.log")], "channels": ["orders"]},
        },
        "sinks": sinks or {},
    }


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[EmbeddedAgent]:
    agent = EmbeddedAgent(tables_of(tmp_path, capacity=10))
    yield agent
    agent.stop()


def count_of(agent: EmbeddedAgent, component: str = "SOURCE.app") -> Any:
    reported = agent.components()[component]
    return reported.get("EventAcceptedCount", reported.get("EventDrainSuccessCount"))


def test_put_returns_once_the_event_is_stored(agent: EmbeddedAgent) -> None:
    """Once a put returns, the channel has the event."""
    agent.start()
    agent.put("app", {"level": "info"}, b"a")
    agent.put_all("app", [({}, b"b"), ({"level": "error"}, bytearray(b"c"))])
    assert count_of(agent) == 3
    assert agent.components()["SOURCE.app"]["State"] == "running"


def test_put_into_a_file_channel_survives_the_agent(tmp_path: Path) -> None:
    """A second agent on the same directory has the stored events, and its sink delivers them."""
    tables = tables_of(tmp_path) | {"channels": {"orders": {"type": "file"}}}
    with EmbeddedAgent(tables) as agent:
        for number in range(20):
            agent.put("app", {}, b"%d" % number)
    with EmbeddedAgent({**tables, "sinks": {"out": {"type": "null", "channel": "orders"}}}) as agent:
        give_up = time.monotonic() + WAIT_SECONDS_MAX
        while count_of(agent, "SINK.out") != 20:
            assert time.monotonic() < give_up
            time.sleep(0.005)


def test_put_into_a_full_channel_is_refused(agent: EmbeddedAgent) -> None:
    """A full channel raises in the caller, after at most its keep-alive."""
    agent.start()
    agent.put_all("app", [({}, b"x")] * 10)
    with pytest.raises(ChannelFullError):
        agent.put("app", {}, b"one too many")
    assert agent.components()["SOURCE.app"]["State"] == "backing off"


def test_put_with_a_timeout_tries_on_until_it_is_over(agent: EmbeddedAgent) -> None:
    """If the channel stays full, the error says so."""
    agent.start()
    agent.put_all("app", [({}, b"x")] * 10)
    with pytest.raises(TimeoutError, match=r"not in 0\.2 s: channel orders: CHANNEL_FULL"):
        agent.put("app", {}, b"one too many", timeout_seconds=0.2)


def test_put_all_of_more_than_a_transaction_holds_stores_nothing(agent: EmbeddedAgent) -> None:
    """The events are stored all or none."""
    agent.start()
    with pytest.raises(TxnCapacityError):
        agent.put_all("app", [({}, b"x")] * 11)
    agent.put_all("app", [({}, b"x")] * 10)
    assert count_of(agent) == 10


def test_put_from_many_threads_stores_each_event_once(tmp_path: Path) -> None:
    """Threads may share an agent."""
    sinks = {"out": {"type": "null", "channel": "orders"}}
    with EmbeddedAgent(tables_of(tmp_path, sinks, capacity=1_000)) as agent, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: agent.put("app", {}, b"%d" % number), range(400)))
        assert count_of(agent) == 400


def test_stop_empties_memory_channels_through_their_sinks(tmp_path: Path) -> None:
    """At a normal end no event is lost that a sink can still deliver."""
    path = tmp_path / "out"
    path.mkdir()
    sinks = {"out": {"type": "files", "channel": "orders", "path": str(path)}}
    with EmbeddedAgent(tables_of(tmp_path / "data", sinks)) as agent:
        agent.put_all("app", [({}, b"%d" % number) for number in range(50)])
    written = b"".join(file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file())
    assert written == b"".join(b"%d\n" % number for number in range(50))


async def test_put_async_waits_without_holding_up_the_loop(tmp_path: Path) -> None:
    """While a put waits for space, the program's event loop continues."""
    async with EmbeddedAgent(tables_of(tmp_path, capacity=1)) as agent:
        await agent.put_async("app", {}, b"a")
        waiting = asyncio.create_task(agent.put_async("app", {}, b"b", 3_600.0))
        for _ in range(3):
            await asyncio.sleep(0.01)
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        for put in (agent.put_async("app", {}, b"c"), agent.put_all_async("app", [({}, b"c")])):
            with pytest.raises(ChannelFullError):
                await put


def test_stop_while_a_put_waits_ends_it(tmp_path: Path) -> None:
    """The put ends with an error, and does not report an event as stored that is not."""
    tables = tables_of(tmp_path, capacity=1, keep_alive_seconds=3_600.0)
    tables["server"]["shutdown_grace_seconds"] = 0.1
    agent = EmbeddedAgent(tables)
    agent.start()
    agent.put("app", {}, b"a")
    errors: list[Exception] = []

    def put() -> None:
        try:
            agent.put("app", {}, b"b")
        except EmbeddedAgentError as error:
            errors.append(error)

    putting = threading.Thread(target=put)
    putting.start()
    give_up = time.monotonic() + WAIT_SECONDS_MAX
    embedding = agent._thread
    assert embedding is not None
    while not embedding._has_begun.result()._puts and time.monotonic() < give_up:
        time.sleep(0.001)
    agent.stop()
    putting.join(WAIT_SECONDS_MAX)
    assert not putting.is_alive()
    assert [str(error) for error in errors] == [
        "put: the agent was stopped; it is not known whether the events were stored"
    ]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("nosuch", r"put: source 'nosuch' does not exist; it must be one of type embedded, app"),
        ("none", r"put: source 'none' is of type taildir; it must be one of type embedded, app"),
    ],
)
def test_put_into_what_is_no_embedded_source_says_so(agent: EmbeddedAgent, source: str, sentence: str) -> None:
    """A wrong name is reported as a mistake of the program."""
    agent.start()
    with pytest.raises(EmbeddedAgentError, match=sentence):
        agent.put(source, {}, b"a")


@pytest.mark.parametrize(
    ("headers", "body", "sentence"),
    [
        ({}, "text", r"body: is str; it must be bytes"),
        ({"a": 1}, b"x", r"headers: must be a mapping of str to str"),
        (None, b"x", r"headers: must be a mapping of str to str"),
    ],
)
def test_put_of_what_is_no_event_says_so(agent: EmbeddedAgent, headers: Any, body: Any, sentence: str) -> None:
    """The error comes before anything is stored."""
    agent.start()
    with pytest.raises(TypeError, match=sentence):
        agent.put_all("app", [({}, b"good"), (headers, body)])
    assert count_of(agent) == 0


def test_agent_used_out_of_order_says_how_it_is_meant(agent: EmbeddedAgent) -> None:
    """Put before start, a second start, and put after stop raise; a second stop has no effect."""
    with pytest.raises(EmbeddedAgentError, match="is not running; call start first"):
        agent.put("app", {}, b"a")
    agent.stop()
    agent.start()
    with pytest.raises(EmbeddedAgentError, match="is already running; stop it first"):
        agent.start()
    agent.stop()
    agent.stop()
    with pytest.raises(EmbeddedAgentError, match="is not running"):
        agent.put("app", {}, b"a")


def test_start_after_stop_starts_again(agent: EmbeddedAgent) -> None:
    """An agent can be started again; events that were in memory are lost."""
    agent.start()
    agent.put("app", {}, b"a")
    agent.stop()
    agent.start()
    assert count_of(agent) == 0
    agent.put("app", {}, b"b")


def test_start_on_a_directory_in_use_is_refused(agent: EmbeddedAgent, tmp_path: Path) -> None:
    """Two agents, or an agent and a daemon, never share a directory; the second may retry later."""
    agent.start()
    other = EmbeddedAgent(tables_of(tmp_path))
    with pytest.raises(StartError, match="another server"):
        other.start()
    agent.stop()
    other.start()
    other.stop()


def test_agent_of_a_bad_configuration_names_all_problems(tmp_path: Path) -> None:
    """The problems are those of the daemon's check, for a file and for tables."""
    bad = {"channels": {"orders": {"type": "memory", "capacity": 0}}, "sourcse": {}}
    with pytest.raises(SettingsError) as caught:
        EmbeddedAgent(bad)
    assert len(caught.value.problems) == 2
    path = tmp_path / "flows.toml"
    path.write_text("[channels.orders]\ntype = 'fiel'\n")
    with pytest.raises(SettingsError, match=r"flows\.toml:2: channels\.orders\.type"):
        EmbeddedAgent(path)


def test_agent_after_a_fork_says_that_it_is_the_parents(agent: EmbeddedAgent) -> None:
    """The child has no thread to wait for, and must not wait without end."""
    agent.start()
    agent._process_id = os.getppid()
    try:
        with pytest.raises(EmbeddedAgentError, match="after a fork"):
            agent.put("app", {}, b"a")
    finally:
        agent._process_id = os.getpid()


_GUEST = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s %(message)s")
import signal
before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGHUP)
from millrace_server.embedded import EmbeddedAgent
agent = EmbeddedAgent({"server": {"data_dir": sys.argv[1]}, "channels": {"a": {"type": "memory"}},
                       "sources": {"app": {"type": "embedded", "channels": ["a"]}}})
agent.start()
agent.put("app", {}, b"x")
assert before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGHUP))
assert "uvicorn" not in sys.modules and "grpc" not in sys.modules, "an agent without ports brings no servers"
if sys.argv[2] == "stop":
    agent.stop()
"""


@pytest.mark.parametrize("end", ["stop", "forget"])
def test_agent_in_a_program_leaves_the_process_alone(tmp_path: Path, end: str) -> None:
    """It installs no signal handlers, imports no servers, logs only to `logging`, and lets the program end."""
    result = subprocess.run(
        [sys.executable, "-c", _GUEST, str(tmp_path), end], capture_output=True, text=True, check=False, timeout=60.0
    )
    assert (result.returncode, result.stdout) == (0, "")
    if end == "stop":
        assert "millrace_server.hosting.lifecycle stopping (open_transactions=0, grace_seconds=10.0)" in result.stderr


def test_agent_in_a_program_without_logging_is_heard_of_in_warnings_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its log entries go where the program's other records go."""
    with caplog.at_level(logging.INFO), EmbeddedAgent(tables_of(tmp_path)):
        pass
    loggers = {record.name for record in caplog.records if record.threadName == "millrace-agent"}
    assert "millrace_server.hosting.lifecycle" in loggers
    assert all(name.startswith("millrace_server") for name in loggers)
