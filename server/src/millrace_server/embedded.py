"""The embedded agent: flows inside a Python program, without a daemon and without ports.

    from millrace_server.embedded import EmbeddedAgent

    with EmbeddedAgent("flows.toml") as agent:
        agent.put("app", {"level": "info"}, b"started")

The configuration is the same as a daemon's; the program puts events into sources of type `embedded`.
"""

import asyncio
import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import structlog
import uvloop

from millrace_server.agent.agent import Agent
from millrace_server.agent.components import Component, ComponentKind, ComponentState
from millrace_server.agent.events import EventTable
from millrace_server.agent.sources.source import EmbeddedSources
from millrace_server.agent.supervision import ComponentError
from millrace_server.configuration.settings import Settings, check_settings, load_settings
from millrace_server.hosting.data_dir import CATALOG_FILE, Catalog, locked_data_dir
from millrace_server.hosting.lifecycle import flows_of, open_channels, stop_flows
from millrace_server.hosting.signals import StopRequests
from millrace_server.hosting.tracing import traced
from millrace_server.http_service.component_metrics import describe_components
from millrace_server.logs import log_to_standard_library

__all__ = ["EmbeddedAgent", "EmbeddedAgentError"]

_UNUSED_ADDRESSES = {"listen": "127.0.0.1:0", "http_listen": "127.0.0.1:0"}
"""Addresses that conflict with no other setting, since an embedded agent does not listen."""

Headers = Mapping[str, str]
Body = bytes | bytearray | memoryview


class EmbeddedAgentError(Exception):
    """Raised when an embedded agent is used incorrectly; the message says what to do."""


class _AgentThread:
    """The thread and the event loop of a running agent. Other threads call its methods."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._has_begun: Future[_Run] = Future()
        self._calling = threading.Lock()
        """Held while a put is submitted, so that none is submitted to a stopped loop and waits forever."""
        self._is_stopping = False
        # A daemon thread, so that a program that does not stop its agent can still exit.
        self._thread = threading.Thread(target=self._work, name="millrace-agent", daemon=True)

    def start(self) -> None:
        """Returns once the channels are open, and the sources are running or have failed to start.

        Raises:
            StartError: The data directory cannot be used.
        """
        self._thread.start()
        self._has_begun.result()

    def stop(self) -> None:
        """Stops the agent and waits for its thread."""
        run = self._has_begun.result()
        with self._calling:
            self._is_stopping = True
            run.loop.call_soon_threadsafe(run.requests.add)
        self._thread.join()

    def is_own_thread(self) -> bool:
        """Whether the caller runs on the agent's thread."""
        return threading.current_thread() is self._thread

    def components(self) -> list[Component]:
        return list(self._has_begun.result().agent.components)

    def begin_put(self, source: str, table: EventTable, timeout_seconds: float) -> "Future[None]":
        """Starts to store events; see `EmbeddedAgent.put_all`."""
        run = self._has_begun.result()
        with self._calling:
            if self._is_stopping:
                raise EmbeddedAgentError("put: the agent is stopping; nothing was stored")
            return asyncio.run_coroutine_threadsafe(run.put(source, table, timeout_seconds), run.loop)

    def _work(self) -> None:
        try:
            uvloop.run(self._run())
        except BaseException as error:
            if self._has_begun.done():
                raise
            self._has_begun.set_exception(error)

    async def _run(self) -> None:
        settings = self._settings
        with traced(settings.server.tracing), locked_data_dir(settings.server.data_dir):
            catalog = Catalog(settings.server.data_dir / CATALOG_FILE, settings.server.engine)
            registry = open_channels(settings, catalog)
            # It has no address, since it serves no clients.
            registry.serve_at("")
            try:
                await registry.wait_open()
                embedded_sources = EmbeddedSources()
                agent = Agent(registry, settings.server.data_dir, embedded_sources)
                run = _Run(agent, embedded_sources)
                agent.start(flows_of(settings))
                await run.wait_ready()
                self._has_begun.set_result(run)
                await run.requests.wait()
                await run.end_puts(settings.server.shutdown_grace_seconds)
                await stop_flows(agent, registry, run.requests, settings.server.shutdown_grace_seconds)
            finally:
                await registry.close(settings.server.shutdown_grace_seconds)


