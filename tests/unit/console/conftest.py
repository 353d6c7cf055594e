from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.console.served_console import ConsoleSite, ServedConsole, served_console


@pytest.fixture
async def console(tmp_path: Path, prompt_http_stop: None) -> AsyncIterator[ServedConsole]:
    """A console without authentication, of a server without channels."""
    async with served_console(tmp_path) as served:
        yield served


@pytest.fixture
async def site(tmp_path: Path, prompt_http_stop: None) -> AsyncIterator[ConsoleSite]:
    """A console with [auth], and an identity for each role."""
    site = ConsoleSite(tmp_path)
    async with served_console(tmp_path, access=site.access) as site.console:
        yield site
