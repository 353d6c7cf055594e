"""The embedded agent: flows inside a Python program, without a daemon and without ports.

    from millrace_server.embedded import EmbeddedAgent

    with EmbeddedAgent("flows.toml") as agent:
        agent.put("app", {"level": "info"}, b"it has begun")

The configuration is a daemon's; sources of type `embedded` take what the program puts.
"""

import asyncio
import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
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
from millrace_server.http_service.metrics import describe_components
from millrace_server.logs import log_to_standard_library

__all__ = ["EmbeddedAgent", "EmbeddedAgentError"]

_LISTENS_NOWHERE = {"listen": "127.0.0.1:0", "http_listen": "127.0.0.1:0"}
"""Has the server's own addresses stand in nobody's way."""

Headers = Mapping[str, str]
Body = bytes | bytearray | memoryview


class EmbeddedAgentError(Exception):
    """Returned when an embedded agent is not used as it is meant to be; the message says how it is."""


class Embedding:
    """One run of an agent, from `start` to `stop`. Other threads than its own call all of its methods."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._has_begun: Future[_Run] = Future()
        self._calling = threading.Lock()
        """Held while a put is handed over: none is handed over to a loop that has ended, and would wait for ever."""
        self._is_stopping = False
        # A daemon: a program that forgets to stop its agent ends all the same.
        self._thread = threading.Thread(target=self._work, name="millrace-agent", daemon=True)

    def start(self) -> None:
        """Returns once the channels are open and the sources at work, as far as they can be.

        Raises:
            StartError: The data directory cannot be used.
        """
        self._thread.start()
        self._has_begun.result()

    def stop(self) -> None:
        """Returns once everything has ended."""
        run = self._has_begun.result()
        with self._calling:
            self._is_stopping = True
            run.loop.call_soon_threadsafe(run.requests.add)
        self._thread.join()

    def is_own_thread(self) -> bool:
        """Whether the caller is what runs the agent."""
        return threading.current_thread() is self._thread

    def components(self) -> list[Component]:
        """The agent's components."""
        return list(self._has_begun.result().agent.components)

    def begin_put(self, source: str, table: EventTable, timeout_seconds: float) -> "Future[None]":
        """Begins to store events; see `EmbeddedAgent.put_all`."""
        run = self._has_begun.result()
        with self._calling:
            if self._is_stopping:
                raise EmbeddedAgentError("put: the agent stops; nothing was stored")
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
        with locked_data_dir(settings.server.data_dir):
            registry = open_channels(settings, Catalog(settings.server.data_dir / CATALOG_FILE))
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
    """What the agent's thread has at work."""

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
        """Waits until each embedded source takes puts, or says why it does not."""
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
                    "put: the agent was stopped meanwhile; it is not known whether the events were stored"
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
        # One number for all of them: so they stay together, in one transaction or in none.
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
        """Has puts that are under way end, by themselves or at last without their effect being known."""
        if self._puts:
            await asyncio.wait(self._puts, timeout=grace_seconds)
        self._is_ending = True
        for task in list(self._puts):
            task.cancel()
        if self._puts:
            await asyncio.wait(self._puts)