class _Run:
    """The agent and its puts, on the agent's thread."""

    def __init__(self, agent: Agent, embedded_sources: EmbeddedSources) -> None:
        self.loop = asyncio.get_running_loop()
        self.agent = agent
        self.requests = StopRequests()
        self._embedded_sources = embedded_sources
        self._puts: set[asyncio.Task[None]] = set()
        self._is_ending = False
        self._has_changed = asyncio.Event()
        agent.components.watch(lambda _component: self._has_changed.set())

    async def wait_ready(self) -> None:
        """Waits until each embedded source accepts puts or has failed."""
        while any(
            component.state is ComponentState.STARTING and component.type_name == "embedded"
            for component in self.agent.components
        ):
            self._has_changed.clear()
            await self._has_changed.wait()

    async def put(self, source: str, table: EventTable, timeout_seconds: float) -> None:
        """Stores events; see `EmbeddedAgent.put_all`."""
        task = asyncio.current_task()
        assert task is not None, "a put is a task of its own"
        self._puts.add(task)
        try:
            await self._store(source, table, timeout_seconds)
        except asyncio.CancelledError:
            if self._is_ending:
                raise EmbeddedAgentError(
                    "put: the agent was stopped; it is not known whether the events were stored"
                ) from None
            raise
        finally:
            self._puts.discard(task)

    async def _store(self, source: str, table: EventTable, timeout_seconds: float) -> None:
        writer = self._embedded_sources.find(source)
        component = self.agent.components.find(ComponentKind.SOURCE, source)
        assert component is not None, "the caller knows the source from the configuration"
        if writer is None:
            raise ComponentError(f"source {source} is {component.state.value}: {component.reason}")
        # One number for all events, so that they are stored in one transaction or not at all.
        stamp = writer.next_stamp(1)
        if not timeout_seconds:
            await writer.try_deliver(table, stamp)
            return
        try:
            async with asyncio.timeout(timeout_seconds):
                await writer.deliver(table, stamp)
        except TimeoutError:
            raise TimeoutError(
                f"it is not known whether the events were stored; they were not in {timeout_seconds:g} s: "
                f"{component.reason or 'the disk is slow'}"
            ) from None

    async def end_puts(self, grace_seconds: float) -> None:
        """Waits for the puts in progress, and cancels them after the grace period, with unknown effect."""
        if self._puts:
            await asyncio.wait(self._puts, timeout=grace_seconds)
        self._is_ending = True
        for task in list(self._puts):
            task.cancel()
        if self._puts:
            await asyncio.wait(self._puts)


