"""Fixtures of the tests of who may do what: a server with tokens, for one test."""

from pathlib import Path

import pytest

from tests.access_site import Site
from tests.conftest import StartMillraced
from tests.millraced import Millraced


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Identities with each permission; a module may have others."""
    return Site.of_permissions(tmp_path)


@pytest.fixture
def server(site: Site, start_millraced: StartMillraced) -> Millraced:
    """The server of the site."""
    return start_millraced(site.toml())
