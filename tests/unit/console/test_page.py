"""The files of the console's page."""

import gzip
import re
from pathlib import Path

import millrace_server.console

PAGE = Path(millrace_server.console.__file__).parent / "page"
SERVED_SUFFIXES = {".css", ".html", ".js", ".svg"}
COMPRESSED_BYTES_MAX = 150_000
LINES_MAX = 300
LOADED_LATE = {"vendor/uplot.js"}


def _served() -> dict[str, Path]:
    return {str(path.relative_to(PAGE)): path for path in PAGE.rglob("*") if path.suffix in SERVED_SUFFIXES}


def _own() -> dict[str, str]:
    return {name: path.read_text() for name, path in _served().items() if not name.startswith("vendor/")}


def test_all_files_compressed_are_small() -> None:
    """The whole page takes at most 150 KB over the wire."""
    assert sum(len(gzip.compress(path.read_bytes())) for path in _served().values()) <= COMPRESSED_BYTES_MAX


def test_modules_of_the_page_are_preloaded() -> None:
    """The browser asks for all modules at once, rather than for one after the other has come, which takes long."""
    preloaded = re.findall(r'<link rel="modulepreload" href="/console/([^"]+)">', (PAGE / "index.html").read_text())
    modules = {name for name in _served() if name.endswith(".js")}
    assert sorted(preloaded) == sorted(modules - LOADED_LATE - {"app.js"})


def test_own_files_searched_for_addresses_name_no_other_server() -> None:
    """The page works without the Internet; what has a scheme is the namespace of SVG."""
    found = {address for text in _own().values() for address in re.findall(r"\b(?:https?|wss?):[^\s\"'`<>]+", text)}
    assert found == {"http://www.w3.org/2000/svg"}


def test_own_files_searched_for_inline_code_have_none() -> None:
    """The Content-Security-Policy forbids inline scripts, styles and handlers, and nothing parses text as HTML."""
    pattern = re.compile(
        r"""innerHTML|outerHTML|insertAdjacentHTML|dangerouslySet|eval\(|\bstyle="|\bon[a-z]+="|<style"""
    )
    assert {name: found for name, text in _own().items() if (found := pattern.findall(text))} == {}


def test_own_files_are_short() -> None:
    """A module has one subject."""
    assert {name for name, text in _own().items() if text.count("\n") > LINES_MAX} == set()