class EmbeddedAgent:
    """Runs the flows of a configuration inside this program, on a thread of its own.

    Any thread may call. `put` and `put_all` wait until the events are stored in every channel of the source. When the
    program ends without `stop`, what channels have in memory only is lost; what is in a log on disk is not.

    The data directory is locked as a daemon's is: a daemon or another agent on the same one is refused. Signals are the
    program's own business, and nothing listens. What the agent logs goes to `logging`, unless the program has
    configured structlog.

    Args:
        configuration: The path of a TOML file, or the same tables as Python has them. Of `[server]` only `data_dir`,
            the limits and `shutdown_grace_seconds` count.

    Raises:
        SettingsError: The configuration cannot be used; names all problems.
    """

    def __init__(self, configuration: str | Path | Mapping[str, Any]) -> None:
        self._settings = _settings_of(configuration)
        self._embedding: Embedding | None = None
        self._changing = threading.Lock()
        self._process_id = os.getpid()

    def start(self) -> None:
        """Opens the channels and starts the flows; returns once events can be put.

        Raises:
            StartError: The data directory cannot be used.
            EmbeddedAgentError: The agent runs already.
        """
        self._refuse_other_process()
        with self._changing:
            if self._embedding is not None:
                raise EmbeddedAgentError("start: the agent runs already; stop it first")
            if not structlog.is_configured():
                log_to_standard_library()
            embedding = Embedding(self._settings)
            embedding.start()
            self._embedding = embedding

    def stop(self) -> None:
        """Ends the flows in the direction of the data, and closes the channels. Does nothing where none run.

        Puts that wait are ended; sinks empty memory channels for up to `server.shutdown_grace_seconds`.
        """
        self._refuse_other_process()
        with self._changing:
            embedding, self._embedding = self._embedding, None
            if embedding is not None:
                embedding.stop()

    def put(self, source: str, headers: Headers, body: Body, timeout_seconds: float = 0.0) -> None:
        """Puts one event; see `put_all`."""
        self.put_all(source, [(headers, body)], timeout_seconds)

    def put_all(self, source: str, events: Iterable[tuple[Headers, Body]], timeout_seconds: float = 0.0) -> None:
        """Puts events, all or none in each channel, and returns once they are stored in every channel of the source.

        Args:
            source: The name of a source of type `embedded`.
            events: Headers and body of each; at most the `transaction_capacity` of the source's channels.
            timeout_seconds: How long to go on trying while they cannot be stored; 0: one try, for as long as the
                channel's own keep-alive.

        Raises:
            MillraceError: They could not be stored in one try: a channel is full, or its disk is. Where the source has
                several channels, some of them may have the events.
            TimeoutError: Likewise, in all the time that was given.
            ComponentError: The source is not at work; says why.
            EmbeddedAgentError: The agent does not run, or there is no such source.
        """
        self._begin_put(source, events, timeout_seconds).result()

    async def put_async(self, source: str, headers: Headers, body: Body, timeout_seconds: float = 0.0) -> None:
        """As `put`, for asyncio: waits without holding up the loop."""
        await self.put_all_async(source, [(headers, body)], timeout_seconds)

    async def put_all_async(
        self, source: str, events: Iterable[tuple[Headers, Body]], timeout_seconds: float = 0.0
    ) -> None:
        """As `put_all`, for asyncio: waits without holding up the loop."""
        await asyncio.wrap_future(self._begin_put(source, events, timeout_seconds))

    def components(self) -> dict[str, dict[str, str | float | None]]:
        """All sources, sinks and sink groups and how they are, as the daemon tells them under `/components`."""
        return describe_components(self._running().components())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def _begin_put(self, source: str, events: Iterable[tuple[Headers, Body]], timeout_seconds: float) -> "Future[None]":
        embedding = self._running()
        self._refuse_unknown(source)
        if embedding.is_own_thread():
            raise EmbeddedAgentError("put: is called on the agent's own thread, which would wait for itself")
        table = EventTable.of_rows(_checked(headers, body) for headers, body in events)
        return embedding.begin_put(source, table, timeout_seconds)

    def _refuse_unknown(self, source: str) -> None:
        config = self._settings.sources.get(source)
        if config is None or config.type != "embedded":
            names = sorted(name for name, one in self._settings.sources.items() if one.type == "embedded")
            known = ", ".join(names) or "of which there is none"
            is_what = "is not there" if config is None else f"is of type {config.type}"
            raise EmbeddedAgentError(f"put: source {source!r} {is_what}; it must be one of type embedded, {known}")

    def _running(self) -> Embedding:
        self._refuse_other_process()
        embedding = self._embedding
        if embedding is None:
            raise EmbeddedAgentError("the agent does not run; call start first, or use it in a with block")
        return embedding

    def _refuse_other_process(self) -> None:
        if os.getpid() != self._process_id:
            raise EmbeddedAgentError("the agent belongs to the parent process; make one of its own after a fork")


def _settings_of(configuration: str | Path | Mapping[str, Any]) -> Settings:
    if isinstance(configuration, Mapping):
        return check_settings(configuration, "configuration", _LISTENS_NOWHERE)
    return load_settings(Path(configuration), _LISTENS_NOWHERE)


def _checked(headers: object, body: object) -> tuple[Headers, bytes]:
    if not isinstance(body, Body):
        raise TypeError(f"body: is {type(body).__name__}; it must be bytes")
    if not isinstance(headers, Mapping) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in headers.items()
    ):
        raise TypeError("headers: must be a mapping of str to str")
    return headers, bytes(body)
