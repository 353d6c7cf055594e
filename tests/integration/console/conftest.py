"""One Chromium and one server for the tests of a module."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.integration.browser import Console, running_chromium
from tests.millraced import Millraced

_FREE_PORTS = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser without tabs."""
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(chromium: Browser, config_toml: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Millraced]:
    """A server with the module's `config_toml`."""
    folder = tmp_path_factory.mktemp("console")
    config, data_dir = folder / "millrace.toml", folder / "data"
    config.write_text(config_toml)
    started = Millraced(("--config", str(config), "--data-dir", str(data_dir), *_FREE_PORTS), data_dir)
    yield started
    started.kill()


@pytest.fixture
def console(chromium: Browser, server: Millraced) -> Iterator[Console]:
    """A tab; checks in the end that nothing went wrong in it."""
    opened = Console(chromium, server.http)
    yield opened
    opened.close()