class EmbeddedAgent:
    """Runs the flows of a configuration inside this program, on a separate thread.

    Thread-safe. `put` and `put_all` wait until the events are stored in every channel of the source. If the program
    exits without `stop`, events in memory only are lost; events in a log on disk are not.

    The data directory is locked: a daemon or another agent on the same one is refused. The agent handles no signals
    and opens no ports of its own. It logs to `logging`, unless the program has configured structlog.

    Args:
        configuration: The path of a TOML file, or its tables as Python dictionaries. Of `[server]` only `data_dir`, the
            limits and `shutdown_grace_seconds` apply.

    Raises:
        SettingsError: The configuration is invalid; the error names all problems.
    """

    def __init__(self, configuration: str | Path | Mapping[str, Any]) -> None:
        self._settings = _settings_of(configuration)
        self._thread: _AgentThread | None = None
        self._changing = threading.Lock()
        self._process_id = os.getpid()

    def start(self) -> None:
        """Opens the channels and starts the flows; returns once events can be put.

        Raises:
            StartError: The data directory cannot be used.
            EmbeddedAgentError: The agent is already running.
        """
        self._refuse_other_process()
        with self._changing:
            if self._thread is not None:
                raise EmbeddedAgentError("start: the agent is already running; stop it first")
            if not structlog.is_configured():
                log_to_standard_library()
            thread = _AgentThread(self._settings)
            thread.start()
            self._thread = thread

    def stop(self) -> None:
        """Stops sources and sinks, and closes the channels. Does nothing if the agent is not running.

        Waiting puts are cancelled; sinks drain memory channels for up to `server.shutdown_grace_seconds`.
        """
        self._refuse_other_process()
        with self._changing:
            thread, self._thread = self._thread, None
            if thread is not None:
                thread.stop()

    def put(self, source: str, headers: Headers, body: Body, timeout_seconds: float = 0.0) -> None:
        """Puts one event; see `put_all`."""
        self.put_all(source, [(headers, body)], timeout_seconds)

    def put_all(self, source: str, events: Iterable[tuple[Headers, Body]], timeout_seconds: float = 0.0) -> None:
        """Puts events, all or none in each channel, and returns once they are stored in every channel of the source.

        Args:
            source: The name of a source of type `embedded`.
            events: Headers and body of each; at most the `transaction_capacity` of the source's channels.
            timeout_seconds: How long to retry while they cannot be stored; 0 for a single attempt, which takes at most
                the channel's keep-alive.

        Raises:
            MillraceError: A single attempt failed because a channel or its disk is full. If the source has several
                channels, some of them may have stored the events.
            TimeoutError: The events could not be stored within the timeout.
            ComponentError: The source is not running; the message says why.
            EmbeddedAgentError: The agent is not running, or there is no such source.
        """
        self._begin_put(source, events, timeout_seconds).result()

    async def put_async(self, source: str, headers: Headers, body: Body, timeout_seconds: float = 0.0) -> None:
        """Puts one event without blocking the event loop; see `put_all`."""
        await self.put_all_async(source, [(headers, body)], timeout_seconds)

    async def put_all_async(
        self, source: str, events: Iterable[tuple[Headers, Body]], timeout_seconds: float = 0.0
    ) -> None:
        """Puts events without blocking the event loop; see `put_all`."""
        await asyncio.wrap_future(self._begin_put(source, events, timeout_seconds))

    def components(self) -> dict[str, dict[str, str | float | None]]:
        """Returns all sources, sinks and sink groups and their state, as the daemon does under `/components`."""
        return describe_components(self._running().components())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await asyncio.to_thread(self.stop)

    def _begin_put(self, source: str, events: Iterable[tuple[Headers, Body]], timeout_seconds: float) -> "Future[None]":
        thread = self._running()
        self._refuse_unknown(source)
        if thread.is_own_thread():
            raise EmbeddedAgentError("put: is called on the agent's own thread, which would deadlock")
        table = EventTable.of_rows(_checked(headers, body) for headers, body in events)
        return thread.begin_put(source, table, timeout_seconds)

    def _refuse_unknown(self, source: str) -> None:
        config = self._settings.sources.get(source)
        if config is None or config.type != "embedded":
            names = sorted(name for name, one in self._settings.sources.items() if one.type == "embedded")
            known = ", ".join(names) or "of which there is none"
            is_what = "does not exist" if config is None else f"is of type {config.type}"
            raise EmbeddedAgentError(f"put: source {source!r} {is_what}; it must be one of type embedded, {known}")

    def _running(self) -> _AgentThread:
        self._refuse_other_process()
        thread = self._thread
        if thread is None:
            raise EmbeddedAgentError("the agent is not running; call start first, or use it in a with block")
        return thread

    def _refuse_other_process(self) -> None:
        if os.getpid() != self._process_id:
            raise EmbeddedAgentError("the agent belongs to the parent process; create another one after a fork")


def _settings_of(configuration: str | Path | Mapping[str, Any]) -> Settings:
    if isinstance(configuration, Mapping):
        return check_settings(configuration, "configuration", _UNUSED_ADDRESSES)
    return load_settings(Path(configuration), _UNUSED_ADDRESSES)


def _checked(headers: object, body: object) -> tuple[Headers, bytes]:
    if not isinstance(body, Body):
        raise TypeError(f"body: is {type(body).__name__}; it must be bytes")
    if not isinstance(headers, Mapping) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in headers.items()
    ):
        raise TypeError("headers: must be a mapping of str to str")
    return headers, bytes(body)
