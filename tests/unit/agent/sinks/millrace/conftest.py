from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agent_components import registry_with
from tests.forward_scene import Scene
from tests.forward_targets import fake_target


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with fake_target() as target:
        registry = registry_with("orders", "rejected", capacity=1_000_000, transaction_capacity=10_000)
        yield Scene(registry, target, tmp_path)
