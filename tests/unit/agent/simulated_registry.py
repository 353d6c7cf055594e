"""A registry of channels on simulated disks, which crash and come back."""

import asyncio
from types import SimpleNamespace
from typing import Any

from millrace_server.channels.channel import Channel
from tests.simulated_channels import SimulatedChannel


class FakeRegistry:
    """Channels that are replaced when they are opened again."""

    def __init__(self) -> None:
        self.opened: dict[str, SimulatedChannel] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.opened

    def get(self, name: str) -> Channel:
        return self.opened[name].channel

    def find(self, name: str) -> Any:
        opened = asyncio.Event()
        opened.set()
        return SimpleNamespace(opened=opened, channel=self.get(name), config=self.get(name).config)
