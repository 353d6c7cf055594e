from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.served_console import ServedConsole, served_console


@pytest.fixture
async def console(tmp_path: Path, prompt_http_stop: None) -> AsyncIterator[ServedConsole]:
    """A console without authentication, of a server without channels."""
    async with served_console(tmp_path) as served:
        yield served
