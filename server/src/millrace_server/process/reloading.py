"""Applies a changed configuration while the server runs."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import structlog

from millrace.setting_file import SettingsError
from millrace_server.access.control import AccessControl
from millrace_server.agent.agent import Agent, AgentChanges
from millrace_server.agent.settings import AgentConfig
from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_handle import ChannelHandle, ChannelState
from millrace_server.channels.config import AnyChannelConfig, ChannelConfig
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.configuration.settings import ServerSettings, Settings
from millrace_server.errors import MillraceError
from millrace_server.hosting.data_dir import Catalog
from millrace_server.hosting.lifecycle import flows_of
from millrace_server.hosting.signals import ReloadRequests

_LIVE_SERVER_FIELDS = {"shutdown_grace_seconds"}
"""Fields of [server] that are read when they are needed."""

_FIXED_CHANNEL_FIELDS = {"data_dirs", "checkpoint_dir", "backup_checkpoint", "encryption", "engine"}
"""Fields of a channel, besides its type, that are fixed when it is opened."""

_NEEDS_RESTART = "cannot change while the server runs; restart it"

_log = structlog.stdlib.get_logger(__name__)


@dataclass(slots=True)
class _Report:
    created: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    pending: dict[str, str] = field(default_factory=dict)
    """Why a setting is not in force, and what to do, by setting."""


class Reloader:
    """Applies changes of the configuration to a running server.

    Attributes:
        settings: The last configuration that was applied. Some of it may not be in force before a restart.
        shutdown_grace_seconds: The grace period of open transactions at the stop, as last configured.
    """

    def __init__(  # noqa: PLR0913 - all that a reload changes
        self,
        settings: Settings,
        load: Callable[[], Settings] | None,
        registry: ChannelRegistry,
        catalog: Catalog,
        agent: Agent,
        *,
        access: AccessControl | None = None,
    ) -> None:
        self.settings = settings
        self._server = settings.server
        self._auth = settings.auth
        self._access = access
        self._load = load
        self._registry = registry
        self._catalog = catalog
        self._agent = agent
        self._channels: dict[str, AnyChannelConfig] = dict(settings.channels)
        """The last configuration of each configured channel that was fully in force."""
        self.shutdown_grace_seconds = settings.server.shutdown_grace_seconds

    async def follow(self, requests: ReloadRequests) -> None:
        while True:
            await requests.wait()
            try:
                await self.reload()
            except Exception:  # noqa: BLE001 - a bug in the reload must not stop the server
                _log.exception("the reload failed halfway; the rest of the configuration is unchanged")

    async def reload(self) -> None:
        """Reads the configuration and applies its changes.

        An invalid configuration changes nothing. A change that needs a restart is logged, and the others are applied.
        """
        if self._load is None:
            _log.warning("there is nothing to reload: the server was started without a configuration file")
            return
        try:
            settings = await asyncio.to_thread(self._load)
        except SettingsError as error:
            _log.error(
                "the configuration was not reloaded, and nothing was changed",
                file=error.source,
                problems=list(map(str, error.problems)),
            )
            return
        _log.info("reloading")
        self.settings = settings
        report = _Report()
        self._compare_server(settings.server, report)
        if settings.auth != self._auth:
            report.pending["auth"] = _NEEDS_RESTART
        # Revoked rights must not wait for a restart. Without `auth`, the file defines no rights.
        if self._access is not None and settings.auth is not None:
            self._access.replace(settings.roles, settings.identities)
        flows = self._flows(settings, report)
        self._registry.set_entrances(flows.entrances())
        # New channels are created before the flows that may use them; changes of others may have to wait for space.
        self._create_channels(settings, report)
        updating = asyncio.ensure_future(self._update_channels(settings, report))
        changing = asyncio.ensure_future(self._agent.change(flows, self.shutdown_grace_seconds))
        await _wait_for_all(updating, changing)
        changes = changing.result()
        await self._remove_channels(settings, flows.channels(), report)
        _log_outcome(changes, report)

    def _compare_server(self, server: ServerSettings, report: _Report) -> None:
        self.shutdown_grace_seconds = server.shutdown_grace_seconds
        for name in ServerSettings.model_fields:
            if name not in _LIVE_SERVER_FIELDS and getattr(server, name) != getattr(self._server, name):
                report.pending[f"server.{name}"] = _NEEDS_RESTART

    def _flows(self, settings: Settings, report: _Report) -> AgentConfig:
        """Returns the flows, without the sources whose name a channel of the server still has."""
        flows = flows_of(settings)
        taken = {name for name in flows.entrances() if name in self._registry}
        report.pending |= {
            f"sources.{name}": "has the name of a channel of the server; remove the channel, then reload again"
            for name in taken
        }
        return flows._replace(sources={name: one for name, one in flows.sources.items() if name not in taken})

    def _create_channels(self, settings: Settings, report: _Report) -> None:
        for name, config in settings.channels.items():
            if name in self._registry and self._failed_to_open(name):
                # It failed to open: try again with the current configuration.
                self._registry.forget(name)
            if name not in self._registry:
                self._registry.create(name, config).configured = config
                self._channels[name] = config
                report.created.append(name)

    def _failed_to_open(self, name: str) -> bool:
        handle = self._registry.find(name)
        is_elsewhere = handle.state is ChannelState.STANDING_BY
        return handle.opened.is_set() and handle.channel_if_open is None and not is_elsewhere

    async def _update_channels(self, settings: Settings, report: _Report) -> None:
        updates = [
            self._update_channel(name, config, report)
            for name, config in settings.channels.items()
            if self._channels.get(name) != config or self._registry.find(name).is_overridden
        ]
        await _wait_for_all(*map(asyncio.ensure_future, updates))

    async def _update_channel(self, name: str, config: AnyChannelConfig, report: _Report) -> None:
        handle = self._registry.find(name)
        channel = handle.channel_if_open
        if channel is None and handle.state is not ChannelState.STANDING_BY:
            report.pending[f"channels.{name}"] = "is not open yet; reload again when it is"
            return
        async with channel.updating if channel else nullcontext():
            former = channel.config if channel else handle.config
            if config.type != former.type:
                report.pending[f"channels.{name}.type"] = _NEEDS_RESTART
                return
            wanted = self._without_fixed(name, former, config, report)
            if wanted != former:
                if why := await _update(handle, channel, wanted):
                    report.pending[f"channels.{name}"] = f"{why}; take some out, then reload again"
                    return
                report.updated.append(name)
            handle.configured = wanted
            if wanted == config:
                self._channels[name] = config

    @staticmethod
    def _without_fixed(name: str, former: ChannelConfig, config: AnyChannelConfig, report: _Report) -> AnyChannelConfig:
        """Returns the new configuration with the former values of what needs a restart, and reports these."""
        fixed = {one for one in _FIXED_CHANNEL_FIELDS if getattr(former, one, None) != getattr(config, one, None)}
        report.pending |= {f"channels.{name}.{one}": _NEEDS_RESTART for one in fixed}
        return config.model_copy(update={one: getattr(former, one) for one in fixed})

    async def _remove_channels(self, settings: Settings, used: set[str], report: _Report) -> None:
        catalogued = await asyncio.to_thread(self._catalog.load)
        for name in [name for name in self._channels if name not in settings.channels]:
            if name in self._registry:
                self._registry.find(name).configured = None
            if name in self._registry and name not in catalogued:
                if why := self._obstacle_to_removal(name, used):
                    report.pending[f"channels.{name}"] = f"was not removed with its table: {why}"
                    continue
                await self._registry.retire(name)
                report.removed.append(name)
            del self._channels[name]

    def _obstacle_to_removal(self, name: str, used: set[str]) -> str:
        """Returns what prevents the removal of a channel, and what to do; empty if nothing does."""
        handle = self._registry.find(name)
        channel = handle.channel_if_open
        if name in used:
            return "sources or sinks name it; change them too, then reload again"
        if not handle.opened.is_set():
            return "it is not open yet; reload again when it is"
        if channel is None or self._registry.has_successor(name):
            return ""
        if event_count := channel.event_count:
            return f"it holds {event_count} events; take them out, then reload again"
        if channel.open_transactions or channel.claims.claim is not None:
            return "transactions or a claim are open in it; reload again when they end"
        return ""


async def _wait_for_all(*tasks: "asyncio.Future[Any]") -> None:
    """Waits for all tasks before raising the error of one, so that no part of a reload overlaps the next reload."""
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        task.result()


async def _update(handle: ChannelHandle, channel: Channel | None, config: AnyChannelConfig) -> str:
    """Updates a channel; returns why nothing was changed, or an empty string."""
    if channel is None:
        # Another server owns the channel; these limits apply once this one takes it over.
        handle.reconfigure(config)
        return ""
    try:
        return await channel.update(config)
    except MillraceError as error:
        return str(error)


def _log_outcome(changes: AgentChanges, report: _Report) -> None:
    for part in changes.stuck:
        report.pending[part.replace("/", ".", 1)] = "the former one does not end; reload again, or restart the server"
    for setting, why in sorted(report.pending.items()):
        _log.warning("not in force yet", setting=setting, why=why)
    outcome = {
        "started": changes.started,
        "changed": changes.changed,
        "stopped": changes.stopped,
        "channels_made": report.created,
        "channels_changed": report.updated,
        "channels_removed": report.removed,
        "not_in_force": list(report.pending),
    }
    _log.info("reloaded", **{what: sorted(names) for what, names in outcome.items() if names})
