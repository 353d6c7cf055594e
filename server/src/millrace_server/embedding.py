"""An agent on a thread of its own, with an event loop of its own."""

import asyncio
import threading
from concurrent.futures import Future

import uvloop

from millrace_server.agent.agent import Agent
from millrace_server.agent.components import Component, ComponentKind, ComponentState
from millrace_server.agent.events import EventTable
from millrace_server.agent.sources.source import EmbeddedSources
from millrace_server.agent.supervision import ComponentError
from millrace_server.configuration.settings import Settings
from millrace_server.hosting.catalog import Catalog
from millrace_server.hosting.data_dir import CATALOG_FILE, locked_data_dir
from millrace_server.hosting.lifecycle import flows_of, open_channels, stop_flows
from millrace_server.hosting.stop_requests import StopRequests


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
        stamp = writer.numbered(1)
        if not timeout_seconds:
            await writer.offer(table, stamp)
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
