"""The documentation's site, built, and read as files."""

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from playwright.sync_api import expect

from tests.fenced_blocks import CHECKED, SYNTAX_ONLY, all_blocks
from tests.guide_reader import GUIDES
from tests.integration.browser import running_chromium
from tests.unit.repository.checkout import ROOT

_HTML = re.compile(
    "<(a|article|body|button|code|div|em|footer|form|h[1-6]|head|header|html|img|input|label|li|link|main|meta|nav|ol|p|"
    "path|pre|script|small|span|strong|svg|table|tbody|td|th|thead|title|tr|ul)|"
    "alt|aria-.+|autocapitalize|autocomplete|autocorrect|charset|checked|class|content|d|data-.+|dir|for|hidden|href|id|"
    "lang|name|placeholder|rel|required|role|spellcheck|src|style|tabindex|target|title|type|value|viewbox|xmlns"
)
"""The tags and attributes that the site uses."""

LANGUAGES_RUN = {"bash", "console", "python", "sh", "toml"}


class _Page(HTMLParser):
    """The ids of a page, where it leads, and the names of its tags and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: set[str] = set()
        self.loaded: set[str] = set()
        self.words: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value}
        self.words |= {f"<{tag}", *(name for name, _ in attrs)}
        self.ids.update(found[name] for name in ("id", "name") if name in found)
        if tag == "a" and "href" in found:
            self.targets.add(found["href"])
        elif tag in {"img", "link", "script"} and (target := found.get("src") or found.get("href")):
            self.loaded.add(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, where a warning of mkdocs is an error."""
    folder = tmp_path_factory.mktemp("site")
    # Searches for garbage would take a fifth of the time.
    program = "import gc; gc.disable(); import mkdocs.__main__ as it; it.cli(prog_name='mkdocs')"
    command = [sys.executable, "-c", program, "build", "--quiet", "--site-dir", str(folder)]
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


def test_pages_show_their_text_and_do_not_take_it_for_html(pages: dict[Path, _Page]) -> None:
    """Outside of code, Markdown takes `<name>` for a tag and `{...}` at the end of a cell for attributes."""
    mistaken = {(path.name, word) for path, page in pages.items() for word in page.words if not _HTML.fullmatch(word)}
    assert mistaken == set()


@pytest.mark.parametrize("module", ["millrace_client", "millrace_client.aio"])
def test_python_page_has_everything_that_a_module_exports(pages: dict[Path, _Page], module: str) -> None:
    """The page lists names in the order in which readers need them, so a new one must be added."""
    ids = next(page.ids for path, page in pages.items() if path.name == "python.html")
    exported = importlib.import_module(module).__all__
    assert [name for name in exported if not {f"{module}.{name}", f"millrace_client.errors.{name}"} & ids] == []


def test_python_page_has_parameters_and_fields(site: Path) -> None:
    """A class is shown with the arguments of its constructor, its fields, and the methods that it inherits."""
    page = (site / "reference" / "python.html").read_text()
    assert {
        "millrace_client.Event.body",
        "millrace_client.Consumer.stop",
        "millrace_client.ChannelState.OPEN",
    } <= _Page(page).ids
    signature = page.partition('id="millrace_client.Consumer"')[2].partition("doc-contents")[0]
    assert "endpoints" in signature


def test_files_that_pages_tell_to_copy_are_in_the_site(site: Path, pages: dict[Path, _Page]) -> None:
    """A reader without a checkout gets the dashboard, the manifests and the protos from the site."""
    copied = {
        "monitoring.html": "deploy/grafana/millrace.json",
        "kubernetes.html": "deploy/kubernetes/server.yaml",
        "other_languages.html": "protos/millrace/v1/channel_service.proto",
    }
    for page, file in copied.items():
        assert file in pages[site / page].targets
        assert (site / file).read_bytes() == (ROOT / file).read_bytes()


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
    """Each block of a language that can be run says how, and a test names its page and its kind."""
    tests = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    unmarked, forgotten = [], []
    for page in _documentation():
        name = str(page.relative_to(ROOT))
        readers = [text for text in tests if f'"{page.name}"' in text or f'/{page.name}"' in text]
        is_followed = page in GUIDES or any("GuideReader" in text for text in readers)
        for block in all_blocks(page):
            if block.kind is None:
                unmarked += [(name, block)] if block.language in LANGUAGES_RUN else []
            elif not is_followed and block.kind not in {SYNTAX_ONLY, CHECKED}:
                is_named = any(f'"{block.kind}"' in text for text in readers)
                forgotten += [] if is_named else [(name, block.kind)]
    assert unmarked == []
    assert forgotten == []


def test_programs_that_no_test_runs_use_what_exists() -> None:
    """Blocks of Python that need a cluster are compiled, and have the attributes of modules that they use."""
    for page in _documentation():
        for block in all_blocks(page):
            if block.kind == SYNTAX_ONLY and block.language == "python":
                for module, attribute in _attributes_used(ast.parse(block.text)):
                    assert hasattr(importlib.import_module(module), attribute), (page.name, module, attribute)


def _documentation() -> list[Path]:
    return [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md"), ROOT / "README.md"]


def _attributes_used(program: ast.Module) -> Iterator[tuple[str, str]]:
    imported = {
        name.asname or name.name: name.name
        for node in ast.walk(program)
        if isinstance(node, ast.Import)
        for name in node.names
    }
    for node in ast.walk(program):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
            yield imported[node.value.id], node.attr
