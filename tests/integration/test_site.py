"""The documentation's site, built, and read as files."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from playwright.sync_api import expect

from tests.browser import running_chromium
from tests.unit.repository.checkout import ROOT

LANGUAGES_RUN = {"bash", "python", "sh", "toml"}
BLOCK = re.compile(r"^(<!-- run: [\w.]+ -->\n)?```(\w+)\n.*?^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = {
    "docs/agent.md",
    "docs/monitoring.md",
    "docs/operating.md",
    "docs/spark_on_a_cluster.md",
    "docs/tracing.md",
    "spark_connector/README.md",
}
"""Pages with commands that need programs or machines which tests do not have."""


class _Page(HTMLParser):
    """The ids of a page, and where it leads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value}
        self.ids.update(found[name] for name in ("id", "name") if name in found)
        if tag == "a" and "href" in found:
            self.targets.add(found["href"])
        elif tag in {"img", "link", "script"} and (target := found.get("src") or found.get("href")):
            self.loaded.add(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, where a warning of mkdocs is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, _Page]:
    """All pages, by their files."""
    return {path: _Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}


def test_links_of_all_pages_lead_somewhere(pages: dict[Path, _Page]) -> None:
    """Each link leads to a page of the site, and to a heading that it has; nothing is loaded that is not there."""
    lost = []
    for path, page in pages.items():
        for target in page.targets | page.loaded:
            address, anchor = urldefrag(unquote(target))
            if re.match(r"[a-z]+:", address):
                continue
            wanted = (path.parent / address).resolve() if address else path
            is_lost = not wanted.exists() or (anchor and wanted in pages and anchor not in pages[wanted].ids)
            lost += [(path.name, target)] if is_lost else []
    assert lost == []


def test_pages_load_nothing_from_elsewhere(pages: dict[Path, _Page]) -> None:
    """The site works without a network."""
    assert {target for page in pages.values() for target in page.loaded if re.match(r"(https?:)?//", target)} == set()


def test_every_page_of_the_repository_is_in_the_navigation(site: Path) -> None:
    """A page that is added has a place in the site's navigation."""
    listed = (ROOT / "mkdocs.yml").read_text()
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if page not in listed and not page.startswith("decisions/0")} == set()


def test_search_of_pages_opened_as_files_finds(site: Path) -> None:
    """Somebody without a network searches for a setting and finds its page."""
    with running_chromium() as browser:
        page = browser.new_page()
        page.goto((site / "index.html").as_uri())
        page.locator("input.md-search__input").fill("checkpoint_interval_seconds")
        found = page.locator("a.md-search-result__link[href*='settings.html']").first
        expect(found).to_contain_text("Settings")


def test_blocks_of_all_pages_are_run_by_tests() -> None:
    """Each block of a language that can be run says which test runs it."""
    unmarked = []
    for path in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("[a-z]*/README.md"), ROOT / "README.md"]:
        name = str(path.relative_to(ROOT))
        if name not in NOT_RUN:
            blocks = BLOCK.finditer(path.read_text())
            unmarked += [(name, block[2]) for block in blocks if block[1] is None and block[2] in LANGUAGES_RUN]
    assert unmarked == []
